//! Which pictures there are: files, folder trees, globs, lists, CSV tables, WebDataset archives.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ultta_formats::shown;

use crate::{Error, Result};

/// Endings of picture files.
pub const ENDINGS: [&str; 8] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"];

/// A picture that can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Its path, or its name in an archive after the archive's path.
    pub id: String,
    /// Its class where the source tells one: a folder's name, a column, a `.cls` file.
    pub class: Option<String>,
    place: Place,
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    File(PathBuf),
    Archive {
        path: Arc<PathBuf>,
        start: u64,
        len: u64,
    },
    /// Pictures may be here, but cannot be found: why.
    Broken(String),
}

impl Item {
    /// A file.
    pub fn file(path: impl Into<PathBuf>, class: Option<String>) -> Self {
        let path = path.into();
        Self { id: path.to_string_lossy().into_owned(), class, place: Place::File(path) }
    }

    /// A source that cannot be read: reported where its pictures would be.
    fn broken(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self {
            id: path.to_string_lossy().into_owned(),
            class: None,
            place: Place::Broken(reason.to_string()),
        }
    }

    /// Whether it stands for a source that cannot be read.
    pub fn is_broken(&self) -> bool {
        matches!(self.place, Place::Broken(_))
    }

    /// Its file, if it has one of its own.
    pub fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::File(path) => Some(path),
            _ => None,
        }
    }

    /// Its bytes; more than `limit` of them are refused.
    pub fn read(&self, limit: u64) -> Result<Vec<u8>> {
        let too_large =
            |len: u64| Error::Picture { reason: format!("{len} bytes are more than the limit of {limit}") };
        match &self.place {
            Place::Broken(reason) => Err(Error::picture(reason.clone())),
            Place::File(path) => {
                // Opening a pipe would wait for its writer.
                let metadata = fs::metadata(path).map_err(|e| Error::io("opening", path, e))?;
                if !metadata.is_file() {
                    return Err(Error::picture("expected a file, got a folder, pipe or device"));
                }
                let len = metadata.len();
                let file = File::open(path).map_err(|e| Error::io("opening", path, e))?;
                if len > limit {
                    return Err(too_large(len));
                }
                let mut bytes = Vec::with_capacity(len as usize);
                file.take(limit).read_to_end(&mut bytes).map_err(|e| Error::io("reading", path, e))?;
                Ok(bytes)
            }
            Place::Archive { path, start, len } => {
                if *len > limit {
                    return Err(too_large(*len));
                }
                let io = |e| Error::io("reading", path.as_path(), e);
                let mut file = File::open(path.as_path()).map_err(io)?;
                file.seek(SeekFrom::Start(*start)).map_err(io)?;
                let mut bytes = Vec::with_capacity(*len as usize);
                file.take(*len).read_to_end(&mut bytes).map_err(io)?;
                if (bytes.len() as u64) < *len {
                    return Err(Error::picture("the archive is cut short"));
                }
                Ok(bytes)
            }
        }
    }
}

/// Whether a name is that of a picture.
pub fn is_picture(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    ENDINGS.contains(&ending.as_str())
}

/// All pictures of these arguments, in a fixed order: `-` is a list of paths on standard input.
pub fn collect(arguments: &[String]) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for argument in arguments {
        let path = Path::new(argument);
        if argument == "-" {
            for line in std::io::stdin().lock().split(b'\n') {
                let line = line.map_err(|e| Error::io("reading", "standard input", e))?;
                let line = line.strip_suffix(b"\r").unwrap_or(&line);
                if !line.trim_ascii().is_empty() {
                    items.push(Item::file(path_of(line), None));
                }
            }
        } else if path.is_dir() {
            items.extend(tree(path)?);
        } else if path.is_file() {
            let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
            match ending.as_str() {
                "tar" => items.extend(archive(path)?),
                "csv" => items.extend(table(path)?),
                _ => items.push(Item::file(path, None)),
            }
        } else if argument.contains(['*', '?', '[']) {
            let paths = glob::glob(argument)
                .map_err(|e| Error::names("paths", format!("{argument:?} is no glob: {e}")))?;
            let before = items.len();
            for path in paths.flatten() {
                if path.is_dir() {
                    items.extend(tree(&path)?);
                } else if path.extension().is_some_and(|e| e == "tar") {
                    items.extend(archive(&path)?);
                } else if is_picture(&path) {
                    items.push(Item::file(path, None));
                }
            }
            if items.len() == before {
                return Err(Error::names("paths", format!("no picture matches {argument:?}")));
            }
        } else {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(Error::io("opening", path, source));
        }
    }
    Ok(items)
}

/// A path of any bytes, where the system has such.
fn path_of(bytes: &[u8]) -> PathBuf {
    #[cfg(unix)]
    return PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes));
    #[cfg(not(unix))]
    return String::from_utf8_lossy(bytes).into_owned().into();
}

/// The pictures under a folder, sorted by path. The first folder below it is the class.
pub fn tree(root: &Path) -> Result<Vec<Item>> {
    let mut files = Vec::new();
    let mut seen = std::collections::HashSet::new();
    walk(root, &mut seen, &mut files)?;
    files.sort();
    let item = |path: PathBuf| {
        let below = path.strip_prefix(root).unwrap_or(&path);
        let mut parts = below.components();
        let first = parts.next().map(|c| c.as_os_str().to_string_lossy().into_owned());
        let class = first.filter(|_| parts.next().is_some());
        Item::file(path, class)
    };
    Ok(files.into_iter().map(item).collect())
}

fn walk(
    folder: &Path,
    seen: &mut std::collections::HashSet<PathBuf>,
    files: &mut Vec<PathBuf>,
) -> Result<()> {
    // Links may lead in circles.
    let real = folder.canonicalize().map_err(|e| Error::io("opening", folder, e))?;
    if !seen.insert(real) {
        return Ok(());
    }
    let entries = fs::read_dir(folder).map_err(|e| Error::io("opening", folder, e))?;
    for entry in entries {
        let path = entry.map_err(|e| Error::io("reading", folder, e))?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if hidden {
            continue;
        }
        if path.is_dir() {
            walk(&path, seen, files)?;
        } else if is_picture(&path) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// A table with a column `path` (or `file`, `image`, `filename`) and maybe `label` (or `class`). Paths are relative
/// to the table.
pub fn table(path: &Path) -> Result<Vec<Item>> {
    let bad = |reason: String| Error::names("table", format!("{reason} ({})", shown(&path)));
    let mut reader = csv::Reader::from_path(path).map_err(|e| bad(e.to_string()))?;
    let header = reader.headers().map_err(|e| bad(e.to_string()))?.clone();
    let column =
        |names: &[&str]| header.iter().position(|h| names.contains(&h.trim().to_lowercase().as_str()));
    let file = column(&["path", "file", "image", "filename", "filepath"]).ok_or_else(|| {
        bad(format!("expected a column `path`, got {:?}", header.iter().collect::<Vec<_>>()))
    })?;
    let label = column(&["label", "class", "classname"]);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut items = Vec::new();
    for row in reader.records() {
        let row = row.map_err(|e| bad(e.to_string()))?;
        let class = label.and_then(|l| row.get(l)).map(|l| l.trim().to_string()).filter(|l| !l.is_empty());
        items.push(Item::file(folder.join(row.get(file).unwrap_or_default()), class));
    }
    Ok(items)
}

/// The pictures of a WebDataset archive: files that share a name up to their ending belong together, `.cls` or
/// `.cls.txt` is the class. What lies behind a damaged place is one item that cannot be read.
pub fn archive(path: &Path) -> Result<Vec<Item>> {
    let bad = |e: std::io::Error| Error::io("reading the archive", path, e);
    let file = File::open(path).map_err(|e| Error::io("opening", path, e))?;
    let mut archive = tar::Archive::new(file);
    let place = Arc::new(path.to_path_buf());
    // In the order of the archive; an ordered map only finds a sample's class.
    let mut order: Vec<(String, Item)> = Vec::new();
    let mut classes: BTreeMap<String, String> = BTreeMap::new();
    let mut damaged = None;
    for entry in archive.entries_with_seek().map_err(bad)? {
        let mut entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                damaged = Some(Item::broken(path, bad(error)));
                break;
            }
        };
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = entry.path().map_err(bad)?.to_string_lossy().into_owned();
        let base = name.rfind('/').map_or(0, |i| i + 1);
        let dot = name[base..].find('.').map_or(name.len(), |i| base + i);
        let (sample, ending) = (name[..dot].to_string(), name[dot..].trim_start_matches('.').to_lowercase());
        if ending == "cls" || ending == "cls.txt" {
            let mut text = Vec::new();
            entry.by_ref().take(1 << 12).read_to_end(&mut text).map_err(bad)?;
            classes.insert(sample, String::from_utf8_lossy(&text).trim().to_string());
        } else if ENDINGS.contains(&ending.rsplit('.').next().unwrap_or_default()) {
            let item = Item {
                id: format!("{}/{name}", path.display()),
                class: None,
                place: Place::Archive {
                    path: place.clone(),
                    start: entry.raw_file_position(),
                    len: entry.size(),
                },
            };
            order.push((sample, item));
        }
    }
    let with_class = |(sample, mut item): (String, Item)| {
        item.class = classes.get(&sample).cloned();
        item
    };
    Ok(order.into_iter().map(with_class).chain(damaged).collect())
}
