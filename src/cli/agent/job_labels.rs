//! What jobs are called in series: by their names, and where two jobs of one name run at the same
//! time the later one by where its ranks meet, too.
//!
//! A job keeps its label while it has series: otherwise its counters would end, and others begin.

use crate::model::dump::JobKey;
use crate::model::process::ProcessInfo;
use crate::torch::job::{JobPlace, job_key};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Longest name in a label, characters: a job's name is whatever its user called it.
const LONGEST: usize = 128;

/// The labels of jobs that have series.
#[derive(Debug, Default)]
pub(crate) struct JobLabels {
    jobs: Vec<Labelled>,
}

#[derive(Debug)]
struct Labelled {
    key: JobKey,
    name: Option<String>,
    /// `None`: its series have no label.
    label: Option<String>,
    /// Its processes that have not ended: pid, and start in clock ticks.
    living: BTreeSet<(i32, u64)>,
    seen: Instant,
}

impl JobLabels {
    /// The label of a rank's job; `None` if the job has no name and is the only one without.
    /// `is_last`: nothing more will be heard of the rank.
    pub(crate) fn of(
        &mut self,
        process: &ProcessInfo,
        is_last: bool,
        now: Instant,
    ) -> Option<String> {
        let name = JobPlace::of(&process.environment, &process.command).job;
        let name: Option<String> = name.map(|name| name.chars().take(LONGEST).collect());
        let Some(key) = job_key(&process.environment) else {
            return name;
        };
        let known = |job: &Labelled| job.name == name && job.key.agrees(&key);
        let at = self.jobs.iter().position(known).unwrap_or_else(|| {
            self.jobs.push(Labelled {
                label: self.free_label(&name, &key),
                key: key.clone(),
                name,
                living: BTreeSet::new(),
                seen: now,
            });
            self.jobs.len() - 1
        });
        let job = self.jobs.get_mut(at)?;
        job.seen = now;
        job.key.address = job.key.address.take().or(key.address);
        let id = (process.pid, process.start_ticks);
        match process.exited || is_last {
            true => job.living.remove(&id),
            false => job.living.insert(id),
        };
        job.label.clone()
    }

    /// The name, if no job that runs has it.
    fn free_label(&self, name: &Option<String>, key: &JobKey) -> Option<String> {
        let mut running = self.jobs.iter().filter(|job| !job.living.is_empty());
        if running.all(|job| job.label != *name) {
            return name.clone();
        }
        let ranks = key.world_size.map(|count| format!("{count} ranks"));
        let more = key.address.clone().or(ranks).unwrap_or_default();
        Some(match name {
            Some(name) => format!("{name}, {more}"),
            None => more,
        })
    }

    /// Drops jobs that nothing was heard of for so long: their series are dropped, too.
    pub(crate) fn forget(&mut self, now: Instant, keep: Duration) {
        self.jobs
            .retain(|job| now.saturating_duration_since(job.seen) < keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank of a job that meets at this port.
    fn rank(job: &str, port: u16, pid: i32) -> ProcessInfo {
        let port = port.to_string();
        let variables = [
            ("TORCHELASTIC_RUN_ID", job),
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", &port),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        ProcessInfo {
            pid,
            environment: variables.to_vec(),
            ..ProcessInfo::default()
        }
    }

    #[test]
    fn jobs_of_one_name_have_labels_of_their_own_while_both_run() {
        let mut labels = JobLabels::default();
        let now = Instant::now();
        let (first, second) = (rank("run", 1, 11), rank("run", 2, 21));
        let of = |labels: &mut JobLabels, rank: &ProcessInfo, is_last| {
            labels.of(rank, is_last, now).unwrap()
        };
        assert_eq!(of(&mut labels, &first, false), "run");
        assert_eq!(of(&mut labels, &rank("run", 1, 12), false), "run");
        assert_eq!(of(&mut labels, &second, false), "run, port 2");
        assert_eq!(of(&mut labels, &rank("other", 2, 31), false), "other");
        // The first one ends. What has a label keeps it, and the name is free once all have ended.
        assert_eq!(of(&mut labels, &first, true), "run");
        assert_eq!(of(&mut labels, &rank("run", 3, 41), true), "run, port 3");
        let mut ended = rank("run", 1, 12);
        ended.exited = true;
        assert_eq!(of(&mut labels, &ended, false), "run");
        assert_eq!(of(&mut labels, &second, false), "run, port 2");
        // The same job, started again.
        assert_eq!(of(&mut labels, &rank("run", 4, 51), false), "run");
        assert_eq!(of(&mut labels, &rank("run", 5, 61), false), "run, port 5");
    }

    #[test]
    fn jobs_without_a_name_are_called_by_where_they_meet() {
        let mut labels = JobLabels::default();
        let now = Instant::now();
        let first = labels.of(&rank("none", 1, 11), false, now);
        let second = labels.of(&rank("none", 2, 21), false, now);
        assert_eq!((first, second.as_deref()), (None, Some("node1:2")));
        // Nothing is known of it but that it trains.
        assert_eq!(labels.of(&ProcessInfo::default(), false, now), None);
        let later = now + Duration::from_secs(60);
        labels.of(&rank("none", 2, 21), false, later);
        labels.forget(later, Duration::from_secs(60));
        assert_eq!(labels.of(&rank("none", 3, 31), false, later), None);
        let second = labels.of(&rank("none", 2, 21), false, later);
        assert_eq!(second.as_deref(), Some("node1:2"));
    }
}
