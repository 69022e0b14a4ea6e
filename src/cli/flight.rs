//! Reads dumps of torch's flight recorder from files.

use super::failure::Failure;
use super::regular::open_regular;
use crate::analysis::dump::flight::findings;
use crate::model::flight::FlightDump;
use crate::report::dump::flight::FlightReport;
use crate::torch::flight_recorder::{is_flight_dump, read};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The longest dump, bytes: 100,000 calls with their stacks.
const MAX_BYTES: u64 = 1 << 30;

/// The highest rank without a dump that is listed.
const MAX_RANK: u32 = 1 << 20;

/// What flight recorders say, if the first of the files is a dump of one.
pub(crate) fn flight(paths: &[PathBuf]) -> Result<Option<FlightReport>, Failure> {
    let is_one = |path: &PathBuf| {
        let bytes = bytes_of(path);
        bytes.is_ok_and(|bytes| is_flight_dump(&bytes))
    };
    let paths: Vec<PathBuf> = paths.iter().flat_map(|path| within(path)).collect();
    if !paths.first().is_some_and(is_one) {
        return Ok(None);
    }
    let (mut dumps, mut not_read) = (BTreeMap::new(), Vec::new());
    for path in &paths {
        match dump_of(path) {
            Ok((rank, dump)) => {
                if dumps.insert(rank, dump).is_some() {
                    return Err(Failure::message(format!(
                        "{} is another dump of rank {rank}",
                        path.display()
                    ))
                    .hint("give one file for each rank of one job: the number at the end of its name is the rank"));
                }
            }
            Err(error) => not_read.push((path.display().to_string(), format!("{error:#}"))),
        }
    }
    if dumps.is_empty() {
        let (file, why) = not_read.remove(0);
        return Err(Failure::message(format!("cannot read {file}: {why}")).hint(
            "--from reads outputs of torchspy dump --json, or dumps of torch's flight recorder",
        ));
    }
    let ranks: Vec<u32> = dumps.keys().copied().collect();
    let named = dumps
        .values()
        .flat_map(|dump| dump.members.values().flatten());
    let last = ranks
        .iter()
        .chain(named)
        .copied()
        .max()
        .unwrap_or(0)
        .min(MAX_RANK);
    Ok(Some(FlightReport {
        missing_ranks: (0..=last)
            .filter(|rank| !dumps.contains_key(rank))
            .collect(),
        ranks,
        not_read,
        findings: findings(&dumps),
    }))
}

/// The file, or the files of ranks in a folder.
fn within(path: &Path) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(path) else {
        return vec![path.to_owned()];
    };
    let files = listing.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files.filter(|file| rank_of(file).is_some()).collect();
    files.sort();
    files
}

fn bytes_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = open_regular(path)?;
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn dump_of(path: &Path) -> anyhow::Result<(u32, FlightDump)> {
    let rank = rank_of(path)
        .ok_or_else(|| anyhow::anyhow!("its name does not end with the number of a rank"))?;
    Ok((rank, read(&bytes_of(path)?)?))
}

/// The number at the end of a file's name, without its extension: `nccl_trace_rank_7`.
fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_stem()?.to_str()?;
    let digits = name
        .trim_end_matches(|letter: char| letter.is_ascii_digit())
        .len();
    name[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_at_the_ends_of_names() {
        for (name, rank) in [
            ("/tmp/nccl_trace_rank_7", Some(7)),
            ("trace_12.json", Some(12)),
            ("trace", None),
            ("99999999999", None),
        ] {
            assert_eq!(rank_of(Path::new(name)), rank, "{name}");
        }
    }
}
