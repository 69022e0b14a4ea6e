//! Tells the jobs of one dump apart: ranks are compared with those of their own job only.

use super::job::HostAnswer;
use crate::model::dump::{Dump, DumpedProcess, JobKey};
use crate::model::profile::Role;
use std::borrow::Cow;

/// A job, and what was dumped of it.
#[derive(Clone, Debug)]
pub struct JobPart<T> {
    pub name: JobName,
    pub of: T,
}

/// How a job is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobName {
    /// It is the only one.
    Only,
    /// By an id that no other of these jobs has: `--job ID` takes it.
    Id(String),
    /// By where its ranks meet.
    Address(String),
    /// By its number of ranks, where nothing else is known.
    Unknown,
    /// These are trainers without a rank, or processes of none of the jobs.
    NoJob,
}

/// The snapshots of the jobs in `dump`, the largest job first; `dump` itself if it has one job.
pub fn jobs(dump: &Dump) -> Vec<JobPart<Cow<'_, Dump>>> {
    let keys = Keys::of(dump.processes.iter());
    if keys.all.len() < 2 {
        return vec![JobPart {
            name: JobName::Only,
            of: Cow::Borrowed(dump),
        }];
    }
    let parts = keys.choices().map(|key| JobPart {
        name: keys.name(key),
        of: Cow::<Dump>::Owned(keys.part(dump, key)),
    });
    parts.filter(|part| !part.of.processes.is_empty()).collect()
}

/// The same of several machines: each job with the answers of its machines. What belongs to none is
/// with the first, where it is not compared.
pub fn jobs_of(answers: &[HostAnswer]) -> Vec<JobPart<Cow<'_, [HostAnswer]>>> {
    let keys = Keys::of(answers.iter().flat_map(|answer| &answer.dump.processes));
    if keys.all.len() < 2 {
        return vec![JobPart {
            name: JobName::Only,
            of: Cow::Borrowed(answers),
        }];
    }
    let parts = keys.all.iter().enumerate().map(|(index, key)| {
        let of = answers.iter().map(|answer| {
            let mut dump = keys.part(&answer.dump, Some(key));
            if index == 0 {
                dump.processes
                    .extend(keys.part(&answer.dump, None).processes);
            }
            HostAnswer {
                host: answer.host.clone(),
                dump,
            }
        });
        let of = of.filter(|answer| !answer.dump.processes.is_empty());
        JobPart {
            name: keys.name(Some(key)),
            of: Cow::<[HostAnswer]>::Owned(of.collect()),
        }
    });
    parts.collect()
}

/// Keys of jobs that have ranks.
struct Keys {
    /// Those of the most ranks first.
    all: Vec<JobKey>,
    /// Ids of jobs of which not every rank says where they meet.
    without_address: Vec<Vec<String>>,
}

impl Keys {
    fn of<'d>(processes: impl Iterator<Item = &'d DumpedProcess>) -> Self {
        let is_rank =
            |each: &&DumpedProcess| matches!(each.role, Role::Trainer { rank: Some(_), .. });
        let found: Vec<&JobKey> = processes
            .filter(is_rank)
            .filter_map(|each| each.job.as_ref())
            .collect();
        let vague = found.iter().filter(|key| key.address.is_none());
        let mut keys = Self {
            all: Vec::new(),
            without_address: vague.map(|key| key.ids.clone()).collect(),
        };
        let mut counted: Vec<(JobKey, usize)> = Vec::new();
        for key in found.into_iter().map(|key| keys.comparable(key)) {
            match counted.iter_mut().find(|(known, _)| *known == key) {
                Some((_, count)) => *count += 1,
                None => counted.push((key, 1)),
            }
        }
        counted.sort_by(|(one, few), (other, more)| more.cmp(few).then(one.cmp(other)));
        keys.all = counted.into_iter().map(|(key, _)| key).collect();
        keys
    }

    fn comparable(&self, key: &JobKey) -> JobKey {
        let mut key = key.clone();
        key.address
            .take_if(|_| self.without_address.contains(&key.ids));
        key
    }

    /// Each key, and last none.
    fn choices(&self) -> impl Iterator<Item = Option<&JobKey>> {
        self.all.iter().map(Some).chain([None])
    }

    fn name(&self, key: Option<&JobKey>) -> JobName {
        let Some(key) = key else {
            return JobName::NoJob;
        };
        let is_own = |id: &&String| {
            let mut others = self.all.iter().filter(|other| *other != key);
            others.all(|other| !other.ids.contains(id))
        };
        match (key.ids.iter().find(is_own), &key.address) {
            (Some(id), _) => JobName::Id(id.clone()),
            (None, Some(address)) => JobName::Address(address.clone()),
            (None, None) => JobName::Unknown,
        }
    }

    /// What belongs to the job with this key: its ranks, their workers, what started them. Without
    /// one, what belongs to no rank's job.
    fn part(&self, dump: &Dump, key: Option<&JobKey>) -> Dump {
        let is_own = |process: &&DumpedProcess| {
            let own = process.job.as_ref().map(|own| self.comparable(own));
            own.filter(|own| self.all.contains(own)).as_ref() == key
        };
        Dump {
            processes: dump.processes.iter().filter(is_own).cloned().collect(),
            ..dump.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::built::{process, thread, waiting};
    use super::*;
    use crate::analysis::dump::verdict::verdict;
    use crate::model::wait::WaitKind;

    fn rank(number: u32, job: &JobKey, is_waiting: bool) -> DumpedProcess {
        let thread = match is_waiting {
            true => waiting(1, &["backward:7"], WaitKind::Collective, "all_reduce"),
            false => thread(1, &["load:88"]),
        };
        DumpedProcess {
            role: Role::Trainer {
                rank: Some(number),
                local_rank: None,
                world_size: None,
            },
            job: Some(job.clone()),
            ..process(number as i32, vec![thread])
        }
    }

    fn key(ids: &[&str], port: u16) -> JobKey {
        JobKey {
            ids: ids.iter().map(|&id| id.to_owned()).collect(),
            address: Some(format!("node1:{port}")),
            world_size: None,
        }
    }

    fn names(dump: &Dump) -> Vec<(JobName, usize)> {
        let parts = jobs(dump).into_iter();
        parts
            .map(|part| (part.name, part.of.processes.len()))
            .collect()
    }

    #[test]
    fn each_job_is_compared_with_itself() {
        let (one, other) = (key(&["4711", "a"], 1), key(&["4711", "b"], 2));
        let mut launcher = process(90, Vec::new());
        launcher.job = Some(one.clone());
        let mut dump = Dump {
            processes: vec![
                launcher,
                rank(0, &one, true),
                rank(0, &other, false),
                rank(1, &one, true),
                process(99, Vec::new()),
            ],
            ..Dump::default()
        };
        let id = |name: &str| JobName::Id(name.to_owned());
        assert_eq!(
            names(&dump),
            [(id("a"), 3), (id("b"), 1), (JobName::NoJob, 1)]
        );
        assert!(!verdict(&dump).awaited().is_empty());
        assert!(
            jobs(&dump)
                .iter()
                .all(|part| verdict(&part.of).awaited().is_empty())
        );
        let answers = [HostAnswer {
            host: "node1".to_owned(),
            dump: dump.clone(),
        }];
        let parts = jobs_of(&answers).into_iter();
        let sizes = parts.map(|part| part.of[0].dump.processes.len());
        assert_eq!(sizes.collect::<Vec<_>>(), [4, 1]);
        dump.processes.remove(2);
        assert_eq!(names(&dump), [(JobName::Only, 4)]);
    }

    #[test]
    fn jobs_without_an_id_are_told_apart_by_where_ranks_meet() {
        let of = |one: JobKey, other: JobKey| {
            names(&Dump {
                processes: vec![rank(0, &one, true), rank(0, &other, true)],
                ..Dump::default()
            })
        };
        let at = |port: u16| JobName::Address(format!("node1:{port}"));
        let found = of(key(&["4711"], 1), key(&["4711"], 2));
        assert_eq!(found, [(at(1), 1), (at(2), 1)]);
        let mut unknown = key(&["4711"], 2);
        unknown.address = None;
        assert_eq!(of(key(&["4711"], 1), unknown), [(JobName::Only, 2)]);
    }
}
