//! Dumps of torch's flight recorder: the collectives that a rank has called last, as torch itself
//! has kept them.
//!
//! Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (2.15.0; version 2.10 of the
//! dumps). Files are pickles (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`, by default
//! `/tmp/nccl_trace_rank_N`), or the same as JSON.

use super::flight_pickle;
use crate::model::flight::{Call, FlightDump};
use anyhow::Context;
use rustc_hash::FxHashMap;
use serde::Deserialize;

/// The first byte of a pickle of protocol 2 and later.
const PICKLE: u8 = 0x80;

/// The name of the group of all ranks.
const DEFAULT_GROUP: &str = "0";

#[derive(Deserialize)]
struct Raw {
    version: String,
    #[serde(default)]
    pg_config: FxHashMap<String, RawConfig>,
    #[serde(default)]
    pg_status: FxHashMap<String, RawStatus>,
    #[serde(default)]
    entries: Vec<RawEntry>,
}

#[derive(Deserialize)]
struct RawConfig {
    /// A list in a text: `[0, 1]`.
    #[serde(default)]
    ranks: String,
}

#[derive(Deserialize)]
struct RawStatus {
    /// -1 for none. The JSON has a text.
    last_enqueued_collective: serde_json::Value,
}

#[derive(Deserialize)]
struct RawEntry {
    #[serde(default)]
    frames: Vec<RawFrame>,
    pg_id: i64,
    process_group: (String, String),
    collective_seq_id: u64,
    #[serde(default)]
    is_p2p: bool,
    profiling_name: String,
    #[serde(default)]
    input_sizes: Vec<Vec<i64>>,
    #[serde(default)]
    input_dtypes: Vec<String>,
    state: String,
    #[serde(default)]
    retired: bool,
}

#[derive(Deserialize)]
struct RawFrame {
    name: String,
    filename: String,
    line: u32,
}

/// Whether bytes may be such a dump: a pickle, or JSON of it.
pub fn is_flight_dump(bytes: &[u8]) -> bool {
    bytes.first() == Some(&PICKLE)
        || bytes.first() == Some(&b'{') && find(bytes, b"\"pg_status\"").is_some()
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|each| each == word)
}

/// Reads a dump.
///
/// # Errors
/// It is no dump of a flight recorder, or of a version that this does not know.
pub fn read(bytes: &[u8]) -> anyhow::Result<FlightDump> {
    let raw: Raw = match bytes.first() {
        Some(&PICKLE) => serde_json::from_value(flight_pickle::read(bytes)?),
        _ => serde_json::from_slice(bytes),
    }
    .context("it is no flight recorder's dump")?;
    anyhow::ensure!(
        raw.version.starts_with("2."),
        "its version is {}, and only 2.x is known",
        raw.version
    );
    let mut dump = FlightDump {
        version: raw.version,
        ..FlightDump::default()
    };
    let mut names: FxHashMap<i64, String> = FxHashMap::default();
    for entry in raw.entries {
        names.insert(entry.pg_id, entry.process_group.0.clone());
        dump.calls.push(call(entry));
    }
    for (name, config) in raw.pg_config {
        // Gloo's default group has no name here, and that of its number in its calls.
        let name = if name.is_empty() {
            DEFAULT_GROUP.to_owned()
        } else {
            name
        };
        if let Ok(ranks) = serde_json::from_str(&config.ranks) {
            dump.members.insert(name, ranks);
        }
    }
    for (id, status) in raw.pg_status {
        let name = id.parse().ok().and_then(|id: i64| names.get(&id));
        let enqueued = match &status.last_enqueued_collective {
            serde_json::Value::String(text) => text.parse().ok(),
            number => number.as_u64(),
        };
        if let (Some(name), Some(enqueued)) = (name, enqueued) {
            dump.enqueued.insert(name.clone(), enqueued);
        }
    }
    Ok(dump)
}

fn call(entry: RawEntry) -> Call {
    // `nccl:all_reduce`, `gloo:all_reduce`, and of coalesced calls `nccl:coalesced`.
    let name = entry.profiling_name.rsplit(':').next().unwrap_or_default();
    let types = entry.input_dtypes.iter().map(Some).chain([None; 64]);
    let inputs = entry.input_sizes.iter().zip(types);
    let inputs = inputs.map(|(sizes, kind)| {
        let kind = kind.map(|kind| format!(" {kind}")).unwrap_or_default();
        format!("{sizes:?}{kind}")
    });
    Call {
        operation: name.to_owned(),
        inputs: inputs.collect::<Vec<_>>().join(", "),
        group: entry.process_group,
        number: entry.collective_seq_id,
        is_point_to_point: entry.is_p2p,
        // Gloo's are retired without ever being completed.
        is_done: entry.retired || entry.state == "completed",
        frames: entry
            .frames
            .into_iter()
            .map(|frame| (frame.name, frame.filename, frame.line))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"version": "2.10", "pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}, "4": {"ranks": "[1,"}, "5": {}}, "pg_status":
        {"0": {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": 8},
         "4": {"last_enqueued_collective": "-1"}},
        "entries": [{"collective_seq_id": 9, "p2p_seq_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"],
        "profiling_name": "nccl:all_reduce", "input_sizes": [[2, 3], []], "input_dtypes": ["Float", "Long"],
        "state": "started", "retired": false, "is_p2p": false,
        "frames": [{"name": "step", "filename": "train.py", "line": 7}]}]}"#;

    #[test]
    fn a_dump_has_its_calls() {
        assert!(is_flight_dump(TEXT.as_bytes()) && !is_flight_dump(b"{}") && !is_flight_dump(b""));
        let dump = read(TEXT.as_bytes()).unwrap();
        assert_eq!(dump.enqueued.get("0"), Some(&9));
        assert_eq!(
            (dump.members.get("0"), dump.members.len()),
            (Some(&vec![0, 1, 2]), 1)
        );
        assert_eq!(
            dump.calls,
            [Call {
                group: ("0".to_owned(), "default_pg".to_owned()),
                number: 9,
                operation: "all_reduce".to_owned(),
                inputs: "[2, 3] Float, [] Long".to_owned(),
                frames: vec![("step".to_owned(), "train.py".to_owned(), 7)],
                ..Call::default()
            }]
        );
    }

    #[test]
    fn what_is_none_is_an_error() {
        for bytes in [&b"\x80\x02}."[..], b"\x80", b"{", &TEXT.as_bytes()[..200]] {
            assert!(read(bytes).is_err());
        }
        let other = TEXT.replace("2.10", "3.0");
        let error = read(other.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("version is 3.0"), "{error}");
    }
}
