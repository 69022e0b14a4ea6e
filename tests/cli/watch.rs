//! `torchspy watch`: what is a hang, what is none, and what is done about one. Those of real ranks
//! are in tests/jobs.

use crate::faults::{TORCHSPY, Target, any_python, marked, program, states, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn ranks(count: usize, how: &str) -> Option<Target> {
    let python = any_python()?;
    let mut command = Command::new(python);
    command.args([&program("waiting_ranks.py"), &count.to_string(), how]);
    let mut target = Target::spawn(&mut command);
    target.ready = target.expect("ready");
    Some(target)
}

fn command(pids: &[String], folder: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(TORCHSPY);
    command
        .args(["watch", "--after", "300ms", "--every", "50ms"])
        .args(pids.iter().flat_map(|pid| ["--pid", pid]))
        .args(options)
        .current_dir(folder);
    command
}

fn watch(pids: &[String], folder: &Path, options: &[&str]) -> Output {
    command(pids, folder, options).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_hang_is_dumped_and_a_command_runs() {
    let Some(target) = ranks(2, "lock") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let command = "cp $TORCHSPY_DUMP copy; echo \"$TORCHSPY_HANG, $TORCHSPY_PID\" > why; grep SigBlk: /proc/self/status > mask; test -s $TORCHSPY_DUMP_JSON; exit 3";
    let pids = &target.ready;
    let once = ["--once", "--duration", "4m", "-o", "hang"];
    let output = watch(
        pids,
        folder.path(),
        &[&once[..], &["--on-hang", command]].concat(),
    );
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("watching 2 trainers") && said.contains("a hang: "),
        "{said}"
    );
    assert!(
        said.contains("warning: --on-hang ended with exit status: 3"),
        "{said}"
    );
    assert_eq!(
        files(folder.path()),
        ["copy", "hang.json", "hang.txt", "mask", "why"]
    );
    let line = marked("waiting_ranks.py", "lock");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    // The command may be ended by signals as any other, though torchspy waits for them.
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    assert!(own.contains(&read("mask")), "{}", read("mask"));
    let why = read("why");
    assert!(
        why.contains(&format!("at waiting_ranks.py:{line}, {}", pids[0])),
        "{why}"
    );
    let text = read("hang.txt");
    let head = text.lines().next().unwrap();
    let begins =
        head.starts_with("HANG on ") && head.contains(" UTC: no training thread moved for ");
    assert!(begins && text.contains("RANKS"), "{text}");
    for name in ["hang.txt", "hang.json"] {
        let metadata = folder.path().join(name).metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
    }
    assert_eq!(text, read("copy"));
    let json: Value = serde_json::from_str(&read("hang.json")).unwrap();
    assert_eq!(json["looks"][0]["ranks"].as_array().unwrap().len(), 1);
    // The next one does not replace it.
    watch(pids, folder.path(), &once);
    assert!(
        folder.path().join("hang-2.txt").exists(),
        "{:?}",
        files(folder.path())
    );
}

/// Watches until it is judged, and for some seconds, and expects no hang, but this reason.
fn no_hang(target: &Target, why: &str) {
    let folder = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let mut watching = command(&target.ready, folder.path(), &["--duration", "4m"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stderr.take().unwrap()).lines();
    let mut said = String::new();
    // How long looks take is the machine's affair.
    for line in lines.by_ref().map(Result::unwrap) {
        said.push_str(&format!("{line}\n"));
        let is_judged = line.contains("it is no hang as far as can be told") && line.contains(why);
        if is_judged || line.contains("a hang: ") {
            break;
        }
    }
    std::thread::sleep(Duration::from_secs(3).saturating_sub(begun.elapsed()));
    // It has ended already where the reason was not found.
    let _ = kill(Pid::from_raw(watching.id() as i32), Signal::SIGTERM);
    for line in lines.map(Result::unwrap) {
        said.push_str(&format!("{line}\n"));
    }
    assert!(watching.wait().unwrap().success(), "{said}");
    assert!(!said.contains("a hang: "), "{said}");
    let is_judged = said.contains("it is no hang as far as can be told");
    assert!(is_judged && said.contains(why), "{why}\n{said}");
    assert_eq!(files(folder.path()), [""; 0]);
}

#[test]
fn what_goes_on_by_itself_is_no_hang() {
    for (how, why) in [
        ("sleep", "rank 1 waits: "),
        ("compute", "rank 1 "),
        ("timed", "rank 1 waits for threading.Lock"),
        ("held", "rank 1 waits for a thread that waits: "),
        (
            "event",
            "and whether a thread ends that which waits: time.sleep()",
        ),
        ("queue", "rank 1 waits: queue.Queue.get"),
        ("accept", "whether anybody connects is not known"),
        ("child", "it reads the output of a child"),
    ] {
        let Some(target) = ranks(2, how) else {
            return;
        };
        no_hang(&target, why);
    }
}

#[test]
fn what_is_stopped_is_no_hang() {
    let Some(target) = ranks(2, "lock") else {
        return;
    };
    let stopped = Pid::from_raw(target.ready[1].parse().unwrap());
    kill(stopped, Signal::SIGSTOP).unwrap();
    wait_until("the rank is stopped", || {
        states(stopped.as_raw()).iter().all(|&state| state == b'T')
    });
    no_hang(&target, "rank 1 is stopped");
    kill(stopped, Signal::SIGCONT).unwrap();
}

#[test]
fn the_command_runs_also_where_no_dump_can_be_written() {
    let Some(target) = ranks(2, "lock") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    // Its folder is made; with its extension the name is longer than names may be.
    let name = format!("new/{}", "a".repeat(254));
    let command = "echo \"<$TORCHSPY_DUMP><$TORCHSPY_DUMP_JSON>$TORCHSPY_PID\" > ran";
    let options = [
        "--once",
        "--duration",
        "4m",
        "-o",
        &name,
        "--on-hang",
        command,
    ];
    let output = watch(&target.ready, folder.path(), &options);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: cannot write new/aaa"), "{said}");
    assert!(said.contains("a hang: ") && said.contains("Its dump could not be written"));
    assert_eq!(files(folder.path()), ["new", "ran"]);
    assert_eq!(files(&folder.path().join("new")), [""; 0]);
    let ran = std::fs::read_to_string(folder.path().join("ran")).unwrap();
    assert_eq!(ran, format!("<><>{}\n", target.ready[0]));
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_at_the_start() {
    let Some(target) = ranks(1, "sleep") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let output = watch(&target.ready, folder.path(), &["-o", "file/hang"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("error: cannot write file/hang: "),
        "{said}"
    );
    assert!(
        said.contains("hint: ") && !said.contains("watching"),
        "{said}"
    );
}

#[test]
fn a_process_without_a_trainer_is_watched_until_there_is_one() {
    let mut target = Target::spawn(Command::new("sh").args(["-c", "echo ready; read x"]));
    target.expect("ready");
    let folder = tempfile::tempdir().unwrap();
    let pid = target.pid().to_string();
    let output = watch(&[pid], folder.path(), &["--duration", "100ms"]);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.starts_with("no trainer was found yet, and watch goes on looking"),
        "{said}"
    );
}

#[test]
fn it_ends_with_the_job() {
    let Some(mut target) = ranks(1, "sleep") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut watching = Command::new(TORCHSPY)
        .args(["watch", "--pid", &target.ready[0], "--every", "20ms"])
        .current_dir(folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("watching 1 trainer"), "{first}");
    target.close_input();
    target.wait();
    assert_eq!(lines.last().unwrap().unwrap(), "the job has ended");
    assert!(watching.wait().unwrap().success());
}

#[test]
fn all_trainers_of_a_job_on_this_machine_are_watched() {
    // The last of them reads, and the other waits for a lock.
    let Some((_target, job)) = crate::dump_job::ranks(2, "watched", &[]) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let output = watch(&[], folder.path(), &["--job", &job, "--duration", "1s"]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("watching 2 trainers"), "{text}");
    let other = watch(&[], folder.path(), &["--job", "no-such-job"]);
    let text = said(&other);
    assert_eq!(other.status.code(), Some(1), "{text}");
    assert!(
        text.contains("error: no trainer ") && text.contains("hint: "),
        "{text}"
    );
}

#[test]
fn what_cannot_be_watched_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let gone = watch(&[i32::MAX.to_string()], folder.path(), &[]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(
        said(&gone).contains("there is no process"),
        "{}",
        said(&gone)
    );
    for wrong in [
        &["watch"][..],
        &["watch", "4242"],
        &["watch", "--pid", "1", "--times", "0"],
        &["watch", "--pid", "1", "--after", "x"],
    ] {
        let output = Command::new(TORCHSPY).args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains("hint: "));
        let by_pid = "the process is given with --pid: torchspy watch --pid 4242";
        let has_pid = wrong.contains(&"--pid") || wrong.len() == 1;
        assert!(
            has_pid || said(&output).contains(by_pid),
            "{}",
            said(&output)
        );
    }
}
