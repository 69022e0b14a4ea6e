//! Gathers the answers of a job's machines: each is asked by a command of its own, all at the same
//! time, and none can hold up the others for longer than its time.

use super::dump_plan::{Answers, Hosts};
use super::failure::Failure;
use super::transport::Transport;
use crate::analysis::dump::job::{HostAnswer, Unanswered};
use crate::recording::Recording;
use crate::report::dump::answer::parse_answers;
use crate::report::label::counted;
use rustc_hash::FxHashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Machines that are asked at the same time.
const AT_ONCE: usize = 128;
/// Files that are parsed at the same time.
const PARSERS: usize = 8;
/// The longest answer, bytes.
const MAX_ANSWER: u64 = 256 << 20;
/// The most that is kept of what a machine says on standard error, bytes.
const MAX_ERROR: u64 = 64 << 10;
/// The longest name of an error that is shown, characters.
const SHOWN_ERROR: usize = 300;
/// How long Slurm may take to name the nodes of a job.
const SLURM: Duration = Duration::from_secs(10);
/// Hosts that ask NCCL's RAS for the whole job: the first, and another if that one cannot.
const ASK_RAS: usize = 2;

/// What became of a job's machines.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// In the order in which the machines were given.
    pub(crate) answers: Vec<HostAnswer>,
    pub(crate) unanswered: Vec<Unanswered>,
    pub(crate) took: Duration,
}

/// The answers of all machines.
pub(crate) fn gather(answers: &Answers) -> Result<Gathered, Failure> {
    let begun = Instant::now();
    let found = match answers {
        Answers::Files(paths) => read_files(paths)?,
        Answers::Hosts {
            hosts,
            transport,
            timeout,
        } => {
            let hosts = match hosts {
                Hosts::Named(hosts) => hosts.clone(),
                Hosts::Slurm(job) => nodes_of(job)?,
                Hosts::Recordings(folder) => hosts_of(folder)?,
            };
            ask_hosts(&hosts, transport, *timeout)
        }
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
            Failure::message(format!("cannot read {}: {error}", path.display()))
                .hint("--from takes outputs of dump --json, or folders with them")
        })?;
        let is_json = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
        let mut within: Vec<PathBuf> = listing.flatten().map(|entry| entry.path()).collect();
        within.retain(is_json);
        within.sort();
        files.extend(within);
    }
    if files.is_empty() {
        return Err(Failure::message("there is no answer in these folders")
            .hint("--from takes outputs of dump --json, or folders with them (*.json)"));
    }
    let read = |index: usize| {
        let path = files.get(index).map_or(Path::new(""), PathBuf::as_path);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut bytes = Vec::new();
        let answer = std::fs::File::open(path)
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
    parse_answers(bytes)
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

/// The machines that recordings in a folder are of.
fn hosts_of(folder: &Path) -> Result<Vec<String>, Failure> {
    let listing = std::fs::read_dir(folder)
        .map_err(|error| Failure::message(format!("cannot read {}: {error}", folder.display())))?;
    let heads = listing.flatten().filter_map(|entry| {
        let path = entry.path();
        let is_recording = path.extension().is_some_and(|end| end == "tspy");
        let file = std::fs::File::open(&path).ok().filter(|_| is_recording)?;
        Recording::read_head(&file).ok()
    });
    let mut hosts: Vec<String> = heads.map(|run| run.host).collect();
    hosts.retain(|host| !host.is_empty() && !host.starts_with('-'));
    hosts.sort();
    hosts.dedup();
    match hosts.is_empty() {
        true => Err(Failure::message(format!(
            "no recording in {} names a machine",
            folder.display()
        ))
        .hint("--job takes a Slurm job's id, or a folder with recordings of the job")),
        false => Ok(hosts),
    }
}

/// The nodes of a Slurm job.
fn nodes_of(job: &str) -> Result<Vec<String>, Failure> {
    let hint = "--hosts HOST,HOST names the machines of a job that Slurm does not know";
    let words = |line: &[&str]| line.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let ask = |line: &[&str]| -> Result<String, Failure> {
        let said = run(&words(line), SLURM)
            .map_err(|why| Failure::message(format!("{}: {why}", line.join(" "))).hint(hint))?;
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

fn ask_hosts(hosts: &[String], transport: &Transport, timeout: Duration) -> Vec<Found> {
    let quiet = transport.clone().without_ras();
    let ask = |index: usize| {
        let host = hosts.get(index).map_or("", String::as_str);
        let transport = if index < ASK_RAS { transport } else { &quiet };
        let answer = run(&transport.command(host), timeout).and_then(|bytes| parse(&bytes));
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

/// What a command writes to standard output within `timeout`; else why it does not, in a few words.
fn run(words: &[String], timeout: Duration) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + timeout;
    let (name, arguments) = words.split_first().ok_or("no command")?;
    let mut child = Command::new(name)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    let (sender, ended) = channel();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    // The pipes may outlive the command: what it started has them, too.
    let reading = [
        reader(stdout, MAX_ANSWER + 1, false, sender.clone()),
        reader(stderr, MAX_ERROR, true, sender),
    ];
    if let Some(error) = reading.into_iter().find_map(Result::err) {
        end(&mut child);
        return Err(format!("cannot read its answer: {error}"));
    }
    let (mut output, mut said) = (None, Vec::new());
    while output.is_none() {
        let left = deadline.saturating_duration_since(Instant::now());
        match ended.recv_timeout(left) {
            Ok((true, bytes)) => said = bytes,
            Ok((false, bytes)) => output = Some(bytes),
            Err(RecvTimeoutError::Timeout) => {
                end(&mut child);
                let seconds = timeout.as_secs_f64();
                return Err(format!("no answer within {seconds} s"));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let output = output.unwrap_or_default();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            _ => {
                end(&mut child);
                return Err("it does not end".to_owned());
            }
        }
    };
    // An answer is one, even if part of it was refused.
    if status.success() || output.first() == Some(&b'{') {
        return Ok(output);
    }
    if said.is_empty()
        && let Ok((true, bytes)) = ended.recv_timeout(Duration::from_millis(100))
    {
        said = bytes;
    }
    Err(error_of(
        &String::from_utf8_lossy(&said),
        &status.to_string(),
    ))
}

fn end(child: &mut Child) {
    // It may have ended.
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads a pipe to its end on a thread of its own; what exceeds `most` is read and dropped, so that
/// the writer does not wait.
fn reader(
    pipe: Option<impl Read + Send + 'static>,
    most: u64,
    is_error: bool,
    sender: std::sync::mpsc::Sender<(bool, Vec<u8>)>,
) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("torchspy-host".to_owned())
        .stack_size(64 << 10)
        .spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                // A pipe that breaks has said all that it will.
                let _ = pipe.by_ref().take(most).read_to_end(&mut bytes);
                if !is_error && bytes.len() as u64 >= most {
                    drop(pipe);
                } else {
                    let _ = std::io::copy(&mut pipe, &mut std::io::sink());
                }
            }
            // The receiver is gone if it took too long.
            let _ = sender.send((is_error, bytes));
        })
        .map(drop)
}

/// What a command says went wrong: torchspy's own line, or the last one.
fn error_of(said: &str, status: &str) -> String {
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let own = lines().find_map(|line| line.strip_prefix("error: "));
    let text = own.or(lines().next_back()).unwrap_or(status);
    text.chars().take(SHOWN_ERROR).collect()
}

/// The failure where no machine answered.
pub(crate) fn no_answer(unanswered: &[Unanswered]) -> Failure {
    let first = unanswered.first();
    let why = first.map_or(String::new(), |each| format!("{}: {}", each.host, each.why));
    let count = counted(unanswered.len() as u64, "machine");
    Failure::message(format!("none of {count} answered ({why})")).hint(
        "torchspy must run there: --program PATH names it, --via how to reach a host; --timeout gives more time",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<String> {
        line.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn a_command_that_does_not_end_is_ended() {
        let begun = Instant::now();
        let why = run(&words(&["sleep", "60"]), Duration::from_millis(50)).unwrap_err();
        assert_eq!(why, "no answer within 0.05 s");
        // What it started goes on with its pipes, and nobody waits for that.
        let line = words(&["sh", "-c", "sleep 9 & wait"]);
        assert!(run(&line, Duration::from_millis(50)).is_err());
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn errors_are_named_in_their_own_words() {
        let said = |script: &str| run(&words(&["sh", "-c", script]), Duration::from_secs(30));
        assert_eq!(said("echo out").unwrap(), b"out\n");
        let wrong = "echo one >&2; echo error: no trainer >&2; echo hint: x >&2; exit 1";
        assert_eq!(said(wrong).unwrap_err(), "no trainer");
        assert_eq!(said("echo a >&2; echo b >&2; exit 255").unwrap_err(), "b");
        assert_eq!(said("exit 3").unwrap_err(), "exit status: 3");
        let missing = run(&words(&["/does/not/exist"]), Duration::from_secs(1)).unwrap_err();
        assert!(
            missing.starts_with("cannot run /does/not/exist: "),
            "{missing}"
        );
    }

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
