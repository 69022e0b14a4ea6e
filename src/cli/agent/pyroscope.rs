//! What Pyroscope takes: pprof at `/ingest`.
//!
//! Source: "Server API", POST /ingest, of Grafana Pyroscope's documentation. Labels of samples
//! become labels of series there: only those of closed sets are sent.

use super::push::{Interval, Message, Receiver};
use crate::model::profile::Profile;
use crate::report::pprof;
use crate::report::view::ViewOptions;
use anyhow::Result;

pub(crate) const PYROSCOPE: Receiver = Receiver {
    name: "pyroscope",
    path: "/ingest",
    message,
    check: |_| Ok(()),
};

/// Labels of samples that are sent.
const LABELS: &[&str] = &["rank", "phase", "activity"];
/// The name of the application that all profiles are of.
const APPLICATION: &str = "torchspy";

fn message(interval: &Interval, profile: &Profile) -> Result<Option<Message>> {
    let mut body = Vec::new();
    pprof::render_with(profile, &ViewOptions::default(), LABELS, &mut body)?;
    let second = |ns: Option<i64>| (ns.unwrap_or(0) / 1_000_000_000).to_string();
    Ok(Some(Message {
        query: vec![
            ("name", name(interval, profile)),
            ("from", second(profile.wall_ns(profile.start_ns))),
            ("until", second(profile.wall_ns(profile.end_ns))),
            ("sampleRate", format!("{:.0}", interval.run.rate_hz)),
            ("format", "pprof".to_owned()),
        ],
        head: &[("Content-Type", "application/octet-stream")],
        body,
    }))
}

/// `torchspy{job=42,node=node1,rank=3}`: the rank where all of the profile is of one.
fn name(interval: &Interval, profile: &Profile) -> String {
    let mut ranks: Vec<u32> = profile
        .processes
        .iter()
        .filter_map(|process| process.role.rank())
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    let rank = match ranks[..] {
        [only] => Some(only.to_string()),
        _ => None,
    };
    let labels = [
        ("job", interval.job.clone()),
        ("node", Some(interval.run.host.clone())),
        ("rank", rank),
    ];
    let labels = labels
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", word(&value?))));
    let labels: Vec<String> = labels.collect();
    format!("{APPLICATION}{{{}}}", labels.join(","))
}

/// Without what separates labels.
fn word(value: &str) -> String {
    let part = |letter: char| match letter {
        '{' | '}' | ',' | '=' | '"' => '_',
        letter if letter.is_whitespace() || letter.is_control() => '_',
        letter => letter,
    };
    value.chars().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stay_apart() {
        assert_eq!(word("a,b=c {d}\n"), "a_b_c__d__");
    }
}
