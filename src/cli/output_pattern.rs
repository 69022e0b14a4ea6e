//! Names of outputs that are made of facts: `runs/{job}/{host}-{rank}.tspy`.

use super::failure::Failure;
use super::output_names::OutputFile;
use super::outputs::NameParts;
use crate::report::naming::{distinct_part, short_host, utc};
use crate::torch::job::JobPlace;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A fact that a name may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    Job,
    Host,
    Rank,
    LocalRank,
    WorldSize,
    Node,
    Pid,
    Time,
}

/// The facts, by the names that they have in braces.
const FACTS: &[(&str, Fact)] = &[
    ("job", Fact::Job),
    ("host", Fact::Host),
    ("rank", Fact::Rank),
    ("local_rank", Fact::LocalRank),
    ("world_size", Fact::WorldSize),
    ("node", Fact::Node),
    ("pid", Fact::Pid),
    ("time", Fact::Time),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Fact(&'static str, Fact),
}

/// An error where a name has braces that are not a pattern.
pub(super) fn check(outputs: &[OutputFile]) -> Result<(), Failure> {
    outputs
        .iter()
        .try_for_each(|output| check_path(&output.path))
}

/// The same of one name.
pub(super) fn check_path(path: &Path) -> Result<(), Failure> {
    parse(path).map(drop)
}

/// The outputs under the names that the facts give them.
pub(crate) fn fill(
    outputs: &[OutputFile],
    parts: &NameParts<'_>,
    place: &JobPlace,
) -> Result<Vec<OutputFile>, Failure> {
    let mut filled: Vec<OutputFile> = Vec::new();
    for output in outputs {
        let (path, is_pattern) = fill_path(&output.path, parts, place)?;
        if filled.iter().any(|known| known.path == path) {
            return Err(Failure::usage(
                format!("{} is the name of two outputs", path.display()),
                "give each output a name of its own",
            ));
        }
        filled.push(OutputFile {
            path,
            is_numbered: is_pattern,
            ..*output
        });
    }
    Ok(filled)
}

/// The path, and whether it has a fact.
pub(crate) fn fill_path(
    pattern: &Path,
    parts: &NameParts<'_>,
    place: &JobPlace,
) -> Result<(PathBuf, bool), Failure> {
    let (mut path, mut is_pattern) = (Vec::new(), false);
    for part in parse(pattern)? {
        match part {
            Part::Text(text) => path.extend(text),
            Part::Fact(name, fact) => {
                is_pattern = true;
                let value = value(fact, parts, place).filter(|value| !value.is_empty());
                let value = value.ok_or_else(|| missing(pattern, name, fact, parts, place))?;
                path.extend(value.into_bytes());
            }
        }
    }
    Ok((OsString::from_vec(path).into(), is_pattern))
}

/// A fact as a part of a file's name.
fn value(fact: Fact, parts: &NameParts<'_>, place: &JobPlace) -> Option<String> {
    let number = |value: Option<u32>| value.map(|number| number.to_string());
    match fact {
        Fact::Job => place.job.as_deref().map(distinct_part),
        Fact::Host => Some(distinct_part(short_host(parts.host))),
        Fact::Rank => number(place.rank),
        Fact::LocalRank => number(place.local_rank),
        Fact::WorldSize => number(place.world_size),
        Fact::Node => number(place.node),
        Fact::Pid => Some(parts.pid.to_string()),
        Fact::Time => Some(utc(parts.started_wall_ns)),
    }
}

/// A fact that is not known here.
fn missing(
    pattern: &Path,
    name: &str,
    fact: Fact,
    parts: &NameParts<'_>,
    place: &JobPlace,
) -> Failure {
    let of_rank = matches!(fact, Fact::Rank | Fact::LocalRank | Fact::WorldSize);
    let why = match &place.launcher {
        Some(launcher) if of_rank => {
            format!("{launcher} starts several ranks, and one recording holds those of this node")
        }
        _ => format!(
            "the environment of process {} has no variable for it",
            parts.pid
        ),
    };
    let set = match fact {
        Fact::Job => "set TORCHSPY_JOB=NAME, or use",
        _ => "use",
    };
    let known: Vec<String> = FACTS
        .iter()
        .filter(|(_, fact)| value(*fact, parts, place).is_some_and(|value| !value.is_empty()))
        .map(|(name, _)| format!("{{{name}}}"))
        .collect();
    Failure::usage(
        format!("{}: {{{name}}} has no value here: {why}", pattern.display()),
        format!("{set} what has one: {}", known.join(" ")),
    )
}

fn parse(pattern: &Path) -> Result<Vec<Part>, Failure> {
    let mut parts = Vec::new();
    let mut text: Vec<u8> = Vec::new();
    let mut rest = pattern.as_os_str().as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'{' | b'}' if after.first() == Some(&byte) => {
                text.push(byte);
                rest = &after[1..];
            }
            b'{' => {
                let end = after.iter().position(|&byte| byte == b'}');
                let end = end.ok_or_else(|| malformed(pattern, "a brace is not closed"))?;
                let name = String::from_utf8_lossy(&after[..end]);
                let known = FACTS.iter().find(|(known, _)| *known == name);
                let &(name, fact) = known
                    .ok_or_else(|| malformed(pattern, &format!("no fact is called {{{name}}}")))?;
                parts.push(Part::Text(std::mem::take(&mut text)));
                parts.push(Part::Fact(name, fact));
                rest = &after[end + 1..];
            }
            b'}' => return Err(malformed(pattern, "a brace is closed that is not open")),
            _ => text.push(byte),
        }
    }
    parts.push(Part::Text(text));
    Ok(parts)
}

fn malformed(pattern: &Path, why: &str) -> Failure {
    let names: Vec<String> = FACTS
        .iter()
        .map(|(name, _)| format!("{{{name}}}"))
        .collect();
    Failure::usage(
        format!("{}: {why}", pattern.display()),
        format!(
            "there are {}; {{{{ and }}}} are braces themselves",
            names.join(" ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: NameParts<'_> = NameParts {
        command: &[],
        host: "node1.cluster",
        rank: None,
        pid: 42,
        started_wall_ns: 1_795_222_923_000_000_000,
    };

    fn place() -> JobPlace {
        JobPlace {
            job: Some("../../a b".to_owned()),
            rank: Some(3),
            world_size: Some(8),
            local_rank: Some(1),
            node: Some(0),
            launcher: None,
        }
    }

    fn filled(pattern: &str, place: &JobPlace) -> Result<(String, bool), Failure> {
        let (path, is_pattern) = fill_path(Path::new(pattern), &PARTS, place)?;
        Ok((path.to_str().unwrap().to_owned(), is_pattern))
    }

    #[test]
    fn facts_are_put_into_names() {
        for (pattern, expected, is_pattern) in [
            ("run.tspy", "run.tspy", false),
            ("r/{{x}}.tspy", "r/{x}.tspy", false),
            ("{rank}.tspy", "3.tspy", true),
            ("r/{job}/{host}-{rank}.tspy", "r/a_b/node1-3.tspy", true),
            ("{local_rank}of{world_size}n{node}", "1of8n0", true),
            ("{pid}-{time}.svg", "42-20261121T010203Z.svg", true),
            ("{{{rank}}}", "{3}", true),
        ] {
            let found = filled(pattern, &place()).unwrap();
            assert_eq!(found, (expected.to_owned(), is_pattern));
        }
    }

    #[test]
    fn what_is_no_pattern_is_named_with_what_there_is() {
        for pattern in [
            "{rnk}.tspy",
            "{}.tspy",
            "a}.tspy",
            "{rank.tspy",
            "{Rank}.tspy",
        ] {
            let failure = filled(pattern, &place()).unwrap_err();
            assert_eq!(failure.status, 2);
            let hint = failure.hint.unwrap();
            assert!(
                hint.contains("{local_rank}") && hint.contains("{{ and }}"),
                "{hint}"
            );
        }
    }

    #[test]
    fn a_fact_without_a_value_is_an_error_with_what_has_one() {
        let alone = JobPlace::default();
        let failure = filled("{rank}.tspy", &alone).unwrap_err();
        assert!(
            failure
                .text()
                .contains("the environment of process 42 has no")
        );
        assert_eq!(
            failure.hint.as_deref(),
            Some("use what has one: {host} {pid} {time}")
        );
        let failure = filled("{job}.tspy", &alone).unwrap_err();
        assert!(
            failure
                .hint
                .is_some_and(|hint| hint.contains("TORCHSPY_JOB"))
        );
        let torchrun = JobPlace {
            launcher: Some("torchrun".to_owned()),
            node: Some(1),
            ..alone
        };
        let failure = filled("{rank}.tspy", &torchrun).unwrap_err();
        assert!(failure.text().contains("torchrun starts several ranks"));
        assert!(failure.hint.is_some_and(|hint| hint.contains("{node}")));
        // A value of which nothing can be in a name.
        let hidden = JobPlace {
            job: Some("..".to_owned()),
            ..place()
        };
        assert!(filled("{job}.tspy", &hidden).is_err());
    }
}
