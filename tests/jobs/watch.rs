//! `torchspy watch` on Gloo ranks: a worker that is stuck is a hang, a rank that computes or waits
//! for a time is none.

use crate::faults::{TORCHSPY, Target, program};
use crate::installed::torch_python;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Two ranks, and their pids by rank.
fn ranks(how: &str) -> Option<(Target, [String; 2])> {
    let python = torch_python()?;
    let mut command = Command::new(python);
    let torchrun = ["-m", "torch.distributed.run", "--standalone"];
    command
        .args(torchrun)
        .args(["--nproc-per-node", "2", &program("hang_ranks.py"), how])
        .env("OMP_NUM_THREADS", "1");
    let mut target = Target::spawn(&mut command);
    let mut pids = [const { String::new() }; 2];
    for _ in 0..2 {
        let words = target.expect("ready");
        pids[words[0].parse::<usize>().unwrap()].clone_from(&words[1]);
    }
    Some((target, pids))
}

/// What it said, and whether it wrote a dump.
fn watch(target: &Target, duration: &str) -> (Output, bool) {
    let folder = tempfile::tempdir().unwrap();
    let pid = target.pid().to_string();
    let output = watch_command(&folder)
        .args(["--pid", &pid, "--duration", duration])
        .output()
        .unwrap();
    let is_dumped = folder.path().join("hang.txt").exists();
    (output, is_dumped)
}

fn watch_command(folder: &TempDir) -> Command {
    let mut command = Command::new(TORCHSPY);
    command
        .arg("watch")
        .args(["--after", "1s", "--every", "200ms", "--once", "-o", "hang"])
        .current_dir(folder.path());
    command
}

/// Watches rank 0, with each rank as a machine of its own.
fn watch_machines(folder: &TempDir, pids: &[String; 2]) -> Command {
    for (host, pid) in ["node0", "node1"].iter().zip(pids) {
        std::fs::write(folder.path().join(host), pid).unwrap();
    }
    let via = format!("sh -c 'exec {TORCHSPY} dump --json --tree --pid $(cat $0)' {{host}}");
    let mut command = watch_command(folder);
    command
        .args(["--pid", &pids[0], "--duration", "120s"])
        .args(["--hosts", "node0,node1", "--timeout", "50s", "--via", &via]);
    command
}

/// The line in which it says that it is no hang; it is ended then. Fails if it says that in none.
fn judged(command: &mut Command) -> String {
    let mut watch = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stderr.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    let judged = lines.find(|line| line.contains("it is no hang as far as can be told: "));
    watch.kill().unwrap();
    watch.wait().unwrap();
    judged.unwrap()
}

#[test]
fn ranks_that_wait_for_a_worker_that_is_stuck_hang() {
    let Some((target, pids)) = ranks("worker") else {
        return;
    };
    let (output, is_dumped) = watch(&target, "120s");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let named = "rank 1: waits for the DataLoader queue";
    assert!(is_dumped && said.contains(named), "{said}");
    // Its own machine is watched by none.
    let folder = tempfile::tempdir().unwrap();
    let output = watch_machines(&folder, &pids).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("asked 2 machines: 2 ranks"), "{said}");
    assert!(said.contains(named), "{said}");
    let dump = std::fs::read_to_string(folder.path().join("hang.txt")).unwrap();
    assert!(dump.contains("2 ranks on 2 machines"), "{dump}");
}

#[test]
fn ranks_that_wait_for_one_that_computes_or_sleeps_do_not() {
    for how in ["python", "lock"] {
        let Some((target, pids)) = ranks(how) else {
            return;
        };
        let (output, is_dumped) = watch(&target, "5s");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !is_dumped, "{how} {said}");
        // A loop is at one of two lines.
        if how == "lock" {
            let folder = tempfile::tempdir().unwrap();
            let pid = target.pid().to_string();
            let mut command = watch_command(&folder);
            judged(command.args(["--pid", &pid, "--duration", "120s"]));
            let judged = judged(&mut watch_machines(&folder, &pids));
            assert!(
                judged.contains("rank 1 waits for a thread that"),
                "{judged}"
            );
            assert!(!folder.path().join("hang.txt").exists());
        }
    }
}
