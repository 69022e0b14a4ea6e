//! Sends profiles to receivers, each on a thread of its own: one that does not answer holds no
//! other up.

use super::metrics::Metrics;
use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::outputs::resolve_recording;
use crate::model::profile::Profile;
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use crate::os::priority::run_behind;
use crate::recording::recording_of;
use crate::torch::rules::RuleSet;
use anyhow::Result;
use crossbeam_channel::{Receiver as Channel, Sender, bounded};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time of one profile.
pub(crate) const EVERY: Duration = Duration::from_secs(15);
/// Profiles that wait to be sent; later ones are dropped, and counted.
const WAITING: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer that is read, bytes.
const LONGEST_ANSWER: u64 = 65_536;

/// Segments of a session that become one profile.
pub(crate) struct Interval {
    pub(crate) run: RunInfo,
    pub(crate) segments: Vec<Segment>,
    pub(crate) job: Option<String>,
}

/// What takes profiles.
pub(crate) struct Receiver {
    /// Its name in `torchspy_pushes_total`.
    pub(crate) name: &'static str,
    /// Where it takes them, below the address of its server.
    pub(crate) path: &'static str,
    /// A profile as it takes it; `None` if there is nothing to send.
    pub(crate) message: fn(&Interval, &Profile) -> Result<Option<Message>>,
    /// Finds what an answer says that was not taken.
    pub(crate) check: fn(&[u8]) -> Result<()>,
}

/// A profile as it is sent.
pub(crate) struct Message {
    /// The query of the address.
    pub(crate) query: Vec<(&'static str, String)>,
    /// Fields of the head.
    pub(crate) head: &'static [(&'static str, &'static str)],
    pub(crate) body: Vec<u8>,
}

/// Where profiles go.
pub(crate) struct Push {
    name: &'static str,
    intervals: Sender<Arc<Interval>>,
    metrics: Arc<Mutex<Metrics>>,
}

struct Sending {
    receiver: Receiver,
    client: ureq::Agent,
    url: String,
    rules: &'static RuleSet,
    metrics: Arc<Mutex<Metrics>>,
    has_failed: bool,
}

impl Push {
    /// Starts to send to the server at `url`: its address, or that of the receiver's path there.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(
        receiver: Receiver,
        url: &str,
        rules: &'static RuleSet,
        metrics: &Arc<Mutex<Metrics>>,
    ) -> Result<Self, Failure> {
        let (intervals, received) = bounded(WAITING);
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT));
        let name = receiver.name;
        let sending = Sending {
            client: config.build().new_agent(),
            url: address(url, receiver.path),
            receiver,
            rules,
            metrics: Arc::clone(metrics),
            has_failed: false,
        };
        std::thread::Builder::new()
            .name("torchspy-push".to_owned())
            .spawn(move || sending.run(&received))
            .map_err(Failure::new)?;
        Ok(Self {
            name,
            intervals,
            metrics: Arc::clone(metrics),
        })
    }

    /// Sends a profile, or drops it if many wait.
    pub(crate) fn send(&self, interval: Arc<Interval>) {
        if self.intervals.try_send(interval).is_err() {
            count(&self.metrics, self.name, "dropped");
        }
    }
}

fn count(metrics: &Mutex<Metrics>, receiver: &str, result: &str) {
    let mut metrics = metrics.lock().unwrap_or_else(PoisonError::into_inner);
    metrics.add_push(receiver, result);
}

impl Sending {
    fn run(mut self, intervals: &Channel<Arc<Interval>>) {
        run_behind(0);
        for interval in intervals {
            match self.post(&interval) {
                Ok(false) => {}
                Ok(true) => {
                    self.has_failed = false;
                    count(&self.metrics, self.receiver.name, "sent");
                }
                Err(error) => {
                    count(&self.metrics, self.receiver.name, "failed");
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

    /// Whether there was something to send.
    fn post(&self, interval: &Interval) -> Result<bool> {
        let recording = recording_of(interval.run.clone(), interval.segments.clone());
        let profile = resolve_recording(&recording, self.rules);
        let Some(message) = (self.receiver.message)(interval, &profile)? else {
            return Ok(false);
        };
        let mut request = self.client.post(&self.url).query_pairs(message.query);
        for &(field, value) in message.head {
            request = request.header(field, value);
        }
        let mut answer = request.send(&message.body[..])?;
        let answer = answer.body_mut().with_config().limit(LONGEST_ANSWER);
        (self.receiver.check)(&answer.read_to_vec()?)?;
        Ok(true)
    }
}

/// The address of `path` on the server at `url`, which may have it already.
fn address(url: &str, path: &str) -> String {
    let base = url.trim_end_matches('/').trim_end_matches(path);
    format!("{}{path}", base.trim_end_matches('/'))
}

/// An address without a user's name and password.
fn without_user(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_added_where_it_is_missing_and_passwords_are_not_printed() {
        for url in [
            "http://a:1",
            "http://a:1/",
            "http://a:1/ingest",
            "http://a:1/ingest/",
        ] {
            assert_eq!(address(url, "/ingest"), "http://a:1/ingest");
        }
        assert_eq!(address("http://a/b/", "/v1/c"), "http://a/b/v1/c");
        assert_eq!(
            without_user("https://me:secret@host:4040/ingest"),
            "https://host:4040/ingest"
        );
        assert_eq!(without_user("http://host/ingest"), "http://host/ingest");
    }
}
