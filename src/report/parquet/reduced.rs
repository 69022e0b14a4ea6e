//! A reduced recording: a row for each rank, bin of steps, phase, wait and line, with its time.
//! What is no column is in the file's metadata, as JSON, so that it can be read back.

use super::columns::{text, text_type, values};
use super::write_columns;
use crate::model::category::{Activity, Phase, SummaryRow};
use crate::model::named::Named;
use crate::model::reduction::{ReducedRow, Reduction};
use crate::model::wait::WaitKind;
use crate::torch::rules::RuleSet;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt16Array, UInt32Array};
use arrow_schema::{DataType as ArrowType, Field, Schema, SchemaRef};
use bytes::Bytes;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use std::io::{self, Write};
use std::sync::Arc;

/// Version of the columns and the metadata: another one is not read.
const VERSION: u32 = 11;
const HEAD: &str = "torchspy.reduction";
const SOURCE: &str = "torchspy.source";
/// CRC-32 of the file in which it is [`NO_CHECKSUM`].
const CHECKSUM: &str = "torchspy.checksum";
const NO_CHECKSUM: &str = "00000000";

/// Why a file cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("it is of another recording, rules or torchspy")]
    Stale,
    #[error("it is damaged")]
    Damaged,
    #[error("column {0} has another type")]
    Column(&'static str),
}

/// What a reduction was made from, by the state of its file or files: equal texts mean equal
/// reductions.
pub fn source(files: &str) -> String {
    let rules = RuleSet::built_in().version;
    let torchspy = env!("CARGO_PKG_VERSION");
    format!("{VERSION} {torchspy} {rules} {files}")
}

fn schema() -> SchemaRef {
    let fields = [
        ("rank", ArrowType::UInt32, true),
        ("host", text_type(), false),
        ("step", ArrowType::Int64, true),
        ("phase", text_type(), false),
        ("summary_row", text_type(), false),
        ("activity", text_type(), false),
        ("wait", text_type(), true),
        ("wait_for", text_type(), true),
        ("function", text_type(), true),
        ("file", text_type(), true),
        ("line", ArrowType::UInt32, true),
        ("ns", ArrowType::Int64, false),
        // For reading back: numbers of rank, bin, wait and line in the metadata.
        ("rank_id", ArrowType::UInt32, false),
        ("bin_id", ArrowType::UInt16, true),
        ("wait_id", ArrowType::UInt32, true),
        ("place_id", ArrowType::UInt32, true),
    ];
    let fields = fields.map(|(name, kind, nullable)| Field::new(name, kind, nullable));
    Arc::new(Schema::new(fields.to_vec()))
}

fn names<T: Named>(all: &[T]) -> Arc<StringArray> {
    values(all.iter().map(|each| each.stable_name()))
}

/// Writes a reduction that was made from [`source`].
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(reduction: &Reduction, source: &str, out: &mut dyn Write) -> io::Result<()> {
    let head = serde_json::to_string(reduction)?;
    let keys = [
        (HEAD, head),
        (SOURCE, source.to_owned()),
        (CHECKSUM, NO_CHECKSUM.to_owned()),
    ];
    let batch = batch(reduction).map_err(ParquetError::from);
    let mut bytes = Vec::new();
    write_columns(&keys, [batch], RecordBatch::new_empty(schema()), &mut bytes)?;
    let checksum = format!("{:08x}", crc32fast::hash(&bytes));
    if let Some(place) = checksum_in(&mut bytes) {
        place.copy_from_slice(checksum.as_bytes());
    }
    out.write_all(&bytes)
}

/// Where the checksum stands in a file: the metadata are neither compressed nor encoded.
fn checksum_in(bytes: &mut [u8]) -> Option<&mut [u8]> {
    let key = CHECKSUM.as_bytes();
    let at = bytes.windows(key.len()).rposition(|word| word == key)?;
    let after = bytes.get_mut(at + key.len()..)?;
    // Between them is the header of the value's field: type, and length as a number of one byte.
    after.get_mut(2..2 + NO_CHECKSUM.len())
}

/// Whether the bytes are those that were written. What is damaged would be read as other figures.
fn is_whole(bytes: &mut [u8]) -> bool {
    let Some(place) = checksum_in(bytes) else {
        return false;
    };
    let said = place.to_vec();
    place.copy_from_slice(NO_CHECKSUM.as_bytes());
    said == format!("{:08x}", crc32fast::hash(bytes)).as_bytes()
}

fn batch(reduction: &Reduction) -> Result<RecordBatch, arrow_schema::ArrowError> {
    let rows = &reduction.rows;
    let place = |row: &ReducedRow| reduction.places.get(row.place? as usize);
    let rank = |row: &ReducedRow| reduction.ranks.get(row.rank as usize);
    let step = |row: &ReducedRow| {
        let rank = rank(row)?;
        let bin = rank.bins.get(usize::from(row.bin?))?;
        i64::try_from(bin.first_step(rank.shift)).ok()
    };
    let functions = values(reduction.places.iter().map(|place| &place.function));
    let files = values(reduction.places.iter().map(|place| &place.file));
    let of = |id: fn(&ReducedRow) -> Option<usize>, values: &Arc<StringArray>| {
        text(rows.iter().map(id), values)
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(
            rows.iter()
                .map(|row| rank(row)?.rank)
                .collect::<UInt32Array>(),
        ),
        of(|_| Some(0), &values([&reduction.host]))?,
        Arc::new(rows.iter().map(step).collect::<Int64Array>()),
        of(|row| Some(row.phase as usize), &names(Phase::ALL))?,
        of(|row| Some(row.row as usize), &names(SummaryRow::ALL))?,
        of(|row| Some(row.activity as usize), &names(Activity::ALL))?,
        of(|row| Some(row.wait? as usize), &names(WaitKind::ALL))?,
        of(
            |row| Some(row.wait_label? as usize),
            &values(&reduction.waits),
        )?,
        of(|row| Some(row.place? as usize), &functions)?,
        of(|row| Some(row.place? as usize), &files)?,
        Arc::new(
            rows.iter()
                .map(|row| Some(place(row)?.line))
                .collect::<UInt32Array>(),
        ),
        Arc::new(
            rows.iter()
                .map(|row| i64::try_from(row.ns).ok())
                .collect::<Int64Array>(),
        ),
        Arc::new(
            rows.iter()
                .map(|row| Some(row.rank))
                .collect::<UInt32Array>(),
        ),
        Arc::new(rows.iter().map(|row| row.bin).collect::<UInt16Array>()),
        Arc::new(
            rows.iter()
                .map(|row| row.wait_label)
                .collect::<UInt32Array>(),
        ),
        Arc::new(rows.iter().map(|row| row.place).collect::<UInt32Array>()),
    ];
    RecordBatch::try_new(schema(), columns)
}

/// Reads a file with a reduction back, if it was made from `source`.
///
/// # Errors
/// If it was not, or is damaged.
pub fn read(mut file: Vec<u8>, source: &str) -> Result<Reduction, ReadError> {
    if !is_whole(&mut file) {
        return Err(ReadError::Damaged);
    }
    // Without Arrow, which would be most of what is read with.
    let reader = SerializedFileReader::new(Bytes::from(file))?;
    let keys = reader.metadata().file_metadata().key_value_metadata();
    let key = |name: &str| {
        let pair = keys?.iter().find(|pair| pair.key == name)?;
        pair.value.as_deref()
    };
    if key(SOURCE) != Some(source) {
        return Err(ReadError::Stale);
    }
    let mut reduction: Reduction = serde_json::from_str(key(HEAD).ok_or(ReadError::Stale)?)?;
    for group in 0..reader.num_row_groups() {
        add_rows(&*reader.get_row_group(group)?, &mut reduction.rows)?;
    }
    Ok(reduction)
}

/// The values of a column, in each row.
fn column<T: DataType>(
    group: &dyn RowGroupReader,
    name: &'static str,
) -> Result<Vec<Option<T::T>>, ReadError> {
    let wrong = ReadError::Column(name);
    let columns = group.metadata().columns();
    let at = columns
        .iter()
        .position(|column| column.column_path().string() == name);
    let reader = at.map(|at| group.get_column_reader(at)).transpose()?;
    let Some(mut reader) = reader.and_then(T::get_column_reader) else {
        return Err(wrong);
    };
    let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let (read, ..) = reader.read_records(rows, Some(&mut levels), None, &mut values)?;
    if read != rows {
        return Err(wrong);
    }
    // A column without nulls has no levels.
    levels.resize(rows, 1);
    let mut values = values.into_iter();
    let value = |level: i16| (level > 0).then(|| values.next()).flatten();
    Ok(levels.into_iter().map(value).collect())
}

/// The values of a column of stable names.
fn named<T: Named>(
    group: &dyn RowGroupReader,
    name: &'static str,
    all: &[T],
) -> Result<Vec<Option<T>>, ReadError> {
    let names = column::<ByteArrayType>(group, name)?.into_iter();
    let mut last: Option<(ByteArray, Option<T>)> = None;
    let mut of = |bytes: ByteArray| match &last {
        // Rows are sorted.
        Some((before, value)) if *before == bytes => *value,
        _ => {
            let is_it = |each: &T| each.stable_name().as_bytes() == bytes.data();
            let value = all.iter().copied().find(is_it);
            last = Some((bytes, value));
            value
        }
    };
    Ok(names.map(|name| of(name?)).collect())
}

fn add_rows(group: &dyn RowGroupReader, rows: &mut Vec<ReducedRow>) -> Result<(), ReadError> {
    let phases = named(group, "phase", Phase::ALL)?;
    let summary_rows = named(group, "summary_row", SummaryRow::ALL)?;
    let activities = named(group, "activity", Activity::ALL)?;
    let waits = named(group, "wait", WaitKind::ALL)?;
    let times = column::<Int64Type>(group, "ns")?;
    let ranks = column::<Int32Type>(group, "rank_id")?;
    let bins = column::<Int32Type>(group, "bin_id")?;
    let labels = column::<Int32Type>(group, "wait_id")?;
    let places = column::<Int32Type>(group, "place_id")?;
    // Unsigned numbers of 32 bits are stored as signed ones.
    let unsigned = |value: Option<i32>| value.map(i32::cast_unsigned);
    for row in 0..times.len() {
        rows.push(ReducedRow {
            rank: unsigned(ranks[row]).unwrap_or(0),
            bin: bins[row].and_then(|bin| u16::try_from(bin).ok()),
            phase: phases[row].unwrap_or_default(),
            row: summary_rows[row].unwrap_or_default(),
            activity: activities[row].unwrap_or_default(),
            wait: waits[row],
            wait_label: unsigned(labels[row]),
            place: unsigned(places[row]),
            ns: times[row]
                .and_then(|ns| u64::try_from(ns).ok())
                .unwrap_or(0),
        });
    }
    Ok(())
}
