//! Datasets as people have them on disk, made ready for a suite: found, encoded once, opened with their pictures.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use ultta::{Head, Scores};
use ultta_encode::Encoder;
use ultta_encode::dataset::{Dataset as Layout, Found};
use ultta_encode::pipeline::Options;
use ultta_eval::dataset::{Dataset, name_all};
use ultta_eval::method::Method;
use ultta_eval::pictures::Encoding as Cost;
use ultta_eval::suite::{Forward, methods_of};
use ultta_eval::words::counted;

use crate::encoder::build_head;
use crate::encoding::{Encoding, model_folder};
use crate::interrupt::Interrupt;
use crate::pictures;

/// What a suite asks for.
pub struct Asked<'a> {
    pub root: &'a Path,
    /// Pictures of each pack; all without.
    pub sample: Option<usize>,
    /// Weak views of each picture.
    pub views: usize,
    pub templates: &'a str,
    pub out: &'a Path,
    pub encoder: &'a dyn Encoder,
    pub options: Options,
    pub forward: &'a Forward,
    pub interrupt: &'a Interrupt,
}

/// Datasets that were found, by name.
pub struct Prepared<'a> {
    asked: Asked<'a>,
    found: BTreeMap<&'static str, Found>,
    /// The head of each dataset, once it was built.
    heads: BTreeMap<&'static str, OnceCell<Head>>,
}

/// Pictures per measured step of a method that changes the encoder.
const TRIED: usize = 4;

impl<'a> Prepared<'a> {
    /// Looks for datasets by the names of their folders: `OfficeHome`, `office_home` and `office-home` are one.
    pub fn find(asked: Asked<'a>, names: &[&'static str]) -> anyhow::Result<Self> {
        let plain = |name: &str| -> String {
            name.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase()
        };
        let folders: Vec<PathBuf> = std::fs::read_dir(asked.root)
            .map_err(|source| ultta::Error::Io { doing: "opening", source, path: asked.root.into() })?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect();
        let (mut found, mut heads) = (BTreeMap::new(), BTreeMap::new());
        for &name in names {
            let layout = Layout::named(name)?;
            let own = |path: &&PathBuf| {
                let folder = plain(&path.file_name().unwrap_or_default().to_string_lossy());
                layout.folders().any(|known| plain(known) == folder)
            };
            let Some(folder) = folders.iter().find(own) else { continue };
            let mut dataset = match layout.open(folder) {
                Ok(dataset) => dataset,
                // The other datasets can do without it.
                Err(reason) => {
                    eprintln!("warning: {name} is taken as absent: {reason}");
                    continue;
                }
            };
            for warning in dataset.warnings.iter().filter(|_| asked.sample.is_none()) {
                eprintln!("warning: {warning}");
            }
            if let Some(n) = asked.sample {
                dataset.packs.iter_mut().for_each(|pack| pack.thin(n));
            }
            found.insert(name, dataset);
            heads.insert(name, OnceCell::new());
        }
        Ok(Self { asked, found, heads })
    }

    /// How many pictures there are.
    pub fn pictures(&self) -> usize {
        self.found.values().flat_map(|f| &f.packs).map(|p| p.items.len()).sum()
    }

    fn folder(&self) -> PathBuf {
        self.asked.out.join("packs")
    }

    fn features(&self, pack: &str) -> PathBuf {
        self.folder().join(pack).join(model_folder(self.asked.encoder)).join("features.safetensors")
    }

    fn head(&self, name: &str) -> anyhow::Result<&Head> {
        let cell = &self.heads[name];
        if let Some(head) = cell.get() {
            return Ok(head);
        }
        let templates = Layout::named(name)?.templates(self.asked.templates)?;
        let head = build_head(self.asked.encoder, &self.found[name].classes, &templates, true, false)?;
        Ok(cell.get_or_init(|| head))
    }

    /// Says how long it will take, from passes measured here: a forward pass of the encoder, and a step of every method
    /// that changes it.
    pub fn estimate(&self, changing: &[Method], tables: &[&str], long: usize) -> anyhow::Result<()> {
        let left: usize = self
            .found
            .values()
            .flat_map(|f| &f.packs)
            .filter(|pack| !self.features(&pack.name).exists())
            .map(|pack| pack.items.len())
            .sum();
        // A picture and each of its views is a pass.
        let each = self.asked.forward.seconds * (1 + self.asked.views) as f64;
        let encoding = left as f64 * each;
        let views = match self.asked.views {
            0 => String::new(),
            n => format!(" with {}", counted(n, "view")),
        };
        eprintln!(
            "{} datasets, {} pictures; {left} to encode{views} at {:.0} ms each: {}",
            self.found.len(),
            self.pictures(),
            1e3 * each,
            duration(encoding)
        );
        let mut total = encoding;
        let Some(&first) = self.found.keys().next() else {
            eprintln!("none of the datasets is there");
            return Ok(());
        };
        let main = if self.found.contains_key("domainnet") { "domainnet" } else { first };
        let of = |name: &str| -> usize {
            self.found.get(name).map_or(0, |f| f.packs.iter().map(|p| p.items.len()).sum())
        };
        for method in changing {
            // Which streams each table asks for; a run that two tables share is made once.
            let mut samples = 0;
            let wants =
                |table: &str| tables.contains(&table) && methods_of(table).contains(&method.name.as_str());
            if wants("per-dataset") {
                samples += self.pictures();
            } else if wants("domainnet") {
                samples += of("domainnet");
            }
            if wants("efficiency") {
                samples += of(main);
            }
            if wants("stability") {
                samples += long;
            }
            if samples == 0 {
                continue;
            }
            let each = step_seconds(method, self.asked.encoder, self.head(first)?)?;
            let time = samples as f64 * each;
            total += time;
            eprintln!("{}: {samples} samples at {:.0} ms each: {}", method.name, 1e3 * each, duration(time));
        }
        eprintln!(
            "in all about {}, methods on features not counted; what is there already is not made again",
            duration(total)
        );
        Ok(())
    }

    /// Encodes what is not encoded yet. An interrupt is told by its exit code.
    pub fn encode(&self) -> anyhow::Result<Option<ExitCode>> {
        let encoding = Encoding {
            encoder: self.asked.encoder,
            options: self.asked.options,
            interrupt: self.asked.interrupt,
            save_every: 256,
            shard_rows: usize::MAX,
            strict: false,
            views: self.asked.views,
            seed: 0,
            quiet: true,
        };
        for (name, found) in &self.found {
            let n: usize = found.packs.iter().map(|p| p.items.len()).sum();
            eprintln!("{name}: {} in {}", counted(n, "picture"), counted(found.packs.len(), "pack"));
            let code = encoding.dataset(found, self.head(name)?, &self.folder())?;
            if self.asked.interrupt.came().is_some() {
                return Ok(Some(code));
            }
        }
        Ok(None)
    }

    /// The packs of a dataset with their pictures; none if it was not found.
    pub fn open(&self, name: &str) -> ultta::Result<Vec<Dataset>> {
        let Some(found) = self.found.get(name) else { return Ok(Vec::new()) };
        let cost =
            Cost { flops: self.asked.forward.flops, seconds: self.asked.forward.seconds, peak_bytes: 0 };
        let mut datasets = Vec::new();
        for pack in &found.packs {
            let features = self.features(&pack.name);
            let mut dataset = Dataset::open(&features, &features.with_file_name("head.safetensors"))?;
            pictures::attach(&mut dataset, self.asked.encoder, self.asked.options.limits, cost)
                .map_err(|e| ultta::Error::Format { reason: format!("{e:#}"), path: features.clone() })?;
            datasets.push(dataset);
        }
        name_all(&mut datasets)?;
        Ok(datasets)
    }
}

/// Seconds of a forward pass per picture, the second of two on a grey picture.
pub fn forward_seconds(encoder: &dyn Encoder) -> anyhow::Result<f64> {
    let side = encoder.preprocess().size;
    let pixels = vec![0.0; TRIED * 3 * side * side];
    encoder.images(&pixels)?;
    let begun = Instant::now();
    encoder.images(&pixels)?;
    Ok(begun.elapsed().as_secs_f64() / TRIED as f64)
}

/// Seconds per picture of a method that changes the encoder.
fn step_seconds(method: &Method, encoder: &dyn Encoder, head: &Head) -> anyhow::Result<f64> {
    let Some(pictures) = &method.pictures else { return Ok(0.0) };
    let side = encoder.preprocess().size;
    let n = pictures.batch().clamp(1, TRIED);
    let pixels: Vec<f32> =
        (0..n * 3 * side * side).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
    let features = encoder.images(&pixels)?;
    let zero_shot: Scores = head.zero_shot(&features)?;
    let mut session = pictures.start(&Arc::new(head.clone()))?;
    let begun = Instant::now();
    session.step(&pixels, &zero_shot)?;
    Ok(begun.elapsed().as_secs_f64() / n as f64)
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}
