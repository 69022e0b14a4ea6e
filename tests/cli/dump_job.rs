//! `torchspy dump` of a job: answers of many machines, or many processes of this one, and what NCCL
//! reports of them.
//!
//! Machines are stood in for by a command that prints a recorded answer, fails or does not end;
//! NCCL by a server that answers as its source says (src/ras/client_support.cc of 2.30.7, and of
//! 2.26.2 for the text form).

use crate::faults::{TORCHSPY, Target, any_python, marked, program};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;
use torchspy::model::process::ProcessInfo;
use torchspy::model::run::RunInfo;
use torchspy::model::segment::Segment;
use torchspy::model::tables::Tables;
use torchspy::recording::RecordingWriter;

fn dump(arguments: &[&str]) -> Output {
    Command::new(TORCHSPY)
        .arg("dump")
        .args(arguments)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn said(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A real answer: three Gloo ranks, of which the last waits for a worker that hangs.
fn recorded() -> Value {
    let path = format!(
        "{}/tests/fixtures/dump/ranks.json",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The process of the recorded answer with this rank, or the worker that hangs.
fn recorded_process(is_it: impl Fn(&Value) -> bool) -> Value {
    let answer = recorded();
    let processes = answer["looks"][0]["processes"].as_array().unwrap();
    processes.iter().find(|each| is_it(each)).unwrap().clone()
}

/// Answers of `machines` with eight ranks each, made from the recorded one: one rank is where its
/// last was, and all others where its first was.
fn simulate(folder: &Path, machines: u64, odd: u64) {
    let first = recorded_process(|each| each["rank"] == 0);
    let last = recorded_process(|each| each["rank"] == 2);
    let worker = recorded_process(|each| {
        let at = &each["threads"][0]["at"]["function"];
        each["role"] == "dataloader_worker" && at == "Rows.__getitem__"
    });
    for machine in 0..machines {
        let mut processes = Vec::new();
        for local in 0..8 {
            let rank = machine * 8 + local;
            let pid = 1000 + local;
            let mut process = if rank == odd {
                last.clone()
            } else {
                first.clone()
            };
            process["rank"] = json!(rank);
            process["world_size"] = json!(machines * 8);
            process["pid"] = json!(pid);
            processes.push(process);
            if rank == odd {
                let mut worker = worker.clone();
                worker["trainer_pid"] = json!(pid);
                processes.push(worker);
            }
        }
        let mut answer = recorded();
        answer["host"] = json!(format!("node{machine:03}"));
        answer["looks"][0]["processes"] = json!(processes);
        let file = folder.join(format!("node{machine:03}.json"));
        std::fs::write(file, serde_json::to_vec(&answer).unwrap()).unwrap();
    }
}

#[test]
fn a_thousand_ranks_have_one_short_answer() {
    let folder = tempfile::tempdir().unwrap();
    simulate(folder.path(), 125, 512);
    let path = folder.path().to_str().unwrap();
    let begun = Instant::now();
    let shown = text(&dump(&["--from", path]));
    println!("1,000 answers: {:.2} s", begun.elapsed().as_secs_f64());
    for line in [
        "1,000 ranks on 125 machines",
        "ranks 0-511, 513-999 wait in a collective that rank 512 is not in",
        "  rank 512, pid 1000 on node064: waits for the DataLoader queue at hang_ranks.py:",
        "    its DataLoader worker: thread ",
        "  rank 512 (on node064) differs: ",
        "  ranks 0-511, 513-999: all_reduce (DDP bucket) at hang_ranks.py:",
        "    rank 512: main (hang_ranks.py:",
        "    ranks 0-511, 513-999: main (hang_ranks.py:",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    assert!(shown.lines().count() < 30, "{shown}");
    assert!(shown.find("rank 512").unwrap() < shown.find("ranks 0-511, 513-999: all").unwrap());

    let whole: Value = serde_json::from_str(&text(&dump(&["--json", "--from", path]))).unwrap();
    assert_eq!(whole["hosts"].as_array().unwrap().len(), 125);
    assert_eq!(whole["waited_for"], "ranks");
    assert_eq!(
        whole["awaited"],
        json!([{"rank": 512, "host": "node064", "pid": 1000}])
    );
    assert_eq!(whole["ranks"][1]["ranks"].as_array().unwrap().len(), 999);
    assert_eq!(whole["ranks"][0]["because"][0]["host"], "node064");
    // What a job's dump holds can be read again.
    let file = folder.path().join("job.txt");
    std::fs::write(&file, whole.to_string()).unwrap();
    let again = text(&dump(&["--from", file.to_str().unwrap()]));
    let from_ranks = |text: &str| text[text.find("RANKS").unwrap()..].to_owned();
    assert_eq!(from_ranks(&again), from_ranks(&shown));
}

#[test]
fn ranks_are_named_with_their_place_in_the_mesh() {
    let folder = tempfile::tempdir().unwrap();
    simulate(folder.path(), 2, 9);
    // pp=2,dp=8, as each rank holds it.
    for machine in 0..2 {
        let file = folder.path().join(format!("node{machine:03}.json"));
        let mut answer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let processes = answer["looks"][0]["processes"].as_array_mut().unwrap();
        for process in processes {
            if let Some(rank) = process["rank"].as_u64() {
                let (first, start) = (rank % 8, rank / 8 * 8);
                let groups = format!("pp={first},{};dp={start}-{}", first + 8, start + 7);
                process["groups"] = json!(groups);
            }
        }
        std::fs::write(&file, answer.to_string()).unwrap();
    }
    let path = folder.path().to_str().unwrap();
    let shown = text(&dump(&["--from", path]));
    for line in [
        "  rank 9 (pp 1, dp 1), pid 1001 on node001: waits for the DataLoader queue",
        "  rank 9 (pp 1, dp 1; on node001) differs: ",
        "  ranks 0-8, 10-15: all_reduce",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    let whole: Value = serde_json::from_str(&text(&dump(&["--json", "--from", path]))).unwrap();
    assert_eq!(
        whole["ranks"][0]["mesh"],
        json!([{"dimension": "pp", "index": 1}, {"dimension": "dp", "index": 1}])
    );
    assert_eq!(whole["ranks"][1]["mesh"], json!([]));
    // A whole stage is gone.
    std::fs::remove_file(folder.path().join("node001.json")).unwrap();
    let shown = text(&dump(&["--from", path]));
    let gone = "wait in collectives: for ranks 8-15 (pp 1), which have ended";
    assert!(shown.contains(gone), "{shown}");
}

#[test]
fn what_is_not_there_is_named_and_the_rest_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    simulate(folder.path(), 4, 99);
    std::fs::remove_file(folder.path().join("node002.json")).unwrap();
    std::fs::write(folder.path().join("node004.json"), "{\"schema\": 1, \"loo").unwrap();
    std::fs::write(
        folder.path().join("node005.json"),
        "{\"schema\": 9, \"looks\": []}",
    )
    .unwrap();
    let shown = text(&dump(&["--from", folder.path().to_str().unwrap()]));
    for line in [
        "24 ranks of 32 on 3 machines",
        "node004.json: it is no answer of torchspy dump --json",
        "node005.json: it is of version 9 of the schema",
        "not found: ranks 16-23",
        "all ranks that were found wait in collectives: for ranks 16-23, which have ended",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    let nothing = tempfile::tempdir().unwrap();
    let none = said(&dump(&["--from", nothing.path().to_str().unwrap()]));
    assert!(
        none.contains("error: ") && none.contains("hint: "),
        "{none}"
    );
}

#[test]
fn trainers_without_a_rank_are_listed_apart_and_an_answer_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    simulate(folder.path(), 2, 99);
    let file = folder.path().join("node001.json");
    let mut answer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut other = recorded_process(|each| each["rank"] == 2);
    other["rank"] = json!(null);
    other["world_size"] = json!(null);
    other["pid"] = json!(14038);
    let processes = answer["looks"][0]["processes"].as_array_mut().unwrap();
    processes.push(other);
    std::fs::write(&file, answer.to_string()).unwrap();
    std::fs::copy(&file, folder.path().join("copy.json")).unwrap();
    let path = folder.path().to_str().unwrap();
    let shown = text(&dump(&["--from", path]));
    assert!(shown.starts_with("16 ranks on 2 machines"), "{shown}");
    let line = "1 trainer without a rank: pid 14038 on node001\n";
    assert!(shown.contains(line), "{shown}");
    assert_eq!(shown.matches("14038").count(), 1, "{shown}");
    assert!(!shown.contains("more than once"), "{shown}");
    let whole: Value = serde_json::from_str(&text(&dump(&["--json", "--from", path]))).unwrap();
    assert_eq!(whole["waited_for"], json!(null));
    assert_eq!(
        whole["without_rank"],
        json!([{"rank": null, "host": "node001", "pid": 14038}])
    );
}

/// A command that stands in for ssh: by the host's name it prints an answer, fails, or hangs.
const BY_HOST: &str = "sh -c 'case $0 in \
     slow) exec sleep 60;; \
     bad) echo error: no trainer runs here >&2; exit 1;; \
     gone) echo ssh: connect to host gone: No route to host >&2; exit 255;; \
     *) exec cat FOLDER/$0.json;; esac' {host}";

#[test]
fn hosts_are_asked_by_a_command_and_none_holds_up_the_others() {
    let folder = tempfile::tempdir().unwrap();
    simulate(folder.path(), 3, 9);
    let via = BY_HOST.replace("FOLDER", folder.path().to_str().unwrap());
    let list = folder.path().join("hosts");
    std::fs::write(
        &list,
        "node000\nslow\nbad # of late\nnode001\ngone\nnode002\n",
    )
    .unwrap();
    let hosts = format!("@{}", list.display());
    let shown = text(&dump(&[
        "--hosts",
        &hosts,
        "--via",
        &via,
        "--timeout",
        "10s",
    ]));
    for line in [
        "24 ranks on 3 machines",
        "no answer from slow: no answer within 10 s",
        "no answer from bad: no trainer runs here",
        "no answer from gone: ssh: connect to host gone: No route to host",
        "rank 9, pid 1001 on node001: waits for the DataLoader queue",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    let none = said(&dump(&["--hosts", "bad", "--via", &via]));
    assert!(
        none.contains("error: none of 1 machine answered (bad: no trainer runs here)")
            && none.contains("hint: "),
        "{none}"
    );
    // What the shell's start files print comes before the answer.
    let banner = "sh -c 'echo Welcome to $0; exec cat FOLDER/$0.json' {host}";
    let banner = banner.replace("FOLDER", folder.path().to_str().unwrap());
    let shown = text(&dump(&["--hosts", "node001", "--via", &banner]));
    assert!(shown.starts_with("8 ranks of 24 on 1 machine"), "{shown}");
    let other = said(&dump(&["--hosts", "a", "--via", "echo Welcome to {host}"]));
    assert!(
        other.contains("dump --json: `Welcome to a torchspy"),
        "{other}"
    );
    let missing = said(&dump(&["--hosts", "a", "--via", "/does/not/exist {host}"]));
    assert!(missing.contains("cannot run /does/not/exist"), "{missing}");
}

#[test]
fn a_signal_ends_what_asks_the_machines() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    // The process that goes on is the shell's child.
    let via = format!(
        "sh -c 'sleep 60 & echo $! > {0}.new; mv {0}.new {0}; wait' {{host}}",
        file.display()
    );
    let mut asking = Command::new(TORCHSPY)
        .args(["dump", "--hosts", "a", "--timeout", "5m", "--via", &via])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !file.exists() && asking.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let own = Pid::from_raw(asking.id() as i32);
    kill(own, Signal::SIGTERM).unwrap();
    let output = asking.wait_with_output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("error: interrupted"), "{said}");
    // It has ended, or is a zombie for which init has not waited yet.
    let pid = std::fs::read_to_string(&file).unwrap();
    let stat = format!("/proc/{}/stat", pid.trim());
    let lives = |stat: String| !stat.rsplit(") ").next().unwrap().starts_with(['Z', 'X']);
    while std::fs::read_to_string(&stat).is_ok_and(lives) {
        std::thread::yield_now();
    }
}

#[test]
fn a_pipe_in_a_folder_is_no_answer_and_no_recording() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.json", "nccl_trace_rank_1", "b.tspy"] {
        mkfifo(&folder.path().join(name), Mode::S_IRWXU).unwrap();
    }
    let path = folder.path().to_str().unwrap();
    let none = said(&dump(&["--from", path]));
    assert!(none.contains("it is no regular file"), "{none}");
    assert!(none.contains("hint: --from takes outputs"), "{none}");
    let none = said(&dump(&["--job", path]));
    assert!(none.contains("names a machine"), "{none}");
}

#[test]
fn slurm_names_the_nodes_and_runs_it_there() {
    let folder = tempfile::tempdir().unwrap();
    simulate(folder.path(), 2, 9);
    let path = programs(folder.path());
    let run = |job: &str| {
        Command::new(TORCHSPY)
            .args(["dump", "--job", job])
            .env("PATH", &path)
            .output()
            .unwrap()
    };
    let shown = text(&run("42"));
    assert!(shown.contains("16 ranks on 2 machines"), "{shown}");
    assert!(shown.contains("rank 9 is not in"), "{shown}");
    let log = std::fs::read_to_string(folder.path().join("srun.log")).unwrap();
    assert!(
        log.contains(
            "--jobid=42 --overlap --nodes=1 --ntasks=1 --nodelist=node000 torchspy dump --json --all-trainers --job 42"
        ),
        "{log}"
    );
    let other = said(&run("43"));
    assert!(
        other.contains("squeue") && other.contains("hint: --hosts"),
        "{other}"
    );
}

#[test]
fn a_folder_of_recordings_names_the_machines() {
    let folder = tempfile::tempdir().unwrap();
    let none = said(&dump(&["--job", folder.path().to_str().unwrap()]));
    assert!(
        none.contains("names a machine") && none.contains("hint: "),
        "{none}"
    );
    record(&folder.path().join("a.tspy"), "node7", 1, &[]);
    let via = "sh -c 'echo error: asked $0: $* >&2; exit 1' {host}";
    let ask = || {
        let path = folder.path().to_str().unwrap();
        said(&dump(&["--job", path, "--via", via]))
    };
    let asked = ask();
    assert!(
        asked.contains("asked node7: torchspy dump --json --all-trainers"),
        "{asked}"
    );
    assert!(!asked.contains("--job"), "{asked}");
    // The newest job there is asked for, by the id that its trainers have.
    let torchrun = ("TORCHELASTIC_RUN_ID", "run7");
    record(&folder.path().join("b.tspy"), "node7", 2, &[torchrun]);
    let asked = ask();
    let words = "asked node7: torchspy dump --json --all-trainers --job run7";
    assert!(asked.contains(words), "{asked}");
    let ray = [("RAY_JOB_ID", "01000000"), ("MASTER_PORT", "29500")];
    record(&folder.path().join("c.tspy"), "node7", 3, &ray);
    let asked = ask();
    assert!(!asked.contains("--job"), "{asked}");
}

/// A recording of a process with these variables.
fn record(path: &Path, host: &str, started_wall_ns: u64, variables: &[(&str, &str)]) {
    let run = RunInfo {
        host: host.to_owned(),
        started_wall_ns,
        ..RunInfo::default()
    };
    let variables = variables.iter();
    let process = ProcessInfo {
        pid: 7,
        environment: variables
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        ..ProcessInfo::default()
    };
    let segment = Segment {
        end_ns: 1,
        tables: Tables {
            processes: vec![process],
            ..Tables::default()
        },
        last: true,
        ..Segment::default()
    };
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::create_new(path).unwrap();
    let mut writer = RecordingWriter::from_file(file, &run).unwrap();
    writer.write_segment(&segment).unwrap();
    writer.finish().unwrap();
}

/// A folder with programs that stand in for Slurm's and for ssh, and print the answers that are
/// there.
fn programs(folder: &Path) -> String {
    let write = |name: &str, script: &str| {
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    // As squeue(1), scontrol(1) and srun(1) of Slurm 24 document them.
    write(
        "squeue",
        "[ \"$*\" = '--noheader --jobs 42 --format %N' ] && echo 'node[000-001]'",
    );
    write(
        "scontrol",
        "[ \"$*\" = 'show hostnames node[000-001]' ] && printf 'node000\\nnode001\\n'",
    );
    write(
        "srun",
        "echo \"$*\" >> $0.log; for each; do case $each in --nodelist=*) exec cat $(dirname $0)/${each#*=}.json;; esac; done",
    );
    // Two options with a value each come before the host.
    write(
        "ssh",
        "echo \"$*\" >> $0.log; exec cat $(dirname $0)/$5.json",
    );
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

#[test]
fn a_folder_of_recordings_is_asked_as_what_started_its_job() {
    let folder = tempfile::tempdir().unwrap();
    simulate(folder.path(), 2, 9);
    let path = programs(folder.path());
    let run = |runs: &Path| {
        let output = Command::new(TORCHSPY)
            .args(["dump", "--job", runs.to_str().unwrap()])
            .env("PATH", &path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (text(&output), said)
    };
    let log = |program: &str| {
        let file = folder.path().join(format!("{program}.log"));
        std::fs::read_to_string(file).unwrap_or_default()
    };
    // As an agent writes them: DIR/HOST/ring-*.tspy.
    let ring = |runs: &Path, host: &str, started: u64, id: (&str, &str)| {
        let file = runs.join(host).join(format!("ring-{host}-{started}.tspy"));
        record(&file, host, started, &[id]);
    };

    let runs = folder.path().join("torchrun");
    let old = ("TORCHELASTIC_RUN_ID", "run6");
    let new = ("TORCHELASTIC_RUN_ID", "run7");
    ring(&runs, "node000", 1, old);
    ring(&runs, "node009", 2, old);
    ring(&runs, "node000", 3, new);
    ring(&runs, "node001", 4, new);
    let (shown, said) = run(&runs);
    assert!(shown.contains("16 ranks on 2 machines"), "{shown}");
    let others = "job run7, that of the newest recordings; not asked, since their recordings are of other jobs: node009";
    assert!(said.contains(others), "{said}");
    let asked = log("ssh");
    assert_eq!(asked.lines().count(), 2, "{asked}");
    for host in ["node000", "node001"] {
        let line = format!("{host} -- torchspy dump --json --all-trainers --job run7");
        assert!(asked.contains(&line), "{asked}");
    }

    let runs = folder.path().join("slurm");
    ring(&runs, "node000", 5, ("SLURM_JOB_ID", "42"));
    let (shown, _) = run(&runs);
    assert!(shown.contains("16 ranks on 2 machines"), "{shown}");
    let asked = log("srun");
    let line = "--jobid=42 --overlap --nodes=1 --ntasks=1 --nodelist=node001 torchspy dump --json --all-trainers --job 42";
    assert!(asked.contains(line), "{asked}");
    assert_eq!(log("ssh").lines().count(), 2);
}

/// Ranks on this machine that no other test's `--job` finds.
pub(crate) fn ranks(
    count: usize,
    name: &str,
    variables: &[(&str, &str)],
) -> Option<(Target, String)> {
    let python = any_python()?;
    let job = format!("{name}-{}", std::process::id());
    let mut command = Command::new(python);
    command
        .args([program("waiting_ranks.py"), count.to_string()])
        .env("TORCHELASTIC_RUN_ID", &job)
        .envs(variables.iter().copied());
    let mut target = Target::spawn(&mut command);
    target.ready = target.expect("ready");
    Some((target, job))
}

#[test]
fn all_processes_of_a_job_on_this_machine() {
    let Some((target, job)) = ranks(64, "many", &[]) else {
        return;
    };
    let begun = Instant::now();
    let shown = text(&dump(&[
        "--hosts",
        "here",
        "--via",
        "env HOST={host}",
        "--program",
        TORCHSPY,
        "--job",
        &job,
        "--timeout",
        "4m",
    ]));
    println!("64 processes: {:.2} s", begun.elapsed().as_secs_f64());
    let (read, lock) = (
        marked("waiting_ranks.py", "read"),
        marked("waiting_ranks.py", "lock"),
    );
    let last = &target.ready[63];
    for line in [
        "64 ranks on 1 machine, in ".to_owned(),
        format!("rank 63 (on here) differs: waits: read at waiting_ranks.py:{read}"),
        format!("ranks 0-62: waits for threading.Lock `lock` at waiting_ranks.py:{lock}"),
    ] {
        assert!(shown.contains(&line), "{line}\n{shown}");
    }
    let here: Value =
        serde_json::from_str(&text(&dump(&["--all-trainers", "--json", "--job", &job]))).unwrap();
    assert!(!here["host"].as_str().unwrap().is_empty());
    let processes = here["looks"][0]["processes"].as_array().unwrap();
    let pid = |rank: u64| {
        let of = processes.iter().find(|each| each["rank"] == rank);
        of.unwrap()["pid"].to_string()
    };
    assert_eq!(&pid(63), last);
    let other = said(&dump(&["--all-trainers", "--job", "no-such-job"]));
    assert!(
        other.contains("no trainer of job no-such-job runs here"),
        "{other}"
    );
}

#[test]
fn ranks_of_two_jobs_are_not_compared_with_each_other() {
    let (Some((two, first)), Some((three, second))) =
        (ranks(2, "two", &[]), ranks(3, "three", &[]))
    else {
        return;
    };
    let pids = [two.pid().to_string(), three.pid().to_string()];
    let options = ["--pid", &pids[0], "--pid", &pids[1], "--tree"];
    let shown = text(&dump(&options));
    let list =
        format!("2 jobs, each compared with itself: {second} (3 ranks), {first} (2 ranks)\n");
    for line in [
        list.as_str(),
        &format!("one of them alone: --job {second}\n"),
        &format!("\nJOB {second}\n"),
        &format!("\nJOB {first}\n"),
        "\n  rank 2 differs: waits: read at",
        "\n  ranks 0-1: waits for threading.Lock",
        "\n  rank 1: waits: read at",
        "\n  rank 0: waits for threading.Lock",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }

    let answer = text(&dump(&[&options[..], &["--json"]].concat()));
    let look: Value = serde_json::from_str(&answer).unwrap();
    let ranks = look["looks"][0]["ranks"].as_array().unwrap();
    let sizes = ranks
        .iter()
        .map(|each| each["pids"].as_array().unwrap().len());
    assert_eq!(sizes.collect::<Vec<_>>(), [1, 2, 1, 1]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node1.json");
    std::fs::write(&file, answer).unwrap();
    let from = ["--from", file.to_str().unwrap()];
    let shown = text(&dump(&from));
    for line in [
        list.as_str(),
        "\n3 ranks on 1 machine",
        "\n2 ranks on 1 machine",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    assert!(!shown.contains("found more than once"), "{shown}");
    let whole: Value =
        serde_json::from_str(&text(&dump(&[&from[..], &["--json"]].concat()))).unwrap();
    assert_eq!(whole["job"], json!(second));
    assert_eq!(whole["other_jobs"][0]["job"], json!(first));
    assert_eq!(whole["other_jobs"][0]["world_size"], 2);
}

#[test]
fn this_machine_is_asked_without_ssh_and_slurm_is_no_dead_end() {
    let slurm = format!("here{}", std::process::id());
    let Some((_target, job)) = ranks(2, "here", &[("SLURM_JOB_ID", &slurm)]) else {
        return;
    };
    let host = nix::unistd::gethostname().unwrap();
    let bin = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(TORCHSPY);
        command.arg("dump").args(arguments);
        // Neither ssh nor Slurm.
        command.env("PATH", bin.path()).output().unwrap()
    };
    let host = host.to_str().unwrap();
    let shown = text(&run(&["--hosts", host, "--job", &job, "--timeout", "4m"]));
    assert!(shown.contains("2 ranks on 1 machine"), "{shown}");
    let not_there = said(&run(&["--job", &slurm]));
    let hint =
        format!("hint: ranks of job {slurm} run on this machine: --all-trainers --job {slurm}");
    assert!(not_there.contains(&hint), "{not_there}");
    let no_id = said(&run(&["--job", &job]));
    assert!(
        no_id.contains(&format!("--all-trainers --job {job}")),
        "{no_id}"
    );
}

#[test]
fn several_processes_are_dumped_together() {
    let Some((target, _)) = ranks(3, "several", &[]) else {
        return;
    };
    let [first, second, third] = &target.ready[..] else {
        panic!("{:?}", target.ready)
    };
    let shown = text(&dump(&["--pid", first, "--pid", third]));
    assert!(
        shown.contains("RANKS") && shown.contains("rank 2"),
        "{shown}"
    );
    assert!(!shown.contains(&format!("pid {second}")), "{shown}");
    // One that has ended does not hide the others.
    let gone = i32::MAX.to_string();
    let shown = text(&dump(&["--pid", &gone, "--pid", first]));
    assert!(
        shown.contains("rank 0") && shown.contains(&format!("no process {gone}")),
        "{shown}"
    );
    assert!(said(&dump(&["--pid", &gone, "--pid", &gone])).contains("there is no process"));
}

#[test]
fn what_excludes_each_other_is_an_error() {
    for arguments in [
        &[][..],
        &["--pid", "1", "--all-trainers"],
        &["--from", "x.json", "--hosts", "a"],
        &["--hosts", ""],
        &["--hosts", "node[001-004]"],
        &["--hosts", "a", "--via", "ssh"],
        &["--hosts", "a", "--timeout", "soon"],
        &["--hosts", "a", "--locals"],
        &["--job", "--x"],
        &["--job", "a;b"],
    ] {
        let output = dump(arguments);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {said}");
        assert!(
            said.contains("error: ") && said.contains("hint: "),
            "{said}"
        );
    }
}

/// A server that answers as NCCL's RAS does: the handshake line by line, then `status`, and the
/// connection's end. Serves as many clients as come.
pub(crate) fn nccl_ras(status: impl Fn() -> String + Send + 'static) -> String {
    serve_ras("STATUS", status)
}

/// The same of an NCCL before 2.28.7, which knows no JSON.
pub(crate) fn nccl_ras_of_text(status: impl Fn() -> String + Send + 'static) -> String {
    serve_ras("VERBOSE STATUS", status)
}

fn serve_ras(command: &'static str, status: impl Fn() -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                let line = line.unwrap_or_default();
                let reply = match line.split(' ').next().unwrap() {
                    _ if line == command => status(),
                    "CLIENT" => "SERVER PROTOCOL 2\n".to_owned(),
                    "SET" if command != "STATUS" => format!("ERROR: Unknown command {line}\n"),
                    "TIMEOUT" | "SET" => "OK\n".to_owned(),
                    _ => break,
                };
                let _ = stream.write_all(reply.as_bytes());
                if line == command {
                    break;
                }
            }
        }
    });
    address
}

/// NCCL's JSON for three ranks of which one is behind, with the keys and the order of
/// `rasDumpCommsToJSON`.
pub(crate) fn status(pids: &[String]) -> String {
    let rank = |rank: usize, count: u64| {
        json!({
            "rank": rank, "host": "127.0.0.1", "pid": pids[rank].parse::<i64>().unwrap(), "cuda_dev": rank, "nvml_dev": rank,
            "status": {"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false},
            "collective_counts": {"Broadcast": 2, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": count},
        })
    };
    let status = json!({
        "nccl_version": "2.30.7", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2026-06-11 11:44:19", "communicators_count": 1,
        "communicators": [{
            "hash": "0xae94423cfbb2ef4a", "secondary_hash": "0x1:0x2", "size": 3, "ranks_count": 3,
            "missing_ranks_count": 0, "ranks": [rank(0, 1024), rank(1, 1024), rank(2, 1023)], "missing_ranks": [],
        }],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    });
    serde_json::to_string_pretty(&status).unwrap()
}

#[test]
fn nccl_says_which_rank_has_launched_less_and_our_stack_where_it_is() {
    let pids = std::sync::Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let known = pids.clone();
    let address = nccl_ras(move || status(&known.lock().unwrap()));
    let variables = [("NCCL_RAS_ADDR", address.as_str())];
    let Some((target, job)) = ranks(3, "nccl", &variables) else {
        return;
    };
    pids.lock().unwrap().clone_from(&target.ready);
    let read = marked("waiting_ranks.py", "read");
    let pid = &target.ready[2];
    let lines = [
        format!("NCCL RAS ({address}, NCCL 2.30.7)"),
        "communicator 0xae94423cfbb2ef4a of 3 ranks: rank 2 has launched 1,023 AllReduce, 2 others 1,024".to_owned(),
        format!("rank 2: pid {pid} on 127.0.0.1: waits: read at waiting_ranks.py:{read}"),
    ];
    let tree = target.pid().to_string();
    let local = text(&dump(&["--tree", "--pid", &tree]));
    let via = "env HOST={host}";
    let of_job = text(&dump(&[
        "--hosts",
        "a",
        "--via",
        via,
        "--program",
        TORCHSPY,
        "--job",
        &job,
        "--timeout",
        "4m",
    ]));
    for line in &lines {
        assert!(local.contains(line), "{line}\n{local}");
        assert!(of_job.contains(line), "{line}\n{of_job}");
    }
    let without = text(&dump(&["--tree", "--no-ras", "--pid", &tree]));
    assert!(!without.contains("NCCL"), "{without}");
}

/// The same job in NCCL 2.26.2's format strings, and with a rank that does not respond: of a
/// communicator of four.
fn status_as_text(pids: &[String]) -> String {
    format!(
        "NCCL version 2.26.2 compiled with CUDA 12.8\nCUDA runtime version 12080, driver version 12080\n\n\
         Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n\
         (total)   per node  per process    (total)  (total)\n{:7}  {:9}  {:11}  {:9}  {:7}\n\n\
         Communicators... (2.05s)\n=============\n\n\
         Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    \
         #  in group  per comm  per node  per comm  in group\n\
         {:5}  {:8}  {:8}  {:>8}  {:8}  {:8}  {:>8}  {:>6}\n\n\
         Errors\n======\n\n\
         INCOMPLETE\n  Missing communicator data from 1 job process\n  \
         Process 77 on node 192.0.2.7 managing GPU 3\n\n\
         #0-0 (ae94423cfbb2ef4a) INCOMPLETE\n  Missing communicator data from 1 rank\n  \
         Rank 3 -- GPU 3 managed by process 77 on node 192.0.2.7\n\n\
         Warnings\n========\n\n\
         TIMEOUT\n  Encountered 1 communication timeout while gathering communicator data\n\n\
         #0-0 (ae94423cfbb2ef4a) MISMATCH\n  \
         Communicator ranks have different AllReduce operation counts\n  \
         2 ranks have launched up to operation 1024\n  \
         Rank 2 has launched up to operation 1023 -- GPU 2 managed by process {} on node 127.0.0.1\n\n",
        2, 2, 1, 4, 4, 0, 1, 1, "3", 4, 3, "RUNNING", "INCOMPLETE,MISMATCH", pids[2],
    )
}

#[test]
fn an_nccl_that_knows_no_json_is_read_as_text() {
    let pids = std::sync::Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let known = pids.clone();
    let address = nccl_ras_of_text(move || status_as_text(&known.lock().unwrap()));
    let variables = [("NCCL_RAS_ADDR", address.as_str())];
    let Some((target, _)) = ranks(3, "nccl-text", &variables) else {
        return;
    };
    pids.lock().unwrap().clone_from(&target.ready);
    let (pid, read) = (&target.ready[2], marked("waiting_ranks.py", "read"));
    let tree = target.pid().to_string();
    let shown = text(&dump(&["--tree", "--pid", &tree]));
    let of = "communicator 0xae94423cfbb2ef4a of 4 ranks";
    for line in [
        format!("NCCL RAS ({address}, NCCL 2.26.2, 4 processes on 2 nodes with 4 GPUs)"),
        format!("{of}: rank 3 is missing, it does not respond"),
        "rank 3: pid 77 on 192.0.2.7".to_owned(),
        format!("{of}: rank 2 has launched 1,023 AllReduce, 2 others 1,024"),
        format!("rank 2: pid {pid} on 127.0.0.1: waits: read at waiting_ranks.py:{read}"),
    ] {
        assert!(shown.contains(&line), "{line}\n{shown}");
    }
    assert!(!shown.contains("it may be another job"), "{shown}");
    // An answer that is read from a file has the same.
    let answer = text(&dump(&["--tree", "--pid", &tree, "--json"]));
    let look: Value = serde_json::from_str(&answer).unwrap();
    let ras = &look["looks"][0]["nccl_ras"][0];
    let job = json!({"nodes": 2, "processes": 4, "gpus": 4});
    assert_eq!((&ras["job"], &ras["may_be_others"]), (&job, &json!(false)));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node1.json");
    std::fs::write(&file, answer).unwrap();
    let from = text(&dump(&["--from", file.to_str().unwrap()]));
    for line in [
        "NCCL 2.26.2, 4 processes on 2 nodes with 4 GPUs)",
        "rank 2 has launched 1,023 AllReduce, 2 others 1,024",
    ] {
        assert!(from.contains(line), "{line}\n{from}");
    }
}

#[test]
fn why_nccl_says_nothing_where_it_is_in_use() {
    // Nobody listens to port 1 (tcpmux, which is no longer used); a port that was free may be
    // another's by now.
    let free = "127.0.0.1:1";
    let strangers = nccl_ras(|| status(&["1".to_owned(), "1".to_owned(), "1".to_owned()]));
    let broken = nccl_ras(|| "{\"communicators\": [[[".to_owned());
    let cut = nccl_ras_of_text(|| "NCCL version 2.24.3 compiled with CUDA 12.6\n".to_owned());
    for (variables, why) in [
        (&[("NCCL_RAS_ADDR", free)][..], "nothing listens there"),
        (
            &[("NCCL_RAS_ADDR", strangers.as_str())],
            "another job answers there",
        ),
        (&[("NCCL_RAS_ADDR", broken.as_str())], "is not understood"),
        (&[("NCCL_RAS_ADDR", cut.as_str())], "is cut"),
        (
            &[("NCCL_RAS_ADDR", free), ("NCCL_RAS_ENABLE", "0")],
            "it is off (NCCL_RAS_ENABLE=0)",
        ),
    ] {
        let Some((target, _)) = ranks(1, "off", variables) else {
            return;
        };
        let shown = text(&dump(&["--pid", &target.ready[0]]));
        let line = shown.lines().find(|line| line.starts_with("NCCL RAS ("));
        assert!(line.unwrap_or_default().contains(why), "{why}\n{shown}");
    }
    let Some((target, _)) = ranks(1, "none", &[]) else {
        return;
    };
    assert!(!text(&dump(&["--pid", &target.ready[0]])).contains("NCCL"));
}
