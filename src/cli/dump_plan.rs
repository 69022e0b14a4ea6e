//! The validated plan of `torchspy dump`.

use super::args::{DumpArguments, MachineArguments};
use super::asked_job::AskedJob;
use super::failure::Failure;
use super::option_values::{parse_duration_of, redaction};
use super::rules::Rules;
use super::transport::Transport;
use crate::os::redaction::Redaction;
use std::path::PathBuf;
use std::time::Duration;

/// Which processes of this machine are captured, and how.
#[derive(Clone, Debug)]
pub(crate) struct LookPlan {
    /// Never empty for a snapshot.
    pub(crate) pids: Vec<i32>,
    pub(crate) tree: bool,
    pub(crate) locals: bool,
    pub(crate) native: bool,
    /// Nothing is stopped.
    pub(crate) nonblocking: bool,
    /// What modules and optimizers hold is read.
    pub(crate) memory: bool,
    /// NCCL is asked, where it is in use.
    pub(crate) ras: bool,
    pub(crate) redaction: Redaction,
    pub(crate) rules: Rules,
}

#[derive(Clone, Debug)]
pub(crate) struct DumpPlan {
    pub(crate) of: DumpOf,
    pub(crate) look: LookPlan,
    pub(crate) json: bool,
    pub(crate) repeat: u32,
    pub(crate) every: Duration,
}

/// Where the threads of a dump are.
#[derive(Clone, Debug)]
pub(crate) enum DumpOf {
    /// In the processes of the plan's pids.
    Processes,
    /// In all trainers of this machine: of one job, if its id is given.
    Trainers(Option<String>),
    /// On other machines, or on several.
    Job(Answers),
}

/// Where the answers of a job's machines come from.
#[derive(Clone, Debug)]
pub(crate) enum Answers {
    /// From files: outputs of `dump --json`.
    Files(Vec<PathBuf>),
    /// From machines, each asked by a command.
    Hosts {
        hosts: Hosts,
        transport: Transport,
        /// How long one machine may take.
        timeout: Duration,
    },
}

/// Which machines a job is on.
#[derive(Clone, Debug)]
pub(crate) enum Hosts {
    Named(Vec<String>),
    /// Those of the Slurm job with this id.
    Slurm(String),
}

/// Most machines of a job.
const MAX_HOSTS: usize = 16_384;
/// The longest file with their names, bytes.
const MAX_HOST_FILE: u64 = 4 << 20;

impl DumpPlan {
    pub(super) fn new(arguments: &DumpArguments) -> Result<Self, Failure> {
        let of = dump_of(arguments)?;
        if let (DumpOf::Job(_), Some(option)) = (&of, of_one_machine(arguments)) {
            return Err(Failure::usage(
                format!("{option} is not for the machines of a job"),
                "it is an option of torchspy dump --pid PID on one of them",
            ));
        }
        Ok(Self {
            look: LookPlan {
                pids: arguments.pid.clone(),
                tree: arguments.tree || matches!(of, DumpOf::Trainers(_)),
                locals: arguments.locals > 0,
                native: !arguments.no_native,
                // The stacks only lead to the modules.
                nonblocking: arguments.nonblocking || arguments.memory,
                memory: arguments.memory,
                ras: !arguments.no_ras && !arguments.memory,
                redaction: redaction(arguments.no_redact),
                rules: Rules::read(arguments.rules.as_deref())?,
            },
            of,
            json: arguments.json,
            repeat: arguments.repeat.unwrap_or(1),
            every: parse_duration_of("--every", &arguments.every)?,
        })
    }
}

/// An option that was given and has no meaning for a job.
fn of_one_machine(arguments: &DumpArguments) -> Option<&'static str> {
    let given = [
        (arguments.locals > 0, "--locals"),
        (arguments.memory, "--memory"),
        (arguments.repeat.is_some(), "--repeat"),
        (arguments.rules.is_some(), "--rules"),
    ];
    given.into_iter().find_map(|(is, name)| is.then_some(name))
}

fn dump_of(arguments: &DumpArguments) -> Result<DumpOf, Failure> {
    let job = &arguments.job;
    let machines = &job.machines;
    let by_slurm = machines.job.is_some() && !job.all_trainers && job.from.is_empty();
    let sources = [
        !arguments.pid.is_empty(),
        job.all_trainers,
        !job.from.is_empty(),
        machines.hosts.is_some(),
    ];
    match sources.into_iter().filter(|is| *is).count() {
        1 => {}
        0 if by_slurm => {}
        0 => {
            return Err(Failure::usage(
                "nothing says which processes to dump",
                "--pid PID, --all-trainers, --hosts HOST,HOST, --job SLURM_ID or --from FILE",
            ));
        }
        _ => {
            return Err(Failure::usage(
                "--pid, --all-trainers, --hosts and --from exclude each other",
                "give one of them; --job ID goes with --all-trainers and --hosts",
            ));
        }
    }
    if !arguments.pid.is_empty() {
        return Ok(DumpOf::Processes);
    }
    if job.all_trainers {
        // Machines of a job are asked with its id, which a folder there may have for a name.
        let named = machines.job.as_deref();
        let id = match named.filter(|named| named.contains('/')) {
            Some(folder) => AskedJob::of(Some(folder))?.known_id()?,
            None => named.map(str::to_owned),
        };
        return Ok(DumpOf::Trainers(id));
    }
    if !job.from.is_empty() {
        return Ok(DumpOf::Job(Answers::Files(job.from.clone())));
    }
    let options = [
        (arguments.no_native, "--no-native"),
        (arguments.nonblocking, "--nonblocking"),
        (arguments.no_redact, "--no-redact"),
        (arguments.no_ras, "--no-ras"),
    ];
    let job = AskedJob::of(machines.job.as_deref())?;
    Ok(DumpOf::Job(answers_of(machines, job, &options)?))
}

/// The answers of a job's machines. `options`: those of `dump` on each machine, and whether they
/// were given.
pub(super) fn answers_of(
    machines: &MachineArguments,
    job: AskedJob,
    options: &[(bool, &str)],
) -> Result<Answers, Failure> {
    Ok(Answers::Hosts {
        transport: transport(machines, &job, options)?,
        hosts: match (&machines.hosts, job.id) {
            (Some(named), _) => Hosts::Named(hosts(named)?),
            // What `--via` reaches need not have the names that Slurm gives.
            (None, Some(id))
                if job.of_slurm && (machines.via.is_none() || job.hosts.is_empty()) =>
            {
                Hosts::Slurm(id)
            }
            (None, _) => Hosts::Named(job.hosts),
        },
        timeout: parse_duration_of("--timeout", &machines.timeout)?,
    })
}

/// `a,b,c`, or `@FILE` with a name on each line.
fn hosts(text: &str) -> Result<Vec<String>, Failure> {
    let listed = match text.strip_prefix('@') {
        Some(file) => read_hosts(file)?,
        None => text.to_owned(),
    };
    let mut names: Vec<String> = Vec::new();
    for line in listed.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let words = line.split([',', ' ', '\t']).map(str::trim);
        for name in words.filter(|word| !word.is_empty()) {
            // ssh and others would take it as an option.
            if name.starts_with('-') {
                return Err(Failure::usage(
                    format!("`{name}` is no name of a host"),
                    "--hosts node001,node002, or --hosts @FILE with one on each line",
                ));
            }
            if name.contains('[') {
                return Err(Failure::usage(
                    format!("`{name}` begins a list of hosts in Slurm's form"),
                    format!(
                        "scontrol show hostnames '{}' > FILE, and then --hosts @FILE",
                        line.trim()
                    ),
                ));
            }
            names.push(name.to_owned());
        }
    }
    let mut known = rustc_hash::FxHashSet::default();
    names.retain(|name| known.insert(name.clone()));
    match names.len() {
        0 => Err(Failure::usage(
            format!("--hosts {text} names no host"),
            "--hosts node001,node002, or --hosts @FILE with one on each line",
        )),
        1..=MAX_HOSTS => Ok(names),
        more => Err(Failure::usage(
            format!("--hosts names {more} hosts"),
            format!("{MAX_HOSTS} at most"),
        )),
    }
}

fn read_hosts(file: &str) -> Result<String, Failure> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(file)
        .and_then(|opened| opened.take(MAX_HOST_FILE).read_to_string(&mut text))
        .map_err(|error| {
            Failure::usage(
                format!("cannot read {file}: {error}"),
                "--hosts @FILE names a file with a host on each line",
            )
        })?;
    Ok(text)
}

fn transport(
    machines: &MachineArguments,
    job: &AskedJob,
    options: &[(bool, &str)],
) -> Result<Transport, Failure> {
    let MachineArguments { hosts, via, .. } = machines;
    let mut words = vec![
        machines.program.clone(),
        "dump".to_owned(),
        "--json".to_owned(),
        "--all-trainers".to_owned(),
    ];
    if let Some(id) = &job.id {
        words.extend(["--job".to_owned(), id.clone()]);
    }
    let given = options.iter().filter(|(is, _)| *is);
    words.extend(given.map(|&(_, name)| name.to_owned()));
    match (via, hosts, &job.id) {
        (Some(via), _, _) => Transport::new(via, words),
        (None, None, Some(id)) if job.of_slurm => Transport::slurm(id, words),
        (None, _, _) => Transport::ssh(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_words_of_a_line_or_a_file() {
        assert_eq!(hosts("b,a,,b c").unwrap(), ["b", "a", "c"]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        std::fs::write(&file, "node001 # the first\n\nnode002\n").unwrap();
        let named = format!("@{}", file.display());
        assert_eq!(hosts(&named).unwrap(), ["node001", "node002"]);
        for wrong in [
            "",
            ",",
            "-oProxyCommand=x",
            "@/does/not/exist",
            "node[001-004,7]",
        ] {
            let failure = hosts(wrong).unwrap_err();
            assert!(failure.status == 2 && failure.hint.is_some(), "{wrong}");
        }
    }
}
