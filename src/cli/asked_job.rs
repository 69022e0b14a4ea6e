//! The job that `--job` names: by its id, or by a folder with its recordings.

use super::commands::report_job::recordings;
use super::failure::Failure;
use super::messages;
use super::regular::open_regular;
use crate::model::process::ProcessInfo;
use crate::recording::Recording;
use crate::torch::job::{JobPlace, job_key, slurm_job};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Segments at the start of a recording in which its processes are looked for: some seconds.
const START: usize = 8;

/// A job whose trainers are asked for.
#[derive(Clone, Debug)]
pub(super) struct AskedJob {
    /// The id by which its trainers are known; `None` if nothing says.
    pub(super) id: Option<String>,
    /// Whether Slurm may know the id.
    pub(super) of_slurm: bool,
    /// Machines that a folder has recordings of, by name.
    pub(super) hosts: Vec<String>,
}

/// A job's id in a recording, and whether it is Slurm's.
type Id = (String, bool);

impl AskedJob {
    /// What `--job` names.
    ///
    /// # Errors
    /// It is a folder without a recording that names its machine.
    pub(super) fn of(named: Option<&str>) -> Result<Self, Failure> {
        // A job may have the name of a folder that has nothing to do with it.
        let is_of_job = |path: &&Path| {
            path.is_dir()
                && (path.components().count() > 1
                    || recordings(path).is_ok_and(|all| !all.is_empty()))
        };
        match named.map(Path::new).filter(is_of_job) {
            Some(folder) => Self::recorded(folder),
            None => Ok(Self {
                id: named.map(str::to_owned),
                of_slurm: named.is_some(),
                hosts: Vec::new(),
            }),
        }
    }

    /// The id.
    ///
    /// # Errors
    /// It is a folder whose recordings have none.
    pub(super) fn known_id(self) -> Result<Option<String>, Failure> {
        match (self.id, self.hosts.is_empty()) {
            (None, false) => Err(Failure::usage(
                "the recordings in this folder do not say what job they are of",
                "--job ID names the job, and --pid PID a trainer or the launcher of several",
            )),
            (id, _) => Ok(id),
        }
    }

    /// The newest job in a folder: a job that was started again may write to the same one.
    fn recorded(folder: &Path) -> Result<Self, Failure> {
        let heads = recordings(folder)?.into_iter().filter_map(|path| {
            let run = Recording::read_head(&open_regular(&path).ok()?).ok()?;
            is_plain(&run.host).then_some((run.started_wall_ns, run.host, path))
        });
        let mut heads: Vec<(u64, String, PathBuf)> = heads.collect();
        heads.sort();
        let newest: BTreeMap<String, (u64, PathBuf)> = heads
            .into_iter()
            .map(|(started_ns, host, path)| (host, (started_ns, path)))
            .collect();
        if newest.is_empty() {
            return Err(Failure::message(format!(
                "no recording in {} names a machine",
                folder.display()
            ))
            .hint("--job takes a Slurm job's id, or a folder with recordings of the job"));
        }
        let machines: Vec<(u64, String, Option<Id>)> = newest
            .into_iter()
            .map(|(host, (started_ns, path))| (started_ns, host, id_of(&path)))
            .collect();
        let known = machines
            .iter()
            .filter_map(|(started_ns, _, id)| Some((started_ns, id.as_ref()?)));
        let id = known.max_by_key(|&(started_ns, _)| started_ns);
        let id = id.map(|(_, id)| id.clone());
        let (of_it, others): (Vec<_>, Vec<_>) = machines
            .into_iter()
            .partition(|(_, _, its)| its.is_none() || *its == id);
        if let (Some((id, _)), false) = (&id, others.is_empty()) {
            let names: Vec<&str> = others.iter().map(|(_, host, _)| host.as_str()).collect();
            messages::note(&format!(
                "asking for job {id}, that of the newest recordings; not asked, since their recordings are of other jobs: {}",
                messages::list(&names, 4)
            ));
        }
        if let Some((id, _)) = id.as_ref().filter(|(id, _)| !is_plain(id)) {
            return Err(Failure::message(format!(
                "the recordings in {} are of job `{id}`, which is no plain word",
                folder.display()
            ))
            .hint("--job ID and --hosts HOST,HOST say both"));
        }
        Ok(Self {
            of_slurm: id.as_ref().is_some_and(|&(_, of_slurm)| of_slurm),
            id: id.map(|(id, _)| id),
            hosts: of_it.into_iter().map(|(_, host, _)| host).collect(),
        })
    }
}

/// Whether a word of a recording, which anybody may have made, is no option and nothing that a
/// shell would take for more than a word.
fn is_plain(word: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+@%".contains(&byte);
    !word.is_empty() && !word.starts_with('-') && word.bytes().all(is_letter)
}

/// The id of the job that a recording is of.
fn id_of(recording: &Path) -> Option<Id> {
    let start = Recording::read_start(&open_regular(recording).ok()?, START).ok()?;
    start.tables.processes.iter().find_map(id)
}

fn id(process: &ProcessInfo) -> Option<Id> {
    if let Some(id) = slurm_job(&process.environment) {
        return Some((id.to_owned(), true));
    }
    let first = job_key(&process.environment).and_then(|key| key.ids.into_iter().next());
    let given = || JobPlace::of(&[], &process.command).job;
    Some((first.or_else(given)?, false))
}
