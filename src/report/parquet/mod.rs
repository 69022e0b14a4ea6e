//! Samples and stacks as columns, for analyses of many recordings: DuckDB, pandas, Spark.
//!
//! Two files: a row per sample ([`samples`]) and a row per stack ([`stacks`]), joined by
//! `stack_id`; and sums of a recording by rank, steps, phase, wait and line ([`reduced`]), which
//! `report` of a folder keeps beside it. The columns are described in docs/src/parquet.md;
//! [`SCHEMA_VERSION`] rises when one is removed or changes its meaning.

mod columns;
pub mod reduced;
pub mod samples;
pub mod stacks;

use crate::model::profile::Profile;
use crate::torch::rules::RuleSet;
use arrow_array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use std::io::{self, Write};

/// Version of both files' columns. Columns may be added within a version.
pub const SCHEMA_VERSION: u32 = 1;

/// Number of rows that are in memory as columns at a time.
const BATCH: usize = 1 << 16;

/// Writes the batches of one file. The writer needs its position in the file, so bytes are
/// collected first.
fn write(
    profile: &Profile,
    content: &str,
    batches: impl IntoIterator<Item = Result<RecordBatch, ParquetError>>,
    empty: RecordBatch,
    out: &mut dyn Write,
) -> io::Result<()> {
    let keys = [
        ("torchspy.schema_version", SCHEMA_VERSION.to_string()),
        (
            "torchspy.rules_version",
            RuleSet::built_in().version.to_string(),
        ),
        ("torchspy.content", content.to_owned()),
        ("torchspy.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("torchspy.host", profile.run.host.clone()),
        ("torchspy.command", profile.run.command.join(" ")),
        ("torchspy.rate_hz", profile.run.rate_hz.to_string()),
        ("torchspy.started_ns", profile.run.started_ns.to_string()),
    ];
    write_columns(&keys, batches, empty, out)
}

/// The same with other keys.
fn write_columns(
    keys: &[(&str, String)],
    batches: impl IntoIterator<Item = Result<RecordBatch, ParquetError>>,
    empty: RecordBatch,
    out: &mut dyn Write,
) -> io::Result<()> {
    let keys = keys.iter();
    let keys = keys.map(|(key, value)| KeyValue::new((*key).to_owned(), value.clone()));
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_key_value_metadata(Some(keys.collect()))
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, empty.schema(), Some(properties))?;
    for batch in batches {
        writer.write(&batch?)?;
    }
    writer.close()?;
    out.write_all(&bytes)
}
