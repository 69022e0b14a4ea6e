//! Other differences between the runs, which may explain a difference instead of the change under
//! test.

use super::Run;
use crate::model::profile::{ProfileProcess, Role};
use crate::model::progress::facts;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Recordings whose lengths differ by this factor are reported.
const MUCH_LONGER: f64 = 1.5;

/// A condition that is not equal in all runs.
#[derive(Clone, Debug, JsonSchema, PartialEq, Eq, Serialize)]
#[schemars(rename = "Differs")]
pub struct Discrepancy {
    /// Name of the condition.
    pub what: String,
    /// Values of A's runs.
    pub a: Vec<String>,
    /// Values of B's.
    pub b: Vec<String>,
}

/// Maximum number of conditions that are compared: a recording is untrusted input.
const MOST_CONDITIONS: usize = 100;
/// Conditions that only locate something, or that [`FACTS`] covers.
const IS_SAID_ELSEWHERE: &[&str] = &[facts::FUNCTION, facts::TORCH, facts::NCCL_RAS];

/// A property of a run, as text.
type Fact = fn(&Run<'_>) -> String;

/// Properties in which two recordings can differ.
const FACTS: &[(&str, Fact)] = &[
    ("command line", command),
    ("host", |run| run.profile.run.host.clone()),
    ("CPUs", |run| run.profile.run.cpus.to_string()),
    ("kernel", |run| run.profile.run.kernel.clone()),
    ("Python", |run| {
        process(run).map_or_else(String::new, |process| process.info.python.clone())
    }),
    ("torch", |run| {
        process(run).map_or_else(String::new, |process| process.info.torch.clone())
    }),
    ("CUDA", |run| {
        let cuda = process(run).is_some_and(|process| process.info.has_cuda);
        if cuda { "loaded" } else { "not loaded" }.to_owned()
    }),
    ("OMP_NUM_THREADS", |run| {
        let mut environment = process(run)
            .into_iter()
            .flat_map(|process| &process.info.environment);
        environment
            .find(|(name, _)| name == "OMP_NUM_THREADS")
            .map_or_else(|| "not set".to_owned(), |(_, value)| value.clone())
    }),
    ("rank", |run| ranked(run).0),
    ("world size", |run| ranked(run).1),
    ("rate", |run| format!("{} Hz", run.profile.run.rate_hz)),
    ("native stacks", |run| on(run.profile.run.native)),
    ("--nonblocking", |run| on(run.profile.run.nonblocking)),
    ("--gil", |run| on(run.profile.run.gil_only)),
    ("--thread-name", |run| {
        let threads = run.profile.run.threads.as_deref();
        threads.unwrap_or("all").to_owned()
    }),
    ("start", |run| {
        if run.profile.run.launched {
            "recorded from its start"
        } else {
            "attached to"
        }
        .to_owned()
    }),
];

/// Conditions that are not equal in all runs, in the order of reports.
pub(super) fn discrepancies(a: &[Run<'_>], b: &[Run<'_>]) -> Vec<Discrepancy> {
    let values = |runs: &[Run<'_>], fact: Fact| -> Vec<String> {
        let mut values: Vec<String> = runs.iter().map(fact).collect();
        values.sort();
        values.dedup();
        values
    };
    let mut found: Vec<Discrepancy> = FACTS
        .iter()
        .map(|&(what, fact)| Discrepancy {
            what: what.to_owned(),
            a: values(a, fact),
            b: values(b, fact),
        })
        .filter(|each| each.a != each.b || each.a.len() > 1)
        .collect();
    found.extend(read_conditions(a, b));
    found.extend(lengths(a, b));
    found
}

/// Conditions that were read from the processes' loaders, optimizers and environment: batch size,
/// workers, quota.
fn read_conditions(a: &[Run<'_>], b: &[Run<'_>]) -> Vec<Discrepancy> {
    let mut names: BTreeMap<&str, [BTreeSet<&str>; 2]> = BTreeMap::new();
    for (side, runs) in [a, b].into_iter().enumerate() {
        for run in runs {
            let conditions = run.profile.sideband.conditions.iter();
            let own = conditions
                .filter(|each| each.process == run.process)
                .map(|each| (each.name.as_str(), each.value.as_str()));
            let counters = run.profile.counters.iter();
            let of_counters = counters
                .filter(|counter| counter.process == run.process)
                .flat_map(|counter| &counter.facts)
                .map(|(name, value)| (name.as_str(), value.as_str()));
            for (name, value) in own.chain(of_counters) {
                if !IS_SAID_ELSEWHERE.contains(&name) && names.len() < MOST_CONDITIONS {
                    let sides = names.entry(name).or_default();
                    sides[side].insert(value);
                }
            }
        }
    }
    let owned = |values: BTreeSet<&str>| match values.is_empty() {
        true => vec!["not read".to_owned()],
        false => values.into_iter().map(str::to_owned).collect(),
    };
    names
        .into_iter()
        .filter(|(_, [a, b])| a != b)
        .map(|(name, [a, b])| Discrepancy {
            what: name.replace('_', " "),
            a: owned(a),
            b: owned(b),
        })
        .collect()
}

fn lengths(a: &[Run<'_>], b: &[Run<'_>]) -> Option<Discrepancy> {
    let seconds = |run: &Run<'_>| {
        let profile = run.profile;
        profile.end_ns.saturating_sub(profile.start_ns) as f64 / 1e9
    };
    let all = || a.iter().chain(b).map(seconds);
    let shortest = all().fold(f64::INFINITY, f64::min);
    let longest = all().fold(0.0, f64::max);
    let shown = |runs: &[Run<'_>]| {
        runs.iter()
            .map(|run| format!("{:.0} s", seconds(run)))
            .collect()
    };
    (longest > MUCH_LONGER * shortest).then(|| Discrepancy {
        what: "length".to_owned(),
        a: shown(a),
        b: shown(b),
    })
}

fn process<'p>(run: &Run<'p>) -> Option<&'p ProfileProcess> {
    run.profile.process(run.process)
}

/// The arguments without the interpreter's path; its version is compared separately.
fn command(run: &Run<'_>) -> String {
    let command = process(run).map(|process| process.info.command.as_slice());
    let command = match command {
        Some(command) if !command.is_empty() => command,
        _ => run.profile.run.command.as_slice(),
    };
    command.get(1..).unwrap_or_default().join(" ")
}

fn ranked(run: &Run<'_>) -> (String, String) {
    let number = |number: Option<u32>| number.map_or_else(|| "none".to_owned(), |n| n.to_string());
    let role = process(run).map(|process| process.role);
    (
        number(role.and_then(Role::rank)),
        number(role.and_then(Role::world_size)),
    )
}

fn on(option: bool) -> String {
    if option { "on" } else { "off" }.to_owned()
}
