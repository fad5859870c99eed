//! Folders of pictures as datasets: encoded once for methods on features, kept for those that need the pictures.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use base64::Engine as _;
use rayon::prelude::*;
use ultta::Head;
use ultta_encode::config::Preprocess;
use ultta_encode::decode::{Limits, Picture, decode};
use ultta_encode::encoder::encode_views;
use ultta_encode::flops::image_forward;
use ultta_encode::hub::Hub;
use ultta_encode::models::full_name;
use ultta_encode::pipeline::for_views;
use ultta_encode::preprocess::preprocess;
use ultta_encode::prompts::{self, Classes, Templates};
use ultta_encode::source::{self, Item};
use ultta_encode::store::{self, Provenance, Store};
use ultta_encode::thumbnail::thumbnail;
use ultta_encode::{Clip, Encoder, tiny};
use ultta_eval::dataset::Dataset;
use ultta_eval::pictures::{Encoding, Pictures, peak_bytes, reset_peak};
use ultta_formats::shown;

use crate::encoder::{EncoderArgs, HeadArgs, build_head};
use crate::encoding::view_seed;
use crate::failure::usage;

/// Preprocessed pictures are kept in memory up to this many bytes; beyond, files are read again.
const KEEP: usize = 1 << 30;
/// Pictures decoded and encoded at a time.
const BLOCK: usize = 64;
/// Pictures of the source that are shown to methods that ask for some.
const SOURCE: usize = 2048;

struct Folder {
    items: Vec<Item>,
    preprocess: Preprocess,
    limits: Limits,
    kept: Option<Vec<f32>>,
    encoding: Encoding,
}

fn picture(item: &Item, limits: &Limits) -> ultta_encode::Result<Picture> {
    decode(&item.read(limits.bytes)?, limits)
}

fn read(item: &Item, config: &Preprocess, limits: &Limits) -> ultta_encode::Result<Vec<f32>> {
    preprocess(&picture(item, limits)?, config)
}

impl Pictures for Folder {
    fn read(&self, rows: &[usize]) -> ultta::Result<Vec<f32>> {
        let len = 3 * self.preprocess.size * self.preprocess.size;
        let mut pixels = Vec::with_capacity(rows.len() * len);
        for &row in rows {
            match &self.kept {
                Some(kept) => pixels.extend_from_slice(&kept[row * len..][..len]),
                None => {
                    let picture = read(&self.items[row], &self.preprocess, &self.limits);
                    pixels.extend(picture.map_err(|e| ultta::Error::Format {
                        reason: e.to_string(),
                        path: self.items[row].id.clone().into(),
                    })?);
                }
            }
        }
        Ok(pixels)
    }

    fn encoding(&self) -> Encoding {
        self.encoding
    }

    fn thumbnail(&self, row: usize) -> Option<String> {
        let small = thumbnail(&picture(self.items.get(row)?, &self.limits).ok()?).ok()?;
        Some(base64::engine::general_purpose::STANDARD.encode(small))
    }
}

/// Views of each picture, and the seed they are drawn by.
#[derive(Clone, Copy, Default)]
pub struct Views {
    pub each: usize,
    pub seed: u64,
}

/// Encodes a folder of class folders; features and head go to `<out>/pictures/<name>/`.
pub fn open(
    folder: &Path,
    encoder: &dyn Encoder,
    flags: (&EncoderArgs, &HeadArgs),
    flops: f64,
    views: Views,
    out: &Path,
    quiet: bool,
) -> anyhow::Result<Dataset> {
    let items = source::tree(folder)?;
    if items.is_empty() {
        return usage(format!("--images: no pictures in {}", shown(&folder)));
    }
    let options = flags.0.options();
    let head = if flags.1.given() {
        flags.1.build(encoder, &options, quiet)?
    } else {
        let templates = Templates::named(&flags.1.templates)?;
        build_head(encoder, &Classes::from_folder(folder)?, &templates, true, quiet)?
    };
    let labels = labels_of(&items, &head)?;
    let name = std::path::absolute(folder)?;
    let name = name.file_name().map_or("pictures".into(), |n| n.to_string_lossy().into_owned());
    let place = out.join("pictures").join(&name);
    std::fs::create_dir_all(&place).with_context(|| format!("making a folder ({})", shown(&place)))?;
    let features = place.join("features.safetensors");
    let provenance = Provenance {
        encoder: encoder.name().into(),
        encoder_digest: encoder.digest().into(),
        preprocess: encoder.preprocess().describe(),
        classes: head.classes().to_vec(),
        source: folder.display().to_string(),
        views: views.each,
    };
    let config = encoder.preprocess().clone();
    let keep = items.len() * 3 * config.size * config.size * size_of::<f32>() <= KEEP;
    let parts = place.join("features.safetensors.parts");
    if parts.exists() {
        // What an interrupted run left: it is encoded afresh.
        std::fs::remove_dir_all(&parts).with_context(|| format!("removing ({})", shown(&parts)))?;
    }
    reset_peak();
    let encoded = encode(&items, encoder, &options.limits, views, keep)?;
    let Encoded { good, rows, view_rows, kept, seconds } = encoded;
    if good.is_empty() {
        return usage(format!("--images: no picture in {} could be read", shown(&folder)));
    }
    let peak = peak_bytes().unwrap_or(0);
    let (items, labels): (Vec<Item>, Vec<usize>) =
        good.into_iter().map(|i| (items[i].clone(), labels[i])).unzip();
    let mut store = Store::open(&features, encoder.dim(), provenance, &items, Some(&labels), items.len())?;
    for (i, row) in rows.chunks_exact(encoder.dim()).enumerate() {
        let width = views.each * encoder.dim();
        store.push(&items[i], Some(labels[i]), Ok((row, &view_rows[i * width..][..width])))?;
    }
    store.finish(usize::MAX)?;
    head.save(place.join("head.safetensors"))?;
    let mut dataset = Dataset::open(&features, &place.join("head.safetensors"))?;
    dataset.name = name;
    let encoding = Encoding { flops, seconds: seconds / items.len() as f64, peak_bytes: peak };
    let kept = keep.then_some(kept);
    dataset.pictures =
        Some(Arc::new(Folder { items, preprocess: config, limits: options.limits, kept, encoding }));
    Ok(dataset)
}

/// The class of a picture: that of its folder, if it is one of the head's.
pub fn label_of(item: &Item, head: &Head) -> Option<usize> {
    let plain = |name: &str| prompts::readable(name).to_lowercase();
    let class = plain(item.class.as_deref()?);
    head.classes().iter().position(|name| plain(name) == class)
}

/// The class of each picture: that of its folder.
fn labels_of(items: &[Item], head: &Head) -> anyhow::Result<Vec<usize>> {
    let mut labels = Vec::new();
    for item in items {
        let class = item
            .class
            .as_deref()
            .with_context(|| format!("--images: expected a folder per class, but {} is in none", item.id))?;
        match label_of(item, head) {
            Some(label) => labels.push(label),
            None => return usage(format!("--images: the folder {class:?} is none of the classes")),
        }
    }
    Ok(labels)
}

/// Pictures that were encoded.
#[derive(Default)]
struct Encoded {
    /// Which could be read.
    good: Vec<usize>,
    /// Features of those, and of their views.
    rows: Vec<f32>,
    view_rows: Vec<f32>,
    /// Their pixels, where they are kept.
    kept: Vec<f32>,
    /// What the encoder took.
    seconds: f64,
}

/// Encodes pictures, block by block; one that cannot be read is told and left out.
fn encode(
    items: &[Item],
    encoder: &dyn Encoder,
    limits: &Limits,
    views: Views,
    keep: bool,
) -> anyhow::Result<Encoded> {
    let mut encoded = Encoded::default();
    for (start, block) in items.chunks(BLOCK).enumerate().map(|(i, b)| (i * BLOCK, b)) {
        let prepared = |item: &Item| {
            let picture = picture(item, limits)?;
            Ok((preprocess(&picture, encoder.preprocess())?, picture))
        };
        let pictures: Vec<ultta_encode::Result<_>> = block.par_iter().map(prepared).collect();
        let mut pixels = Vec::new();
        for (i, picture) in pictures.into_iter().enumerate() {
            match picture {
                Ok((own, picture)) => {
                    pixels.extend(own);
                    encoded.good.push(start + i);
                    if views.each > 0 {
                        let seed = view_seed(views.seed, (start + i) as u64);
                        let made = encode_views(encoder, &for_views(picture, encoder)?, views.each, seed)?;
                        encoded.view_rows.extend_from_slice(made.data());
                    }
                }
                Err(error) => eprintln!("warning: {}: {error}", shown(&block[i].id)),
            }
        }
        if !pixels.is_empty() {
            let begun = Instant::now();
            encoded.rows.extend_from_slice(encoder.images(&pixels)?.data());
            encoded.seconds += begun.elapsed().as_secs_f64();
        }
        if keep {
            encoded.kept.extend(pixels);
        }
    }
    Ok(encoded)
}

/// Puts the pictures of a pack that `ultta encode` wrote behind its rows: the table beside the features names them.
pub fn attach(
    dataset: &mut Dataset,
    encoder: &dyn Encoder,
    limits: Limits,
    encoding: Encoding,
) -> anyhow::Result<()> {
    let table = store::table_of(dataset.pack.path());
    let mut items = Vec::new();
    let mut reader = csv::Reader::from_path(&table).with_context(|| shown(&table))?;
    for record in reader.records() {
        let record = record.with_context(|| shown(&table))?;
        // The first field is the row, the second the path; what could not be read has no row.
        if let (Some(row), Some(path)) = (record.get(0), record.get(1))
            && !row.is_empty()
        {
            items.push(Item::file(path, None));
        }
    }
    if items.len() != dataset.pack.rows() {
        let (rows, n) = (dataset.pack.rows(), items.len());
        return usage(format!("{}: expected {rows} rows as in the features, got {n}", shown(&table)));
    }
    let preprocess = encoder.preprocess().clone();
    dataset.pictures = Some(Arc::new(Folder { items, preprocess, limits, kept: None, encoding }));
    Ok(())
}

/// Operations of the image tower, where its sizes are known.
pub fn flops(model: &str) -> f64 {
    if model == tiny::NAME {
        return image_forward(&tiny::config());
    }
    let folder = if Path::new(model).is_dir() {
        Some(model.into())
    } else {
        Hub::from_environment().ok().and_then(|hub| hub.cached(full_name(model)))
    };
    match folder.map(Clip::open) {
        Some(Ok(clip)) => image_forward(clip.config()),
        _ => 0.0,
    }
}

/// Some pictures of a folder, spread evenly, as methods are shown them before the stream.
pub fn source_pixels(folder: &Path, encoder: &dyn Encoder, limits: &Limits) -> anyhow::Result<Vec<f32>> {
    let items = source::tree(folder)?;
    if items.is_empty() {
        return usage(format!("--source: no pictures in {}", shown(&folder)));
    }
    let n = items.len().min(SOURCE);
    let mut pixels = Vec::new();
    for i in 0..n {
        let item = &items[i * items.len() / n];
        match read(item, encoder.preprocess(), limits) {
            Ok(picture) => pixels.extend(picture),
            Err(error) => eprintln!("warning: {}: {error}", shown(&item.id)),
        }
    }
    if pixels.is_empty() {
        return usage(format!("--source: none of the pictures in {} can be read", shown(&folder)));
    }
    Ok(pixels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_the_built_in_encoder_are_known() {
        assert!(flops(tiny::NAME) > 1e5);
        assert_eq!(flops("no-such/model"), 0.0, "what is not at hand is not known");
    }
}
