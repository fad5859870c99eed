//! The folder of one run, `<protocol>/<dataset>/<method>/seed-<n>/`: it appears whole or not at all, and one that is
//! there under the same configuration is not run again.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::TempDir;
use toml::{Table, Value};
use ultta::{Error, Result};

use crate::dataset::Dataset;
use crate::plan::Job;
use crate::protocol::Stream;
use crate::run::Ran;
use crate::summary::{Right, Run, Summary, Window};

/// Which figures a summary has: a run with fewer is made again.
const FIGURES: i64 = 4;

/// Where a run goes, or is.
pub struct RunFolder(PathBuf);

impl RunFolder {
    /// The folder of a run below `out`.
    pub fn of(job: &Job<'_>, out: &Path) -> Self {
        let cell = cell(out, job.protocol.name(), &job.dataset, &job.method.name);
        Self(cell.join(format!("seed-{}", job.seed)))
    }

    /// The run in the folder, if it is complete and was made under the same configuration.
    pub(crate) fn finished(&self, config: &str) -> Option<Run> {
        let there = std::fs::read_to_string(self.0.join("config.toml")).ok()?;
        if !self.0.join("done").is_file() || there != config || read_windows(&self.0).is_err() {
            return None;
        }
        read_run(&self.0).ok()
    }

    /// A run of other packs under the same name is not replaced.
    pub(crate) fn check_same_packs(&self, config: &str) -> Result<()> {
        let packs = |text: &str| -> Option<Value> {
            text.parse::<Table>().ok()?.get("run")?.as_table()?.get("packs").cloned()
        };
        let there = std::fs::read_to_string(self.0.join("config.toml")).ok().and_then(|text| packs(&text));
        if there.is_some() && there != packs(config) {
            let reason = "holds a run of other features under the same name; choose another folder for the runs, or remove it";
            return Err(Error::Format { reason: reason.into(), path: self.0.clone() });
        }
        Ok(())
    }

    /// Writes the folder aside and renames it.
    pub(crate) fn write(&self, config: &str, ran: &Ran) -> Result<()> {
        let Run { summary, timing, right, made } = &ran.run;
        let folder = &self.0;
        let io = |doing: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { doing, source, path }
        };
        let parent = folder.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(io("creating", parent))?;
        let aside = new_folder(parent).map_err(io("creating a folder in", parent))?;
        let lines: String = ran.windows.iter().map(|w| json(w) + "\n").collect();
        let bits = right.as_ref().map_or(Vec::new(), |right| right.bytes().to_vec());
        for (name, bytes) in [
            ("config.toml", config.to_string().into_bytes()),
            ("summary.json", json(summary).into_bytes()),
            ("timing.json", json(timing).into_bytes()),
            ("made.json", json(made).into_bytes()),
            ("windows.jsonl", lines.into_bytes()),
            ("right.bin", bits),
            ("done", Vec::new()),
        ] {
            let path = aside.path().join(name);
            std::fs::write(&path, bytes).map_err(io("writing", &path))?;
        }
        if folder.exists() {
            // A folder made under another configuration, or an incomplete one, is removed first.
            std::fs::remove_dir_all(folder).map_err(io("replacing", folder))?;
        }
        std::fs::rename(aside.path(), folder).map_err(io("renaming to", folder))?;
        Ok(())
    }
}

/// The folder of a method on a dataset under a protocol. A name may hold folders, but none that lead out of `out`.
pub(crate) fn cell(out: &Path, protocol: &str, dataset: &str, method: &str) -> PathBuf {
    let plain = |name: &str| -> PathBuf {
        let name = name.replace([':', '\\'], "-");
        name.split('/').filter(|part| !matches!(*part, "" | "." | "..")).collect()
    };
    out.join(plain(protocol)).join(plain(dataset)).join(plain(method))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain numbers and strings")
}

/// A temporary folder is private by default. This one becomes a result: its permissions are those of every new
/// folder, 0777 less the user's umask.
fn new_folder(parent: &Path) -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".run-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o777));
    }
    builder.tempdir_in(parent)
}

/// Reads a run folder.
pub fn read_run(folder: &Path) -> Result<Run> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).map_err(|source| Error::Io { doing: "opening", source, path })
    };
    let bad = |e: serde_json::Error, name: &str| Error::Format {
        reason: format!("not a run this version can read: {e}"),
        path: folder.join(name),
    };
    let summary: Summary =
        serde_json::from_str(&read("summary.json")?).map_err(|e| bad(e, "summary.json"))?;
    // Without these two a run is still whole: it is left out of paired comparisons, and of the foot of the page.
    let bits = std::fs::read(folder.join("right.bin")).ok();
    let right = bits.and_then(|bits| Right::from_bytes(bits, summary.n));
    let made = read("made.json").ok().and_then(|text| serde_json::from_str(&text).ok());
    Ok(Run {
        timing: serde_json::from_str(&read("timing.json")?).map_err(|e| bad(e, "timing.json"))?,
        summary,
        right,
        made,
    })
}

/// Reads the windows of a run.
pub fn read_windows(folder: &Path) -> Result<Vec<Window>> {
    let path = folder.join("windows.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Io {
        doing: "opening",
        source,
        path: path.clone(),
    })?;
    let line = |l: &str| {
        serde_json::from_str(l).map_err(|e| Error::Format { reason: e.to_string(), path: path.clone() })
    };
    text.lines().map(line).collect()
}

/// Everything that decides the outcome of a run, as the text of its `config.toml`.
pub(crate) fn config_text(job: &Job<'_>, stream: &Stream) -> Result<String> {
    let mut run = Table::new();
    run.insert("dataset".into(), job.dataset.clone().into());
    run.insert("method".into(), job.method.name.clone().into());
    run.insert("protocol".into(), job.protocol.name().into());
    run.insert("seed".into(), (job.seed as i64).into());
    run.insert("samples".into(), (stream.samples.len() as i64).into());
    run.insert("figures".into(), FIGURES.into());
    run.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    let digests: Vec<Value> = job.packs.iter().map(|d| d.head.digest().into()).collect();
    run.insert("heads".into(), digests.into());
    let packs = |packs: &[&Dataset]| -> Result<Value> {
        packs.iter().map(|d| Ok(Value::from(d.pack.digest()?))).collect::<Result<Vec<_>>>().map(Value::from)
    };
    run.insert("packs".into(), packs(&job.packs)?);
    if job.protocol.open > 0.0 {
        run.insert("strangers".into(), packs(&job.others)?);
    }
    if let Some(pack) = job.in_distribution {
        run.insert("in_distribution".into(), pack.digest()?.into());
    }
    let mut table = Table::new();
    table.insert("run".into(), run.into());
    let settings = match &job.method.pictures {
        Some(method) => method.settings(),
        None => job.method.for_stream(stream.samples.len()).to_toml(),
    };
    Ok(format!(
        "{}
{settings}",
        toml::to_string(&table).expect("plain values")
    ))
}
