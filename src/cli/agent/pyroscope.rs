//! Sends profiles to Pyroscope: pprof to `/ingest`, on a thread of its own.
//!
//! Source: "Server API", POST /ingest, of Grafana Pyroscope's documentation. Labels of samples
//! become labels of series there: only those of closed sets are sent.

use super::metrics::Metrics;
use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::outputs::resolve_recording;
use crate::model::profile::Profile;
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use crate::os::priority::run_behind;
use crate::recording::recording_of;
use crate::report::pprof;
use crate::report::view::ViewOptions;
use crate::torch::rules::RuleSet;
use anyhow::Result;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time of one profile.
pub(crate) const EVERY: Duration = Duration::from_secs(15);
/// Profiles that wait to be sent; later ones are dropped, and counted.
const WAITING: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Labels of samples that are sent.
const LABELS: &[&str] = &["rank", "phase", "activity"];
/// The name of the application that all profiles are of.
const APPLICATION: &str = "torchspy";

/// Segments of a session that become one profile.
pub(crate) struct Interval {
    pub(crate) run: RunInfo,
    pub(crate) segments: Vec<Segment>,
    pub(crate) job: Option<String>,
    pub(crate) node: String,
}

/// Where profiles go.
pub(crate) struct Pyroscope {
    intervals: Sender<Interval>,
    metrics: Arc<Mutex<Metrics>>,
}

struct Sending {
    client: ureq::Agent,
    url: String,
    rules: &'static RuleSet,
    metrics: Arc<Mutex<Metrics>>,
    has_failed: bool,
}

impl Pyroscope {
    /// Starts to send to the server at `url`: its address, or that of its `/ingest`.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(
        url: &str,
        rules: &'static RuleSet,
        metrics: Arc<Mutex<Metrics>>,
    ) -> Result<Self, Failure> {
        let (intervals, received) = bounded(WAITING);
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT));
        let base = url.trim_end_matches('/').trim_end_matches("/ingest");
        let sending = Sending {
            client: config.build().new_agent(),
            url: format!("{base}/ingest"),
            rules,
            metrics: Arc::clone(&metrics),
            has_failed: false,
        };
        std::thread::Builder::new()
            .name("torchspy-push".to_owned())
            .spawn(move || sending.run(&received))
            .map_err(Failure::new)?;
        Ok(Self { intervals, metrics })
    }

    /// Sends a profile, or drops it if many wait.
    pub(crate) fn send(&self, interval: Interval) {
        if self.intervals.try_send(interval).is_err() {
            count(&self.metrics, "dropped");
        }
    }
}

fn count(metrics: &Mutex<Metrics>, result: &str) {
    let mut metrics = metrics.lock().unwrap_or_else(PoisonError::into_inner);
    metrics.add_push(result);
}

impl Sending {
    fn run(mut self, intervals: &Receiver<Interval>) {
        run_behind(0);
        for interval in intervals {
            match self.post(&interval) {
                Ok(()) => {
                    self.has_failed = false;
                    count(&self.metrics, "sent");
                }
                Err(error) => {
                    count(&self.metrics, "failed");
                    if !std::mem::replace(&mut self.has_failed, true) {
                        messages::warning(&format!(
                            "no profile was sent to {}: {error}; said once, tried on",
                            without_user(&self.url)
                        ));
                    }
                }
            }
        }
    }

    fn post(&self, interval: &Interval) -> Result<()> {
        let recording = recording_of(interval.run.clone(), interval.segments.clone());
        let profile = resolve_recording(&recording, self.rules);
        let mut body = Vec::new();
        pprof::render_with(&profile, &ViewOptions::default(), LABELS, &mut body)?;
        let second = |ns: Option<i64>| (ns.unwrap_or(0) / 1_000_000_000).to_string();
        let request = self
            .client
            .post(&self.url)
            .query("name", name(interval, &profile))
            .query("from", second(profile.wall_ns(profile.start_ns)))
            .query("until", second(profile.wall_ns(profile.end_ns)))
            .query("sampleRate", format!("{:.0}", interval.run.rate_hz))
            .query("format", "pprof");
        request
            .content_type("application/octet-stream")
            .send(&body[..])?;
        Ok(())
    }
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
        ("node", Some(interval.node.clone())),
        ("rank", rank),
    ];
    let labels = labels
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", word(&value?))));
    let labels: Vec<String> = labels.collect();
    format!("{APPLICATION}{{{}}}", labels.join(","))
}

/// An address without a user's name and password.
fn without_user(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
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
    fn passwords_are_not_printed_and_labels_stay_apart() {
        assert_eq!(
            without_user("https://me:secret@host:4040/ingest"),
            "https://host:4040/ingest"
        );
        assert_eq!(without_user("http://host/ingest"), "http://host/ingest");
        assert_eq!(word("a,b=c {d}\n"), "a_b_c__d__");
    }
}
