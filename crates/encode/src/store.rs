//! Features on their way to a file: parts that survive a kill, then one file (or several, for large sets).
//!
//! ```text
//! features.safetensors.parts/00000000.safetensors …    while it runs
//! features.safetensors (or features-00000-of-00004.safetensors …), features.csv    when it is done
//! ```

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use ultta::Features;
use ultta_formats::numbers::Number;
use ultta_formats::shown;
use ultta_formats::{Aside, Dtype, Tensors, map_file, tensors, write_atomically};

use crate::source::Item;
use crate::{Error, Result};

/// What all rows of a file have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The encoder's name.
    pub encoder: String,
    /// Its digest.
    pub encoder_digest: String,
    /// How pictures became input.
    pub preprocess: String,
    /// Class names in label order; empty without labels.
    pub classes: Vec<String>,
    /// Where the pictures came from.
    pub source: String,
    /// Weak views of each picture that go beside its row.
    #[serde(default)]
    pub views: usize,
}

/// What came of one picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    id: String,
    label: Option<usize>,
    /// Why there is no row.
    error: Option<String>,
}

/// Items of a part, and the rows of those that could be read.
#[derive(Serialize, Deserialize)]
struct PartInfo {
    start: usize,
    provenance: Provenance,
    entries: Vec<Entry>,
}

/// Writes features part by part.
pub struct Store {
    out: PathBuf,
    parts: PathBuf,
    dim: usize,
    provenance: Provenance,
    /// Items per part.
    part_items: usize,
    /// Items that are in parts.
    done: usize,
    entries: Vec<Entry>,
    rows: Vec<f32>,
    views: Vec<f32>,
}

/// What a store came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// Feature rows.
    pub rows: usize,
    /// Pictures that could not be read: name and reason.
    pub unreadable: Vec<(String, String)>,
    /// The files of features.
    pub files: Vec<PathBuf>,
}

/// How the table beside the features begins.
const TABLE_HEADER: [&str; 4] = ["row", "path", "label", "error"];

/// The table beside a features file.
pub fn table_of(out: &Path) -> PathBuf {
    out.with_extension("csv")
}

/// Refuses an output that would not be a features file, or whose table would replace a file of someone else.
pub fn check_out(out: &Path) -> Result<()> {
    let refuse = |reason: &str, path: &Path| Err(Error::names("out", format!("{reason} ({})", shown(&path))));
    if out.extension().is_none_or(|ending| ending != "safetensors") {
        return refuse("expected a name that ends in .safetensors", out);
    }
    if out.is_dir() {
        return refuse("expected a file to write, got a folder", out);
    }
    let table = table_of(out);
    if !table.exists() {
        return Ok(());
    }
    let mut first = String::new();
    if table.is_file() {
        let file = File::open(&table).map_err(|e| Error::io("opening", &table, e))?;
        // What cannot be read as text is not ours either.
        let _ = BufReader::new(file.take(1 << 10)).read_line(&mut first);
    }
    if first.trim_end() == TABLE_HEADER.join(",") {
        Ok(())
    } else {
        refuse("the table of rows goes here, but this file is another; give another name", &table)
    }
}

/// Rows of a part that go into one shard.
struct Piece {
    part: PathBuf,
    rows: Range<usize>,
    labels: Vec<Option<usize>>,
}

impl Store {
    /// Begins, or goes on where an earlier run with the same encoder and pictures was stopped.
    pub fn open(
        out: &Path,
        dim: usize,
        provenance: Provenance,
        items: &[Item],
        labels: Option<&[usize]>,
        part_items: usize,
    ) -> Result<Self> {
        check_out(out)?;
        let mut name = out.as_os_str().to_owned();
        name.push(".parts");
        let parts = PathBuf::from(name);
        fs::create_dir_all(&parts).map_err(|e| Error::io("making a folder", &parts, e))?;
        let mut store = Self {
            out: out.to_owned(),
            parts,
            dim,
            provenance,
            part_items: part_items.max(1),
            done: 0,
            entries: Vec::new(),
            rows: Vec::new(),
            views: Vec::new(),
        };
        while store.done < items.len() {
            let path = store.part(store.done);
            if !path.exists() {
                break;
            }
            let (info, _) = read_part(&path)?;
            let same = info.provenance == store.provenance
                && info.start == store.done
                && info.entries.len() <= items.len() - store.done
                && info.entries.iter().zip(&items[store.done..]).enumerate().all(|(i, (entry, item))| {
                    entry.id == item.id && entry.label == labels.map(|l| l[store.done + i])
                });
            if !same || info.entries.is_empty() {
                return Err(Error::model(
                    &store.parts,
                    "an unfinished run over other pictures or with another encoder is here; finish it, or remove it",
                ));
            }
            store.done += info.entries.len();
        }
        Ok(store)
    }

    fn part(&self, start: usize) -> PathBuf {
        self.parts.join(format!("{start:08}.safetensors"))
    }

    /// How many items an earlier run has finished.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Takes in what came of the next picture: its row and its views, one after another.
    pub fn push(
        &mut self,
        item: &Item,
        label: Option<usize>,
        row: Result<(&[f32], &[f32]), String>,
    ) -> Result<()> {
        let error = match row {
            Ok((row, views)) => {
                let (expected, got) = (self.provenance.views * self.dim, views.len());
                if got != expected {
                    return Err(ultta::Error::Shape {
                        what: ultta::What::Other("views of a picture"),
                        expected,
                        got,
                    }
                    .into());
                }
                self.rows.extend_from_slice(row);
                self.views.extend_from_slice(views);
                None
            }
            Err(reason) => Some(reason),
        };
        self.entries.push(Entry { id: item.id.clone(), label, error });
        if self.entries.len() >= self.part_items { self.flush() } else { Ok(()) }
    }

    /// Writes what is not in a part yet.
    pub fn flush(&mut self) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let info = PartInfo {
            start: self.done,
            provenance: self.provenance.clone(),
            entries: std::mem::take(&mut self.entries),
        };
        let text = serde_json::to_string(&info).map_err(|e| Error::model(&self.parts, e.to_string()))?;
        let (rows, views) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.views));
        let shape = [rows.len() / self.dim, self.provenance.views, self.dim];
        let header = header(&shape, None, &[("part", &text)]);
        let bytes = [header, f32::encode(&rows), f32::encode(&views)].concat();
        write_atomically(&self.part(self.done), &bytes)?;
        self.done += info.entries.len();
        Ok(())
    }

    /// Puts the parts together: one file of features, or several of at most `shard_rows`; and a table of all
    /// pictures beside them. The parts are removed.
    pub fn finish(mut self, shard_rows: usize) -> Result<Written> {
        self.flush()?;
        let mut parts = Vec::new();
        let mut written = Written { rows: 0, unreadable: Vec::new(), files: Vec::new() };
        let table = table_of(&self.out);
        let mut list = Vec::new();
        {
            let mut writer = csv::Writer::from_writer(&mut list);
            let bad = |e: csv::Error| Error::io("writing", &table, e.into());
            writer.write_record(TABLE_HEADER).map_err(bad)?;
            let mut start = 0;
            while start < self.done {
                let path = self.part(start);
                let (info, rows) = read_part(&path)?;
                let mut labels = Vec::new();
                for entry in &info.entries {
                    let (row, error) = match &entry.error {
                        None => {
                            labels.push(entry.label);
                            (written.rows.to_string(), "")
                        }
                        Some(error) => {
                            written.unreadable.push((entry.id.clone(), error.clone()));
                            (String::new(), error.as_str())
                        }
                    };
                    written.rows += usize::from(entry.error.is_none());
                    let label = entry.label.map(|l| l.to_string()).unwrap_or_default();
                    writer.write_record([&row, &entry.id, &label, error]).map_err(bad)?;
                }
                debug_assert_eq!(rows, labels.len());
                parts.push((path, labels));
                start += info.entries.len();
            }
            writer.flush().map_err(|e| Error::io("writing", &table, e))?;
        }
        // Shards are lists of pieces of parts, so that nothing needs to be held in memory.
        let mut shards: Vec<Vec<Piece>> = vec![vec![]];
        let mut room = shard_rows.max(1);
        for (part, labels) in parts {
            let mut start = 0;
            while start < labels.len() {
                if room == 0 {
                    shards.push(vec![]);
                    room = shard_rows.max(1);
                }
                let rows = start..labels.len().min(start + room);
                room -= rows.len();
                start = rows.end;
                let piece = Piece { part: part.clone(), labels: labels[rows.clone()].to_vec(), rows };
                shards.last_mut().expect("there is one").push(piece);
            }
        }
        // The table comes first: who finds the features finds it, too, even after a kill in between.
        write_atomically(&table, &list)?;
        let n = shards.len();
        for (i, shard) in shards.iter().enumerate() {
            let path = match n {
                1 => self.out.clone(),
                _ => {
                    let stem = self.out.file_stem().unwrap_or_default().to_string_lossy();
                    self.out.with_file_name(format!("{stem}-{i:05}-of-{n:05}.safetensors"))
                }
            };
            self.write_shard(&path, shard)?;
            written.files.push(path);
        }
        fs::remove_dir_all(&self.parts).map_err(|e| Error::io("removing", &self.parts, e))?;
        Ok(written)
    }

    fn write_shard(&self, path: &Path, pieces: &[Piece]) -> Result<()> {
        let io = |e| Error::io("writing", path, e);
        let rows: usize = pieces.iter().map(|piece| piece.rows.len()).sum();
        let labelled = pieces.iter().flat_map(|piece| &piece.labels).all(Option::is_some) && rows > 0;
        let classes = serde_json::to_string(&self.provenance.classes).unwrap_or_default();
        let p = &self.provenance;
        let mut metadata = vec![
            ("encoder", p.encoder.as_str()),
            ("encoder_digest", &p.encoder_digest),
            ("preprocess", &p.preprocess),
            ("source", &p.source),
        ];
        if !p.classes.is_empty() {
            metadata.push(("classes", &classes));
        }
        let mut out = Aside::create(path)?;
        let shape = [rows, p.views, self.dim];
        out.write_all(&header(&shape, labelled.then_some(rows), &metadata)).map_err(io)?;
        let mut copy = |name: &str, row: usize| -> Result<()> {
            for Piece { part, rows, .. } in pieces {
                let bytes = map_file(part)?;
                out.write_all(&data(&bytes, part, name)?[rows.start * row..rows.end * row]).map_err(io)?;
            }
            Ok(())
        };
        let row = self.dim * size_of::<f32>();
        copy("features", row)?;
        if p.views > 0 {
            copy("views", p.views * row)?;
        }
        if labelled {
            for label in pieces.iter().flat_map(|piece| &piece.labels).flatten() {
                out.write_all(&(*label as i64).to_le_bytes()).map_err(io)?;
            }
        }
        Ok(out.commit()?)
    }
}

/// The beginning of a safetensors file with `features` and, maybe, `views` and `labels`, in this order. The shape is
/// rows, views of each, dimension.
fn header(&[rows, each, dim]: &[usize; 3], labels: Option<usize>, metadata: &[(&str, &str)]) -> Vec<u8> {
    let metadata = metadata.iter().map(|&(k, v)| (k.to_string(), v.to_string())).collect();
    let (shape, views, labels) = ([rows, dim], [rows, each, dim], labels.map(|n| [n]));
    let features = ("features", Dtype::F32, &shape[..]);
    let views = (each > 0).then_some(("views", Dtype::F32, &views[..]));
    let labels = labels.as_ref().map(|shape| ("labels", Dtype::I64, &shape[..]));
    tensors::header([features].into_iter().chain(views).chain(labels), &metadata)
}

/// The rows of a part, or its views, as bytes.
fn data<'a>(bytes: &'a [u8], path: &Path, name: &str) -> Result<&'a [u8]> {
    let tensors = Tensors::read(bytes).map_err(|e| e.at(path))?;
    Ok(&bytes[tensors.need(name).map_err(|e| e.at(path))?.bytes.clone()])
}

/// A part's entries and its number of rows.
fn read_part(path: &Path) -> Result<(PartInfo, usize)> {
    let bad = |reason: String| Error::model(path, format!("not a part of an unfinished run: {reason}"));
    let part = Tensors::read(&map_file(path)?).map_err(|e| bad(e.to_string()))?;
    let text = part.metadata.get("part").map_or("", String::as_str);
    let info = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    let features = part.need("features").map_err(|e| bad(e.to_string()))?;
    let rows = features.shape.first().ok_or_else(|| bad("`features` is no matrix".into()))?;
    Ok((info, *rows))
}

/// Rows of a block as they go into a store. `views` holds the views of each row that could be read, in their order;
/// empty where none are asked for.
pub fn push_block(
    store: &mut Store,
    block: &crate::pipeline::Block<'_>,
    labels: Option<&[usize]>,
    views: &[Features<'static>],
) -> Result<()> {
    let features: &Features<'_> = &block.features;
    for (i, (item, row)) in block.items.iter().zip(&block.rows).enumerate() {
        let label = labels.map(|l| l[block.start + i]);
        let row = match row {
            Ok(row) => Ok((features.row(*row), views.get(*row).map_or(&[][..], |views| views.data()))),
            Err(error) => Err(error.to_string()),
        };
        store.push(item, label, row)?;
    }
    Ok(())
}
