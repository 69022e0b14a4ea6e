//! Parses what NCCL's RAS answers with: JSON since 2.28.7, text before. Source of the JSON: NCCL
//! 2.30.7, src/ras/client_support.cc (`rasDumpCommsToJSON`), and "RAS" in its user guide. The
//! formats of other versions may differ: what is missing is left out.

mod text;

use crate::model::nccl_ras::{Communicator, Member, MissingRank, Ras, RasRank};
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// The longest text that is kept, characters.
const MAX_TEXT: usize = 64;
/// Kinds of collectives of a rank; NCCL 2.30 has 5.
const MAX_KINDS: usize = 32;

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    nccl_version: String,
    communicators: Vec<CommunicatorEntry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CommunicatorEntry {
    hash: String,
    size: u32,
    ranks: Vec<Entry>,
    missing_ranks: Vec<Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    rank: u32,
    host: String,
    pid: i32,
    status: Status,
    collective_counts: Counts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    async_error: i32,
    unresponsive: bool,
    considered_dead: bool,
}

#[derive(Default)]
struct Counts(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Counts;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("counts by kind")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Counts, A::Error> {
                let mut counts = Vec::new();
                while counts.len() < MAX_KINDS {
                    match map.next_entry::<String, u64>()? {
                        Some((kind, count)) => counts.push((cut(kind), count)),
                        None => return Ok(Counts(counts)),
                    }
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Counts(counts))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

fn cut(text: String) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => text.get(..end).unwrap_or_default().to_owned(),
        None => text,
    }
}

/// Parses an answer.
///
/// # Errors
/// A few words on what is wrong with it.
pub fn parse_ras(answer: &[u8]) -> Result<Ras, String> {
    let text = std::str::from_utf8(answer).unwrap_or_default();
    match text.strip_prefix("NCCL version ") {
        Some(text) => text::parse_text(text),
        None => parse_json(answer),
    }
}

fn parse_json(text: &[u8]) -> Result<Ras, String> {
    let document: Document = serde_json::from_slice(text)
        .map_err(|error| format!("its answer is not understood: {error}"))?;
    let member = |entry: &mut Entry| Member {
        rank: entry.rank,
        host: cut(std::mem::take(&mut entry.host)),
        pid: entry.pid,
        is_here: false,
    };
    let communicators = document.communicators.into_iter();
    Ok(Ras {
        nccl_version: cut(document.nccl_version),
        communicators: communicators
            .map(|mut each| Communicator {
                hash: cut(std::mem::take(&mut each.hash)),
                size: each.size,
                ranks: each
                    .ranks
                    .iter_mut()
                    .map(|entry| RasRank {
                        member: member(entry),
                        async_error: entry.status.async_error,
                        counts: std::mem::take(&mut entry.collective_counts.0),
                    })
                    .collect(),
                missing: each
                    .missing_ranks
                    .iter_mut()
                    .map(|entry| MissingRank {
                        member: member(entry),
                        unresponsive: entry.status.unresponsive,
                        dead: entry.status.considered_dead,
                    })
                    .collect(),
                ..Communicator::default()
            })
            .collect(),
        ..Ras::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the keys of the sample in NCCL's user guide
    /// (docs/userguide/source/troubleshooting/ras.rst).
    const SAMPLE: &str = r#"{
        "nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2025-12-19 13:06:53", "communicators_count": 1,
        "communicators": [{
            "hash": "0xae94423cfbb2ef4a", "secondary_hash": "0x1:0x2", "size": 2, "ranks_count": 1,
            "missing_ranks_count": 1,
            "ranks": [{
                "rank": 0, "host": "172.16.64.245", "pid": 1524344, "cuda_dev": 0, "nvml_dev": 0,
                "status": {"init_state": 0, "async_error": 0, "finalize_called": false,
                           "destroy_flag": false, "abort_flag": false},
                "collective_counts": {"Broadcast": 1, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0,
                                      "AllReduce": 1023}
            }],
            "missing_ranks": [{
                "rank": 1, "host": "172.16.64.245", "pid": 1524345, "cuda_dev": 1, "nvml_dev": 1,
                "status": {"unresponsive": true, "considered_dead": false}
            }]
        }],
        "ras": {"collection_time_sec": 0.000, "timeouts_count": 0}
    }"#;

    #[test]
    fn counts_and_missing_ranks_are_read() {
        let ras = parse_ras(SAMPLE.as_bytes()).unwrap();
        assert_eq!(ras.nccl_version, "2.29.1");
        let communicator = &ras.communicators[0];
        assert_eq!((communicator.size, communicator.ranks.len()), (2, 1));
        let rank = &communicator.ranks[0];
        assert_eq!(rank.member.pid, 1524344);
        assert_eq!(rank.counts[4], ("AllReduce".to_owned(), 1023));
        let missing = &communicator.missing[0];
        assert!(missing.unresponsive && !missing.dead && missing.member.rank == 1);
    }

    #[test]
    fn other_formats_are_an_error_or_less() {
        for text in [
            "",
            "Job summary\n====",
            "[]",
            "{}",
            "{\"communicators\": [3]}",
        ] {
            assert!(parse_ras(text.as_bytes()).is_err(), "{text}");
        }
        let deep = "[".repeat(1_000_000);
        assert!(parse_ras(deep.as_bytes()).is_err());
        let negative = SAMPLE.replace("1023", "-1");
        assert!(parse_ras(negative.as_bytes()).is_err());
        let many: Vec<String> = (0..1000).map(|kind| format!("\"K{kind}\": 1")).collect();
        let text = format!(
            "{{\"communicators\": [{{\"ranks\": [{{\"host\": \"{}\", \"collective_counts\": {{{}}}}}]}}]}}",
            "é".repeat(10_000),
            many.join(",")
        );
        let ras = parse_ras(text.as_bytes()).unwrap();
        let rank = &ras.communicators[0].ranks[0];
        assert_eq!(
            (rank.counts.len(), rank.member.host.chars().count()),
            (MAX_KINDS, MAX_TEXT)
        );
    }
}
