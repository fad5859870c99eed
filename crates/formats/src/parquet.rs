//! Parquet as a features file: a column `features` of lists of numbers, and `labels`, `learn` and `times` beside it.
//!
//! Rows of a Parquet file lie packed in pages and cannot be read one by one, as orders and views of a stream ask for. So the file
//! is unpacked once, a few rows at a time: into memory where it is small, else into a temporary file that is mapped. What comes
//! out is a safetensors file, and everything that is checked there is checked here.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::schema::types::ColumnDescriptor;
use safetensors::Dtype;

use crate::features::Bytes;
use crate::map::map;
use crate::numbers::{FLOATS, is_float};
use crate::tensors::{Strings, header};
use crate::{Error, Problem, Result};

mod pages;
use pages::Pages;

/// Numbers that are decoded at once.
const AT_ONCE: usize = 1 << 20;

/// A column may hold this many numbers, and as many more for each byte of the file: a few bytes can say "a billion times
/// zero", and whoever writes rows of numbers needs more bytes than that.
const NUMBERS: u64 = 1 << 22;
const NUMBERS_PER_BYTE: u64 = 2500;

/// Up to this many bytes of numbers are unpacked into memory.
const IN_MEMORY: usize = 256 << 20;

/// What may stand beside the rows, one value for each.
const BESIDE: [&str; 3] = ["labels", "learn", "times"];

/// The file as the bytes of a safetensors file. The crate that reads Parquet panics on some files whose parts do not fit
/// each other; such a file is broken like any other.
pub(crate) fn unpack(path: &Path) -> Result<Bytes> {
    catch_unwind(|| unpack_sound(path))
        .unwrap_or_else(|_| Err(broken("its parts do not fit each other").at(path)))
}

fn unpack_sound(path: &Path) -> Result<Bytes> {
    let table = Table::open(path)?;
    let features = table.need("features")?;
    if !is_float(features.dtype) {
        return Err(table.problem(features.dtype_problem(FLOATS)));
    }
    let dim = table.width(&features)?;
    let too_large = || table.broken("it says that it has more rows than memory could address");
    let size =
        table.rows.checked_mul(dim).and_then(|n| n.checked_mul(features.bytes())).ok_or_else(too_large)?;
    let mut beside = Vec::new();
    for name in BESIDE {
        if let Some(column) = table.column(name, 0)? {
            let mut values = Vec::new();
            table.read(&column, 1, &mut |bytes| {
                values.extend_from_slice(bytes);
                Ok(())
            })?;
            beside.push((column, values));
        }
    }
    let mut target =
        if size <= IN_MEMORY { Target::Memory(Vec::new()) } else { Target::temporary().map_err(io(path))? };
    let shape = [table.rows, dim];
    let tensors = beside.iter().map(|(column, _)| (column.name, column.dtype, &shape[..1]));
    let tensors = tensors.chain([(features.name, features.dtype, &shape[..])]);
    target.write_all(&header(tensors, &table.strings())).map_err(io(path))?;
    beside.iter().try_for_each(|(_, values)| target.write_all(values)).map_err(io(path))?;
    table.read(&features, dim, &mut |bytes| target.write_all(bytes))?;
    target.done(path)
}

fn io(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::io("unpacking", path)(source)
}

/// An open file.
struct Table<'a> {
    path: &'a Path,
    file: Arc<File>,
    metadata: ParquetMetaData,
    rows: usize,
    /// Bytes of the file.
    length: u64,
}

/// A column of numbers.
struct Column {
    name: &'static str,
    /// Place among the columns of the file.
    index: usize,
    dtype: Dtype,
    /// The definition level of a value that is there.
    present: i16,
}

impl Column {
    fn bytes(&self) -> usize {
        self.dtype.bitsize() / 8
    }

    fn dtype_problem(&self, expected: &'static str) -> Problem {
        Problem::Dtype { name: self.name.into(), expected, got: self.dtype }
    }
}

impl<'a> Table<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("opening", path))?;
        let length = file.metadata().map_err(Error::io("opening", path))?.len();
        let metadata =
            ParquetMetaDataReader::new().parse_and_finish(&file).map_err(|e| broken(e).at(path))?;
        let rows = metadata.file_metadata().num_rows();
        let rows = usize::try_from(rows).map_err(|_| broken("its number of rows is below zero").at(path))?;
        if rows == 0 {
            return Err(
                Problem::Unsupported { what: "features: expected at least 1 row, got 0".into() }.at(path)
            );
        }
        let table = Self { path, file: Arc::new(file), metadata, rows, length };
        table.check_places()?;
        if table.named("views").next().is_some() {
            let what = "views: not read from Parquet; save the file as safetensors".to_string();
            return Err(table.problem(Problem::Unsupported { what }));
        }
        Ok(table)
    }

    /// Every column lies within the file.
    fn check_places(&self) -> Result<()> {
        let groups = self.metadata.row_groups();
        for column in groups.iter().flat_map(|group| group.columns()) {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let place = u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok());
            if place
                .and_then(|(start, length)| start.checked_add(length))
                .is_none_or(|last| last > self.length)
            {
                return Err(self.broken("a column lies outside of it"));
            }
        }
        Ok(())
    }

    fn problem(&self, problem: Problem) -> Error {
        problem.at(self.path)
    }

    fn broken(&self, reason: impl ToString) -> Error {
        self.problem(broken(reason))
    }

    /// Strings that the file carries, without what Arrow notes for itself.
    fn strings(&self) -> Strings {
        let found = self.metadata.file_metadata().key_value_metadata();
        let own = found.into_iter().flatten().filter(|entry| entry.key != "ARROW:schema");
        own.map(|entry| (entry.key.clone(), entry.value.clone().unwrap_or_default())).collect()
    }

    /// The columns of numbers that a column of the table consists of.
    fn named(&self, name: &str) -> impl Iterator<Item = (usize, &ColumnDescriptor)> {
        let columns = self.metadata.file_metadata().schema_descr().columns();
        let of =
            move |column: &ColumnDescriptor| column.path().parts().first().is_some_and(|root| root == name);
        columns.iter().map(AsRef::as_ref).enumerate().filter(move |(_, column)| of(column))
    }

    fn need(&self, name: &'static str) -> Result<Column> {
        self.column(name, 1)?.ok_or_else(|| {
            let columns = self.metadata.file_metadata().schema_descr().columns().iter();
            let mut found: Vec<String> =
                columns.filter_map(|column| column.path().parts().first().cloned()).collect();
            found.sort();
            found.dedup();
            self.problem(Problem::Missing { name: name.into(), found })
        })
    }

    /// A column of numbers (`depth` 0) or of lists of numbers (1), where the file has it.
    fn column(&self, name: &'static str, depth: i16) -> Result<Option<Column>> {
        let mut found = self.named(name);
        let Some((index, column)) = found.next() else { return Ok(None) };
        let wanted = if depth == 0 { "one number a row" } else { "a list of numbers a row" };
        let unfit = |got: String| {
            Problem::Unsupported { what: format!("{name}: expected {wanted}, got {got}") }.at(self.path)
        };
        if found.next().is_some() {
            return Err(unfit("several values".into()));
        }
        if column.max_rep_level() != depth {
            let got = ["one value", "a list", "a list of lists"];
            return Err(unfit(got[(column.max_rep_level().max(0) as usize).min(2)].into()));
        }
        let dtype = match column.physical_type() {
            Physical::BOOLEAN => Dtype::BOOL,
            Physical::INT32 => Dtype::I32,
            Physical::INT64 => Dtype::I64,
            Physical::FLOAT => Dtype::F32,
            Physical::DOUBLE => Dtype::F64,
            Physical::FIXED_LEN_BYTE_ARRAY if column.logical_type_ref() == Some(&LogicalType::Float16) => {
                Dtype::F16
            }
            other => return Err(unfit(format!("{other}"))),
        };
        self.check_compression(index)?;
        self.check_numbers(name, index)?;
        Ok(Some(Column { name, index, dtype, present: column.max_def_level() }))
    }

    fn check_compression(&self, column: usize) -> Result<()> {
        for group in self.metadata.row_groups() {
            let found = group.columns().get(column).map(|chunk| chunk.compression());
            match found {
                Some(Compression::UNCOMPRESSED | Compression::SNAPPY) => {}
                Some(other) => {
                    let what = format!("it is compressed with {other}; expected snappy or none");
                    return Err(self.problem(Problem::Unsupported { what }));
                }
                None => return Err(self.broken("a row group lacks a column")),
            }
        }
        Ok(())
    }

    /// The column says that it holds no more numbers than a file of this length may.
    fn check_numbers(&self, name: &str, column: usize) -> Result<()> {
        let most = self.length.saturating_mul(NUMBERS_PER_BYTE).saturating_add(NUMBERS);
        let mut groups = self.metadata.row_groups().iter();
        let said = |group: &RowGroupMetaData| u64::try_from(group.columns().get(column)?.num_values()).ok();
        match groups.try_fold(0_u64, |sum, group| sum.checked_add(said(group)?)) {
            Some(all) if all <= most => Ok(()),
            Some(all) => Err(self.broken(format!(
                "{name}: it says that it holds {all} numbers; a file of {} bytes may hold {most}",
                self.length
            ))),
            None => Err(self.broken(format!("{name}: it does not say how many numbers it holds"))),
        }
    }

    /// Numbers in the first row.
    fn width(&self, column: &Column) -> Result<usize> {
        let mut levels = Levels::default();
        for group in 0..self.metadata.num_row_groups() {
            let mut reader = self.reader_of(column, group)?;
            if levels.read(&mut reader, 1, &mut Vec::new()).map_err(|e| self.broken(e))? == 1 {
                levels.check(column, None, 0, 1).map_err(|p| self.problem(p))?;
                return Ok(levels.repetition.len());
            }
        }
        Err(self.broken("it has fewer rows than it says"))
    }

    fn reader_of(&self, column: &Column, group: usize) -> Result<ColumnReader> {
        let chunk = self.metadata.row_group(group).column(column.index);
        let pages = Pages::open(&self.file, chunk, column.bytes()).map_err(|e| self.broken(e))?;
        Ok(get_column_reader(chunk.column_descr_ptr(), Box::new(pages)))
    }

    /// Hands over the numbers of all rows as little-endian bytes, some rows at a time. Every row has `width` numbers.
    fn read(
        &self,
        column: &Column,
        width: usize,
        take: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<()> {
        let at_once = (AT_ONCE / width).max(1);
        let list = (column.name == "features").then_some(width);
        let (mut levels, mut bytes, mut row) = (Levels::default(), Vec::new(), 0);
        for group in 0..self.metadata.num_row_groups() {
            let mut reader = self.reader_of(column, group)?;
            loop {
                let got = levels.read(&mut reader, at_once, &mut bytes).map_err(|e| self.broken(e))?;
                if got == 0 {
                    break;
                }
                levels.check(column, list, row, got).map_err(|p| self.problem(p))?;
                take(&bytes).map_err(io(self.path))?;
                row += got;
            }
        }
        if row == self.rows {
            Ok(())
        } else {
            Err(self.broken(format!("{}: {row} rows, the file says {}", column.name, self.rows)))
        }
    }
}

fn broken(reason: impl ToString) -> Problem {
    Problem::Broken { format: "Parquet file", reason: reason.to_string() }
}

/// Which values are there, and where rows begin: as Parquet tells it.
#[derive(Default)]
struct Levels {
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl Levels {
    /// Reads up to `rows` rows into `bytes`; returns how many there were.
    fn read(
        &mut self,
        reader: &mut ColumnReader,
        rows: usize,
        bytes: &mut Vec<u8>,
    ) -> parquet::errors::Result<usize> {
        match reader {
            ColumnReader::BoolColumnReader(reader) => self.pull(reader, rows, bytes, |v| [u8::from(*v)]),
            ColumnReader::Int32ColumnReader(reader) => self.pull(reader, rows, bytes, |v| v.to_le_bytes()),
            ColumnReader::Int64ColumnReader(reader) => self.pull(reader, rows, bytes, |v| v.to_le_bytes()),
            ColumnReader::FloatColumnReader(reader) => self.pull(reader, rows, bytes, |v| v.to_le_bytes()),
            ColumnReader::DoubleColumnReader(reader) => self.pull(reader, rows, bytes, |v| v.to_le_bytes()),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                self.pull(reader, rows, bytes, |v| v.data().first_chunk().copied().unwrap_or([0; 2]))
            }
            ColumnReader::Int96ColumnReader(_) | ColumnReader::ByteArrayColumnReader(_) => Ok(0),
        }
    }

    fn pull<T: DataType, const N: usize>(
        &mut self,
        reader: &mut ColumnReaderImpl<T>,
        rows: usize,
        bytes: &mut Vec<u8>,
        encode: impl Fn(&T::T) -> [u8; N],
    ) -> parquet::errors::Result<usize> {
        self.definition.clear();
        self.repetition.clear();
        let mut values = Vec::new();
        let (got, ..) =
            reader.read_records(rows, Some(&mut self.definition), Some(&mut self.repetition), &mut values)?;
        bytes.resize(values.len() * N, 0);
        bytes
            .as_chunks_mut::<N>()
            .0
            .iter_mut()
            .zip(&values)
            .for_each(|(place, value)| *place = encode(value));
        Ok(got)
    }

    /// Checks that no value is missing and, with `width`, that every list is that long.
    fn check(&self, column: &Column, width: Option<usize>, first: usize, rows: usize) -> Result<(), Problem> {
        let name = || column.name.to_string();
        if let Some(place) = self.definition.iter().position(|&level| level != column.present) {
            let begun = |levels: &[i16]| levels.iter().filter(|&&level| level == 0).count();
            let row = if self.repetition.is_empty() { place } else { begun(&self.repetition[..=place]) - 1 };
            return Err(Problem::Null { name: name(), row: first + row });
        }
        let Some(width) = width else { return Ok(()) };
        let mut row = first;
        let mut rest = &self.repetition[..];
        while !rest.is_empty() {
            let length = 1 + rest[1..].iter().take_while(|&&level| level != 0).count();
            if length != width {
                return Err(Problem::Length { name: name(), row, expected: width, got: length });
            }
            (row, rest) = (row + 1, &rest[length..]);
        }
        debug_assert_eq!(row, first + rows);
        Ok(())
    }
}

/// Where a file is unpacked to.
enum Target {
    Memory(Vec<u8>),
    File(BufWriter<File>),
}

impl Target {
    /// A file without a name, gone when it is closed.
    fn temporary() -> io::Result<Self> {
        Ok(Self::File(BufWriter::with_capacity(1 << 20, tempfile::tempfile()?)))
    }

    fn done(self, path: &Path) -> Result<Bytes> {
        match self {
            Self::Memory(bytes) => Ok(Arc::new(bytes)),
            Self::File(writer) => {
                let file = writer.into_inner().map_err(|e| io(path)(e.into_error()))?;
                Ok(Arc::new(map(&file).map_err(io(path))?))
            }
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Memory(all) => all.write(bytes),
            Self::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::File(file) => file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::StoredFeatures;

    /// A file that pyarrow wrote (`tests/fixtures/parquet.py`).
    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.parquet"))
    }

    fn error(name: &str) -> String {
        StoredFeatures::open(fixture(name)).unwrap_err().to_string()
    }

    fn one_hot(row: usize) -> Vec<f32> {
        (0..4).map(|i| f32::from(u8::from(i == row % 4))).collect()
    }

    #[test]
    fn lists_and_what_stands_beside_them_are_read() {
        let stored = StoredFeatures::open(fixture("lists")).unwrap();
        assert_eq!((stored.rows(), stored.dim(), stored.dtype()), (300, 4, Dtype::F32));
        for row in [0, 127, 128, 299] {
            assert_eq!(stored.read_rows(row..row + 1), one_hot(row));
            assert_eq!(stored.labels().unwrap()[row], row % 3);
            assert_eq!(stored.learn().unwrap()[row], row % 2 == 0);
            assert_eq!(stored.times().unwrap()[row], row as f64 / 2.0);
        }
        assert_eq!(stored.metadata().get("encoder").map(String::as_str), Some("none"));
        assert!(!stored.metadata().contains_key("ARROW:schema"));
    }

    #[test]
    fn other_widths_and_fixed_lists_are_read() {
        let stored = StoredFeatures::open(fixture("halves")).unwrap();
        assert_eq!((stored.rows(), stored.dim(), stored.dtype()), (300, 4, Dtype::F16));
        assert_eq!(stored.read_rows(298..300), [one_hot(298), one_hot(299)].concat());
        assert!(stored.labels().is_none() && stored.times().is_none());
        let stored = StoredFeatures::open(fixture("doubles")).unwrap();
        assert_eq!((stored.dtype(), stored.read_rows(2..3)), (Dtype::F64, one_hot(2)));
    }

    #[test]
    fn mistakes_are_named() {
        for (name, words) in [
            ("zstd", "it is compressed with ZSTD"),
            ("null", "features: row 1 has no value (null)"),
            ("hole", "features: row 1 has no value (null)"),
            ("ragged", "features: row 1 has 1 numbers, expected 2 as in the first row"),
            ("plain", "features: expected a list of numbers a row, got one value"),
            ("texts", "features: expected a list of numbers a row, got BYTE_ARRAY"),
            ("whole", "features: expected dtype F16, BF16, F32 or F64, got I64"),
            ("empty", "features: expected at least 1 row, got 0"),
            ("other", "no tensor named `features`; the file holds [\"vectors\"]"),
            ("no_label", "labels: row 1 has no value (null)"),
        ] {
            let error = error(name);
            assert!(error.contains(words) && error.contains(&format!("{name}.parquet")), "{error}");
        }
    }

    /// A few bytes that claim billions of values are refused before memory is asked for.
    #[test]
    fn files_that_say_more_than_they_hold_are_refused() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/parquet");
        let error = StoredFeatures::open(corpus.join("dictionary-of-billions")).unwrap_err().to_string();
        assert!(
            error.contains("a dictionary says that it has ") && error.contains(" values, its bytes hold 4"),
            "{error}"
        );

        // The end of the file says how many numbers a column has in each group of rows: 512 of the features in the first two (as a
        // varint, twice that), 176 in the last.
        let whole = std::fs::read(fixture("lists")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        let error = |new: &[u8]| {
            let (body, end) = whole.split_at(whole.len() - 8);
            let length = u32::from_le_bytes(*end.first_chunk().unwrap()) as usize;
            let (data, said) = body.split_at(body.len() - length);
            let at = said.windows(4).position(|bytes| bytes == b"\x16\x80\x08\x16").unwrap();
            let said = [&said[..=at], new, &said[at + 3..]].concat();
            let changed = [data, &said, &(said.len() as u32).to_le_bytes(), b"PAR1"].concat();
            std::fs::write(&path, changed).unwrap();
            StoredFeatures::open(&path).unwrap_err().to_string()
        };
        for (count, words) in [
            (&b"\x80\x80\x80\x80\x80\x20"[..], "it says that it holds 549755814576 numbers; a file of "),
            (b"\x81\x08", "it does not say how many numbers it holds"),
            (b"\xd0\x07", "a page says that it has 512 values, its column has 488 left"),
        ] {
            let error = error(count);
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn changed_bytes_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        for name in ["doubles", "whole"] {
            let whole = std::fs::read(fixture(name)).unwrap();
            let mut refused = 0;
            for at in 0..whole.len() {
                let mut changed = whole.clone();
                changed[at] ^= 0x55;
                std::fs::write(&path, changed).unwrap();
                refused += usize::from(unpack(&path).is_err());
            }
            assert!(refused > whole.len() / 4, "{name}: {refused} of {} refused", whole.len());
        }
    }

    #[test]
    fn broken_files_and_bare_bytes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let whole = std::fs::read(fixture("lists")).unwrap();
        let path = folder.path().join("x.parquet");
        for length in [4, 100, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = StoredFeatures::open(&path).unwrap_err().to_string();
            assert!(error.contains("not a valid Parquet file"), "{error}");
        }
        let error = StoredFeatures::from_bytes("body", whole).unwrap_err().to_string();
        assert!(error.contains("expected safetensors, .npy or .npz here"), "{error}");
    }

    /// What is too large for memory goes through a temporary file: the same bytes.
    #[test]
    fn a_temporary_file_holds_what_memory_would() {
        let mut targets = [Target::Memory(Vec::new()), Target::temporary().unwrap()];
        targets.iter_mut().for_each(|target| target.write_all(b"numbers").unwrap());
        for target in targets {
            assert_eq!((*target.done(Path::new("x")).unwrap()).as_ref(), b"numbers");
        }
    }
}
