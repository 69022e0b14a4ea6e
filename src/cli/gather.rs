//! Gathers the answers of a job's machines: each is asked by a command of its own, all at the same
//! time, and none can hold up the others for longer than its time.

use super::ask::{Interrupt, MAX_ANSWER, from_brace, run};
use super::dump_plan::{Answers, Hosts};
use super::failure::Failure;
use super::pause::is_interrupted;
use super::regular::open_regular;
use super::trainers::running;
use super::transport::Transport;
use crate::analysis::dump::job::{HostAnswer, Unanswered};
use crate::os::signals::Signals;
use crate::report::dump::answer::parse_answers;
use crate::report::label::counted;
use rustc_hash::FxHashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Machines that are asked at the same time.
const AT_ONCE: usize = 128;
/// Files that are parsed at the same time.
const PARSERS: usize = 8;
/// How long Slurm may take to name the nodes of a job.
const SLURM: Duration = Duration::from_secs(10);
/// How often it is checked whether all have answered.
const SIGNALS: Duration = Duration::from_millis(5);
/// What is shown of output that is no answer, bytes.
const SHOWN: usize = 100;
/// Hosts that ask NCCL's RAS for the whole job: the first, and another if that one cannot.
const ASK_RAS: usize = 2;

/// The exit status after an interrupt: 128 and the number of SIGINT, as in a shell.
pub(crate) const INTERRUPTED: u8 = 130;

/// What `--from` reads.
const FROM: &str = "--from takes outputs of dump --json, or folders with them (*.json)";

/// What became of a job's machines.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// In the order in which the machines were given.
    pub(crate) answers: Vec<HostAnswer>,
    pub(crate) unanswered: Vec<Unanswered>,
    pub(crate) took: Duration,
}

/// The answers of all machines.
///
/// # Errors
/// No machine could be named, or nothing be read; with status 130 if `signals` ended it.
pub(crate) fn gather(answers: &Answers, signals: &Signals) -> Result<Gathered, Failure> {
    let begun = Instant::now();
    let found = match answers {
        Answers::Files(paths) => read_files(paths)?,
        Answers::Hosts {
            hosts,
            transport,
            timeout,
        } => until_interrupted(signals, |interrupt| {
            let hosts = match hosts {
                Hosts::Named(hosts) => hosts.clone(),
                Hosts::Slurm(job) => nodes_of(job, interrupt)?,
            };
            Ok(ask_hosts(&hosts, transport, *timeout, interrupt))
        })?,
    };
    let mut gathered = Gathered::default();
    for found in found {
        match found {
            Ok(answers) => gathered.answers.extend(answers),
            Err(unanswered) => gathered.unanswered.push(unanswered),
        }
    }
    // The same answer may be in two files.
    let mut known = FxHashSet::default();
    gathered.answers.retain(|answer| {
        let processes = answer.dump.processes.iter();
        let pids: Vec<i32> = processes.map(|process| process.pid).collect();
        known.insert((answer.host.clone(), answer.dump.wall_ns, pids))
    });
    gathered.took = begun.elapsed();
    Ok(gathered)
}

/// `work`, while this thread waits for signals: one that ends torchspy ends its commands first.
fn until_interrupted<T: Send>(
    signals: &Signals,
    work: impl FnOnce(&Interrupt) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let interrupt = Interrupt::new(signals.inherited());
    let result = std::thread::scope(|scope| {
        let working = scope.spawn(|| work(&interrupt));
        while !working.is_finished() && !interrupt.has_come() {
            if is_interrupted(signals, Instant::now() + SIGNALS) {
                interrupt.come();
            }
        }
        working.join()
    });
    let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    match interrupt.has_come() {
        true => {
            Err(Failure::message("interrupted before all machines answered").status(INTERRUPTED))
        }
        false => result,
    }
}

type Found = Result<Vec<HostAnswer>, Unanswered>;

/// `work` of each of `count`, by at most `threads` threads, in order.
fn in_parallel<T: Send>(count: usize, threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(count) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let one = work(index);
                    let mut done = done.lock().unwrap_or_else(|poison| poison.into_inner());
                    done.push((index, one));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, one)| one).collect()
}

/// Recorded answers. A folder stands for its files that end in `.json`.
fn read_files(paths: &[PathBuf]) -> Result<Vec<Found>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let listing = std::fs::read_dir(path).map_err(|error| {
            Failure::message(format!("cannot read {}: {error}", path.display())).hint(FROM)
        })?;
        let is_json = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
        let mut within: Vec<PathBuf> = listing.flatten().map(|entry| entry.path()).collect();
        within.retain(is_json);
        within.sort();
        files.extend(within);
    }
    if files.is_empty() {
        return Err(Failure::message("there is no answer in these folders").hint(FROM));
    }
    let read = |index: usize| {
        let path = files.get(index).map_or(Path::new(""), PathBuf::as_path);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut bytes = Vec::new();
        let answer = open_regular(path)
            .and_then(|file| file.take(MAX_ANSWER + 1).read_to_end(&mut bytes))
            .map_err(|error| error.to_string())
            .and_then(|_| parse(&bytes));
        match answer {
            Ok(answers) => Ok(named(answers, &stem, false)),
            Err(why) => Err(Unanswered {
                host: path.display().to_string(),
                why,
            }),
        }
    };
    Ok(in_parallel(files.len(), PARSERS, read))
}

fn parse(bytes: &[u8]) -> Result<Vec<HostAnswer>, String> {
    if bytes.len() as u64 > MAX_ANSWER {
        return Err(format!("its answer has more than {} MiB", MAX_ANSWER >> 20));
    }
    match from_brace(bytes) {
        Some(answer) => parse_answers(answer),
        None => {
            let text = String::from_utf8_lossy(bytes.get(..SHOWN).unwrap_or(bytes));
            let came = text.lines().next().unwrap_or_default();
            Err(format!("it is no answer of torchspy dump --json: `{came}`"))
        }
    }
}

/// Names answers by the machine that was asked, or where they do not name theirs.
fn named(mut answers: Vec<HostAnswer>, name: &str, asked: bool) -> Vec<HostAnswer> {
    for answer in &mut answers {
        if asked || answer.host.is_empty() {
            name.clone_into(&mut answer.host);
        }
    }
    answers
}

/// The nodes of a Slurm job.
fn nodes_of(job: &str, interrupt: &Interrupt) -> Result<Vec<String>, Failure> {
    let hint = match running(Some(job)).is_empty() {
        true => "--hosts HOST,HOST names the machines of a job that Slurm does not know".to_owned(),
        false => format!(
            "ranks of job {job} run on this machine: --all-trainers --job {job}; with others --hosts HOST,HOST --job {job}"
        ),
    };
    let words = |line: &[&str]| line.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let ask = |line: &[&str]| -> Result<String, Failure> {
        let said = run(&words(line), SLURM, interrupt)
            .map_err(|why| Failure::message(format!("{}: {why}", line.join(" "))).hint(&hint))?;
        Ok(String::from_utf8_lossy(&said).trim().to_owned())
    };
    // squeue(1): %N is the list of nodes, as node[001-128].
    let list = ask(&["squeue", "--noheader", "--jobs", job, "--format", "%N"])?;
    let list = list.lines().next().unwrap_or_default().trim();
    if list.is_empty() {
        let text = format!("Slurm's job {job} has no nodes: it does not run");
        return Err(Failure::message(text).hint(hint));
    }
    // scontrol(1): one name on each line.
    let names = ask(&["scontrol", "show", "hostnames", list])?;
    let is_name = |name: &&str| !name.is_empty() && !name.starts_with('-');
    Ok(names
        .lines()
        .map(str::trim)
        .filter(is_name)
        .map(str::to_owned)
        .collect())
}

fn ask_hosts(
    hosts: &[String],
    transport: &Transport,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Vec<Found> {
    let quiet = transport.clone().without_ras();
    let ask = |index: usize| {
        let host = hosts.get(index).map_or("", String::as_str);
        let transport = if index < ASK_RAS { transport } else { &quiet };
        let answer =
            run(&transport.command(host), timeout, interrupt).and_then(|bytes| parse(&bytes));
        match answer {
            Ok(answers) => Ok(named(answers, host, true)),
            Err(why) => Err(Unanswered {
                host: host.to_owned(),
                why,
            }),
        }
    };
    in_parallel(hosts.len(), AT_ONCE, ask)
}

/// The failure where no machine answered, or no file holds an answer.
pub(crate) fn no_answer(unanswered: &[Unanswered], answers: &Answers) -> Failure {
    let first = unanswered.first();
    let why = first.map_or(String::new(), |each| format!("{}: {}", each.host, each.why));
    let count = unanswered.len() as u64;
    match answers {
        Answers::Files(_) => {
            let files = counted(count, "file");
            Failure::message(format!("none of {files} holds an answer ({why})")).hint(FROM)
        }
        Answers::Hosts { .. } => {
            let machines = counted(count, "machine");
            Failure::message(format!("none of {machines} answered ({why})")).hint(
                "torchspy must run there: --program PATH names it, --via how to reach a host; --timeout gives more time",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_once_and_in_order() {
        let found = in_parallel(1000, 16, |index| index * 2);
        assert!(
            found
                .iter()
                .enumerate()
                .all(|(index, &value)| value == index * 2)
        );
        assert_eq!(found.len(), 1000);
    }
}
