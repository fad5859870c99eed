//! Pictures on their way into features files: what `ultta encode` and `ultta suite` share. A run that is killed goes on
//! after the last part that was saved.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use indicatif::ProgressBar;
use ultta::{Features, Head};
use ultta_encode::dataset::Found;
use ultta_encode::encoder::encode_views;
use ultta_encode::pipeline::{self, Block, Options};
use ultta_encode::source::Item;
use ultta_encode::store::{Provenance, Store, Written, push_block};
use ultta_encode::{Encoder, Result};
use ultta_formats::shown;

use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::run::progress_bar;

/// How pictures are encoded into files.
pub struct Encoding<'a> {
    pub encoder: &'a dyn Encoder,
    pub options: Options,
    pub interrupt: &'a Interrupt,
    /// Pictures whose features are saved at a time.
    pub save_every: usize,
    /// Rows of a file at most.
    pub shard_rows: usize,
    /// Whether to stop at the first picture that cannot be read.
    pub strict: bool,
    /// Weak views of each picture, and the seed they are drawn by.
    pub views: usize,
    pub seed: u64,
    pub quiet: bool,
}

impl Encoding<'_> {
    /// Encodes the packs of a dataset, each into a folder of its own with the head beside it. What is there already
    /// stays. An interrupt is told by its exit code.
    pub fn dataset(&self, found: &Found, head: &Head, out: &Path) -> anyhow::Result<ExitCode> {
        for pack in &found.packs {
            let folder = out.join(&pack.name).join(model_folder(self.encoder));
            let file = folder.join("features.safetensors");
            if file.exists() {
                self.keep(&file, &folder.join("head.safetensors"), head)?;
                continue;
            }
            std::fs::create_dir_all(&folder).map_err(|source| ultta::Error::Io {
                doing: "making a folder",
                source,
                path: folder.clone(),
            })?;
            head.save(folder.join("head.safetensors"))?;
            let classes = found.classes.names.clone();
            let code = self.pack(&file, &pack.items, Some(&pack.labels), classes, &pack.name)?;
            if self.interrupt.came().is_some() {
                return Ok(code);
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// A pack that is there already: it must be of this encoder, and gets the head that was asked for.
    fn keep(&self, out: &Path, head_file: &Path, head: &Head) -> anyhow::Result<()> {
        let pack = ultta_eval::pack::Pack::open(out, None)?;
        if pack.metadata().get("encoder_digest").is_some_and(|digest| digest != self.encoder.digest()) {
            return usage(format!(
                "{}: is there already, made by another encoder; remove it, or give another --out",
                shown(&out)
            ));
        }
        if pack.file().views_each() != self.views {
            return usage(format!(
                "{}: is there already with {} views of each picture, not {}; remove it, or give another --out",
                shown(&out),
                pack.file().views_each(),
                self.views
            ));
        }
        let same = Head::load(head_file).is_ok_and(|there| there.digest() == head.digest());
        if !same {
            head.save(head_file)?;
        }
        // A head that was replaced is told in any case.
        if !self.quiet || !same {
            let renewed = if same { "" } else { "; its head was renewed" };
            writeln!(std::io::stdout(), "{}: is there already{renewed}", shown(&out))?;
        }
        Ok(())
    }

    /// Encodes one set of pictures into one features file.
    pub fn pack(
        &self,
        out: &Path,
        items: &[Item],
        labels: Option<&[usize]>,
        classes: Vec<String>,
        from: &str,
    ) -> anyhow::Result<ExitCode> {
        let provenance = Provenance {
            encoder: self.encoder.name().into(),
            encoder_digest: self.encoder.digest().into(),
            preprocess: self.encoder.preprocess().describe(),
            classes,
            source: from.into(),
            views: self.views,
        };
        let mut store = Store::open(out, self.encoder.dim(), provenance, items, labels, self.save_every)?;
        let done = store.done();
        if done > 0 {
            eprintln!("going on after {done} of {} pictures", items.len());
        }
        let bar = if self.quiet { ProgressBar::hidden() } else { progress_bar(items.len()) };
        bar.set_position(done as u64);
        let begun = Instant::now();
        let rest = labels.map(|labels| &labels[done..]);
        let mut strict = None;
        let options = Options { keep_pictures: self.views > 0, ..self.options };
        pipeline::run(&items[done..], self.encoder, &options, |block| {
            if self.interrupt.came().is_some() {
                return Ok(ControlFlow::Break(()));
            }
            for (item, row) in block.items.iter().zip(&block.rows) {
                if let Err(error) = row {
                    let message = format!("{}: {error}", shown(&item.id));
                    if self.strict {
                        strict = Some(message);
                        return Ok(ControlFlow::Break(()));
                    }
                    bar.suspend(|| eprintln!("warning: {message}"));
                }
            }
            push_block(&mut store, &block, rest, &self.views_of(&block, done)?)?;
            bar.inc(block.items.len() as u64);
            Ok(ControlFlow::Continue(()))
        })?;
        bar.finish_and_clear();
        if let Some(message) = strict {
            return usage(message);
        }
        if let Some(code) = self.interrupt.came() {
            store.flush()?;
            eprintln!(
                "warning: interrupted after {} of {} pictures; the same command goes on from there",
                store.done(),
                items.len()
            );
            return Ok(code);
        }
        let written = store.finish(self.shard_rows)?;
        if !self.quiet {
            report(&written, items.len(), items.len() - done, begun.elapsed().as_secs_f64())?;
        }
        if written.rows == 0 {
            return usage("none of the pictures could be read");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Views of the pictures of a block that could be read. They depend on the picture's place in the set, not on where
    /// a run was resumed.
    fn views_of(&self, block: &Block<'_>, done: usize) -> Result<Vec<Features<'static>>> {
        if self.views == 0 {
            return Ok(Vec::new());
        }
        let readable = block.rows.iter().enumerate().filter(|(_, row)| row.is_ok()).map(|(i, _)| i);
        let view = |(i, picture)| {
            let place = (done + block.start + i) as u64;
            encode_views(self.encoder, picture, self.views, view_seed(self.seed, place))
        };
        readable.zip(&block.pictures).map(view).collect()
    }
}

/// The seed of a picture's views, by its place.
pub fn view_seed(seed: u64, place: u64) -> u64 {
    seed ^ place.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// The folder that the packs of an encoder go to.
pub fn model_folder(encoder: &dyn Encoder) -> &str {
    encoder.name().trim_end_matches('/').rsplit('/').next().unwrap_or("encoder")
}

fn report(written: &Written, all: usize, encoded: usize, seconds: f64) -> anyhow::Result<()> {
    let files: Vec<String> = written.files.iter().map(|f| shown(&f)).collect();
    writeln!(
        std::io::stdout(),
        "{}: {} rows of {all} pictures, {:.1} pictures/s",
        files.join(", "),
        written.rows,
        encoded as f64 / seconds.max(1e-9)
    )?;
    if !written.unreadable.is_empty() {
        let n = written.unreadable.len();
        eprintln!(
            "warning: {n} of {all} pictures could not be read; the table beside the features lists them"
        );
    }
    Ok(())
}
