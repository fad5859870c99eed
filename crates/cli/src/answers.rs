//! Predictions on their way out: as JSON lines, CSV or Parquet (`docs/formats.md`).

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use ultta::Step;
use ultta::{Temperature, ZeroShotAnswer};
use ultta_formats::Id;
use ultta_formats::shown;

use crate::failure::usage;
use crate::output::Output;

/// One prediction row.
#[derive(Debug, Serialize)]
pub struct Answer<'a> {
    id: Id,
    label: usize,
    class: &'a str,
    prob: f32,
    prob_pred: f32,
    zero_shot: ZeroShotAnswer,
    admitted: bool,
    unknown: bool,
    garbage: bool,
    scene: u64,
    begins_scene: bool,
    /// The session's own number of the sample: what `correct` and `explain --id` take.
    sample: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<Vec<Top<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probs: Option<Vec<f32>>,
}

#[derive(Debug, Serialize)]
struct Top<'a> {
    label: usize,
    class: &'a str,
    prob: f32,
}

/// What a prediction row holds beyond the answer.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The K best classes.
    pub top: usize,
    /// The probabilities of all classes.
    pub probs: bool,
    /// The set of classes, where the session gives sets.
    pub set: bool,
}

impl Extent {
    /// Whether a step must keep its scores.
    pub fn needs_scores(self) -> bool {
        self.top > 0 || self.probs
    }
}

impl<'a> Answer<'a> {
    /// A row of a step.
    pub fn new(step: &Step, row: usize, id: Id, classes: &'a [String], extent: Extent) -> Self {
        let answer = &step.rows[row];
        let top = || {
            let best = step.top(row, extent.top).into_iter();
            best.map(|(label, prob)| Top { label, class: &classes[label], prob }).collect()
        };
        Self {
            id,
            label: answer.label,
            class: &classes[answer.label],
            prob: answer.prob,
            prob_pred: answer.prob_pred,
            zero_shot: answer.zero_shot,
            admitted: answer.admitted,
            unknown: answer.unknown,
            garbage: answer.garbage,
            scene: answer.scene,
            begins_scene: answer.begins_scene,
            sample: answer.id,
            set: step.sets.get(row).filter(|_| extent.set).cloned(),
            top: (extent.top > 0).then(top),
            probs: extent.probs.then(|| step.probs(row, Temperature::Cal)),
        }
    }
}

/// A cell of a prediction table.
#[derive(Clone, Debug)]
enum Cell {
    Number(u64),
    Prob(f32),
    Text(String),
    Flag(bool),
}

/// Names of the columns of a prediction table, for formats that have no nesting.
fn columns(classes: &[String], extent: Extent) -> Vec<String> {
    let frozen = ["zero_shot_label", "zero_shot_prob"];
    let teaching = ["admitted", "unknown", "garbage", "scene", "begins_scene", "sample"];
    let plain = ["id", "label", "class", "prob", "prob_pred"].into_iter().chain(frozen).chain(teaching);
    let mut columns: Vec<String> = plain.map(String::from).collect();
    if extent.set {
        columns.push("set".into());
    }
    for k in 1..=extent.top.min(classes.len()) {
        columns.extend(["label", "class", "prob"].map(|what| format!("top{k}_{what}")));
    }
    if extent.probs {
        columns.extend(classes.iter().map(|class| format!("prob:{class}")));
    }
    columns
}

/// The cells under [`columns`].
fn cells(answer: &Answer<'_>) -> Vec<Cell> {
    let id = match &answer.id {
        Id::Number(number) => Cell::Number(*number),
        Id::Text(text) => Cell::Text(text.clone()),
    };
    let mut cells = vec![
        id,
        Cell::Number(answer.label as u64),
        Cell::Text(answer.class.into()),
        Cell::Prob(answer.prob),
        Cell::Prob(answer.prob_pred),
        Cell::Number(answer.zero_shot.label as u64),
        Cell::Prob(answer.zero_shot.prob),
        Cell::Flag(answer.admitted),
        Cell::Flag(answer.unknown),
        Cell::Flag(answer.garbage),
        Cell::Number(answer.scene),
        Cell::Flag(answer.begins_scene),
        Cell::Number(answer.sample),
    ];
    if let Some(set) = &answer.set {
        // Tables have no lists.
        let classes: Vec<String> = set.iter().map(u32::to_string).collect();
        cells.push(Cell::Text(classes.join(" ")));
    }
    for top in answer.top.iter().flatten() {
        cells.extend([Cell::Number(top.label as u64), Cell::Text(top.class.into()), Cell::Prob(top.prob)]);
    }
    cells.extend(answer.probs.iter().flatten().map(|&prob| Cell::Prob(prob)));
    cells
}

/// Where predictions go, and in which format.
pub enum Sink {
    JsonLines(BufWriter<Output>),
    Csv(Box<csv::Writer<Output>>),
    #[cfg(feature = "parquet")]
    Parquet(Box<parquet_sink::ParquetSink>),
}

impl Sink {
    /// Opens the output. The format follows from the name's ending; standard output (`-`) takes JSON lines.
    pub fn create(path: &Path, classes: &[String], extent: Extent) -> anyhow::Result<Self> {
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        let special = path.metadata().is_ok_and(|there| !there.is_file() && !there.is_dir());
        match ending.as_str() {
            "jsonl" | "ndjson" => Ok(Sink::JsonLines(BufWriter::new(Output::create(path)?))),
            _ if special || path == Path::new("-") => {
                Ok(Sink::JsonLines(BufWriter::new(Output::create(path)?)))
            }
            "csv" => {
                let mut writer = csv::Writer::from_writer(Output::create(path)?);
                writer.write_record(columns(classes, extent)).context("writing the header")?;
                Ok(Sink::Csv(Box::new(writer)))
            }
            #[cfg(feature = "parquet")]
            "parquet" => {
                let output = Output::create(path)?;
                Ok(Sink::Parquet(Box::new(parquet_sink::ParquetSink::new(output, columns(classes, extent))?)))
            }
            #[cfg(not(feature = "parquet"))]
            "parquet" => usage("this build writes no parquet; build it with `--features parquet`"),
            _ => usage(format!(
                "{}: expected a name that ends in .jsonl, .csv or .parquet, or - for standard output",
                shown(&path)
            )),
        }
    }

    /// CSV on standard output.
    pub fn csv_on_stdout(classes: &[String], extent: Extent) -> anyhow::Result<Self> {
        let mut writer = csv::Writer::from_writer(Output::create(Path::new("-"))?);
        writer.write_record(columns(classes, extent)).context("writing the header")?;
        Ok(Sink::Csv(Box::new(writer)))
    }

    /// Writes a prediction.
    pub fn write(&mut self, answer: &Answer<'_>) -> anyhow::Result<()> {
        match self {
            Sink::JsonLines(writer) => {
                serde_json::to_writer(&mut *writer, answer).map_err(std::io::Error::from)?;
                writer.write_all(b"\n")?;
            }
            Sink::Csv(writer) => {
                let text = |cell| match cell {
                    Cell::Number(number) => number.to_string(),
                    Cell::Prob(prob) => prob.to_string(),
                    Cell::Text(text) => text,
                    Cell::Flag(flag) => flag.to_string(),
                };
                writer.write_record(cells(answer).into_iter().map(text)).map_err(csv_error)?;
            }
            #[cfg(feature = "parquet")]
            Sink::Parquet(sink) => sink.write(cells(answer))?,
        }
        Ok(())
    }

    /// Notes a line that could not be answered, where the format has room for it.
    pub fn write_error(&mut self, line: u64, id: Option<&Id>, message: &str) -> anyhow::Result<()> {
        if let Sink::JsonLines(writer) = self {
            let error = serde_json::json!({ "line": line, "id": id, "error": message });
            writeln!(writer, "{error}")?;
        }
        Ok(())
    }

    /// Passes on what was written so far.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        match self {
            Sink::JsonLines(writer) => writer.flush()?,
            Sink::Csv(writer) => writer.flush()?,
            #[cfg(feature = "parquet")]
            Sink::Parquet(_) => {}
        }
        Ok(())
    }

    /// Completes the output.
    pub fn commit(self) -> anyhow::Result<()> {
        let output = match self {
            Sink::JsonLines(writer) => writer.into_inner().map_err(|e| e.into_error())?,
            Sink::Csv(writer) => writer.into_inner().map_err(|e| e.into_error())?,
            #[cfg(feature = "parquet")]
            Sink::Parquet(sink) => sink.finish()?,
        };
        output.commit()
    }
}

/// The operating system's error inside a CSV error, so that a hung-up reader is recognised.
fn csv_error(error: csv::Error) -> anyhow::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error.into(),
        other => anyhow::anyhow!("writing CSV: {other:?}"),
    }
}

#[cfg(feature = "parquet")]
mod parquet_sink {
    //! Parquet by columns, in row groups. The types of the first row decide those of the columns.

    use std::sync::Arc;

    use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
    use parquet::data_type::{BoolType, ByteArray, ByteArrayType, FloatType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::types::{Type, TypePtr};

    use super::{Cell, Output};

    /// Cells per row group: bounds the memory that waiting rows take.
    const GROUP_CELLS: usize = 1 << 20;

    pub struct ParquetSink {
        names: Vec<String>,
        output: Writer,
        waiting: Vec<Vec<Cell>>,
    }

    /// The file is begun with the first row, because only then the type of the ids is known.
    enum Writer {
        Unopened(Output),
        Open(SerializedFileWriter<Output>),
        Taken,
    }

    impl ParquetSink {
        pub fn new(output: Output, names: Vec<String>) -> anyhow::Result<Self> {
            Ok(Self { names, output: Writer::Unopened(output), waiting: Vec::new() })
        }

        pub(super) fn write(&mut self, row: Vec<Cell>) -> anyhow::Result<()> {
            self.waiting.push(row);
            if self.waiting.len() * self.names.len() >= GROUP_CELLS {
                self.write_group()?;
            }
            Ok(())
        }

        pub fn finish(mut self) -> anyhow::Result<Output> {
            self.write_group()?;
            match self.output {
                Writer::Open(writer) => Ok(writer.into_inner()?),
                _ => unreachable!("write_group leaves it open"),
            }
        }

        fn schema(&self) -> anyhow::Result<TypePtr> {
            let first = self.waiting.first();
            let mut fields: Vec<TypePtr> = Vec::new();
            for (column, name) in self.names.iter().enumerate() {
                // Without rows any type will do.
                let (physical, converted) = match first.map(|row| &row[column]) {
                    Some(Cell::Number(_)) => (Physical::INT64, ConvertedType::NONE),
                    Some(Cell::Prob(_)) => (Physical::FLOAT, ConvertedType::NONE),
                    Some(Cell::Flag(_)) => (Physical::BOOLEAN, ConvertedType::NONE),
                    Some(Cell::Text(_)) | None => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
                };
                let field = Type::primitive_type_builder(name, physical)
                    .with_repetition(Repetition::REQUIRED)
                    .with_converted_type(converted)
                    .build()?;
                fields.push(Arc::new(field));
            }
            Ok(Arc::new(Type::group_type_builder("predictions").with_fields(fields).build()?))
        }

        fn write_group(&mut self) -> anyhow::Result<()> {
            if matches!(self.output, Writer::Unopened(_)) {
                let schema = self.schema()?;
                let Writer::Unopened(output) = std::mem::replace(&mut self.output, Writer::Taken) else {
                    unreachable!("just matched")
                };
                let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
                let writer = SerializedFileWriter::new(output, schema, Arc::new(properties))?;
                self.output = Writer::Open(writer);
            }
            let Writer::Open(writer) = &mut self.output else { return Ok(()) };
            let rows = std::mem::take(&mut self.waiting);
            if rows.is_empty() {
                return Ok(());
            }
            let mut group = writer.next_row_group()?;
            let mut index = 0;
            while let Some(mut column) = group.next_column()? {
                let cells = || rows.iter().map(|row| &row[index]);
                match &rows[0][index] {
                    Cell::Number(_) => {
                        let values =
                            cells().map(|c| if let Cell::Number(n) = c { Ok(*n as i64) } else { mixed() });
                        let values = values.collect::<anyhow::Result<Vec<_>>>()?;
                        column.typed::<Int64Type>().write_batch(&values, None, None)?;
                    }
                    Cell::Prob(_) => {
                        let values = cells().map(|c| if let Cell::Prob(p) = c { Ok(*p) } else { mixed() });
                        let values = values.collect::<anyhow::Result<Vec<_>>>()?;
                        column.typed::<FloatType>().write_batch(&values, None, None)?;
                    }
                    Cell::Flag(_) => {
                        let values = cells().map(|c| if let Cell::Flag(f) = c { Ok(*f) } else { mixed() });
                        let values = values.collect::<anyhow::Result<Vec<_>>>()?;
                        column.typed::<BoolType>().write_batch(&values, None, None)?;
                    }
                    Cell::Text(_) => {
                        let text = |c: &Cell| match c {
                            Cell::Text(text) => Ok(ByteArray::from(text.as_str())),
                            Cell::Number(number) => Ok(ByteArray::from(number.to_string().as_str())),
                            _ => mixed(),
                        };
                        let values = cells().map(text).collect::<anyhow::Result<Vec<_>>>()?;
                        column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
                    }
                }
                column.close()?;
                index += 1;
            }
            group.close()?;
            Ok(())
        }
    }

    fn mixed<T>() -> anyhow::Result<T> {
        crate::failure::usage("parquet: the ids are numbers in some rows and text in others")
    }
}
