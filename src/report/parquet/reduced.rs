//! A reduced recording: a row for each rank, bin of steps, phase, wait and line, with its time.
//! What is no column is in the file's metadata, as JSON, so that it can be read back.

use super::columns::{text, text_type, values};
use super::write_columns;
use crate::model::category::{Activity, Phase, SummaryRow};
use crate::model::named::Named;
use crate::model::reduction::{ReducedRow, Reduction};
use crate::model::wait::WaitKind;
use crate::torch::rules::RuleSet;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, UInt16Type, UInt32Type};
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Int64Array, RecordBatch, StringArray, UInt16Array,
    UInt32Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::errors::ParquetError;
use std::io::{self, Write};
use std::sync::Arc;

/// Version of the columns and the metadata: another one is not read.
const VERSION: u32 = 6;
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
    Arrow(#[from] arrow_schema::ArrowError),
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
        ("rank", DataType::UInt32, true),
        ("host", text_type(), false),
        ("step", DataType::Int64, true),
        ("phase", text_type(), false),
        ("summary_row", text_type(), false),
        ("activity", text_type(), false),
        ("wait", text_type(), true),
        ("wait_for", text_type(), true),
        ("function", text_type(), true),
        ("file", text_type(), true),
        ("line", DataType::UInt32, true),
        ("ns", DataType::Int64, false),
        // For reading back: numbers of rank, bin, wait and line in the metadata.
        ("rank_id", DataType::UInt32, false),
        ("bin_id", DataType::UInt16, true),
        ("wait_id", DataType::UInt32, true),
        ("place_id", DataType::UInt32, true),
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
    let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file))?;
    let keys = builder.metadata().file_metadata().key_value_metadata();
    let key = |name: &str| {
        let pair = keys?.iter().find(|pair| pair.key == name)?;
        pair.value.as_deref()
    };
    if key(SOURCE) != Some(source) {
        return Err(ReadError::Stale);
    }
    let mut reduction: Reduction = serde_json::from_str(key(HEAD).ok_or(ReadError::Stale)?)?;
    for batch in builder.build()? {
        add_rows(&batch?, &mut reduction.rows)?;
    }
    Ok(reduction)
}

/// A column of stable names, as values.
struct NameColumn<'b, T> {
    keys: &'b arrow_array::PrimitiveArray<Int32Type>,
    values: Vec<Option<T>>,
}

impl<'b, T: Named> NameColumn<'b, T> {
    fn new(batch: &'b RecordBatch, name: &'static str, all: &[T]) -> Result<Self, ReadError> {
        let column = batch.column_by_name(name);
        let column = column.and_then(|column| column.as_any().downcast_ref());
        let column: &DictionaryArray<Int32Type> = column.ok_or(ReadError::Column(name))?;
        let values = column.values().as_string_opt::<i32>();
        let values = values.ok_or(ReadError::Column(name))?.iter();
        let named = |name: &str| all.iter().copied().find(|each| each.stable_name() == name);
        Ok(Self {
            keys: column.keys(),
            values: values.map(|value| value.and_then(named)).collect(),
        })
    }

    fn get(&self, row: usize) -> Option<T> {
        let is_set = self.keys.is_valid(row);
        let key = usize::try_from(is_set.then(|| self.keys.value(row))?).ok()?;
        self.values.get(key).copied().flatten()
    }
}

fn add_rows(batch: &RecordBatch, rows: &mut Vec<ReducedRow>) -> Result<(), ReadError> {
    fn column<'b, P: arrow_array::ArrowPrimitiveType>(
        batch: &'b RecordBatch,
        name: &'static str,
    ) -> Result<&'b arrow_array::PrimitiveArray<P>, ReadError> {
        let column = batch.column_by_name(name);
        let column = column.and_then(|column| column.as_primitive_opt::<P>());
        column.ok_or(ReadError::Column(name))
    }
    let phases = NameColumn::new(batch, "phase", Phase::ALL)?;
    let summary_rows = NameColumn::new(batch, "summary_row", SummaryRow::ALL)?;
    let activities = NameColumn::new(batch, "activity", Activity::ALL)?;
    let waits = NameColumn::new(batch, "wait", WaitKind::ALL)?;
    let times = column::<Int64Type>(batch, "ns")?;
    let ranks = column::<UInt32Type>(batch, "rank_id")?;
    let bins = column::<UInt16Type>(batch, "bin_id")?;
    let labels = column::<UInt32Type>(batch, "wait_id")?;
    let places = column::<UInt32Type>(batch, "place_id")?;
    for row in 0..batch.num_rows() {
        rows.push(ReducedRow {
            rank: ranks.value(row),
            bin: bins.is_valid(row).then(|| bins.value(row)),
            phase: phases.get(row).unwrap_or_default(),
            row: summary_rows.get(row).unwrap_or_default(),
            activity: activities.get(row).unwrap_or_default(),
            wait: waits.get(row),
            wait_label: labels.is_valid(row).then(|| labels.value(row)),
            place: places.is_valid(row).then(|| places.value(row)),
            ns: u64::try_from(times.value(row)).unwrap_or(0),
        });
    }
    Ok(())
}
