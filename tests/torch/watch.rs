//! `torchspy watch` on Gloo ranks: a worker that is stuck is a hang, a rank that computes or waits
//! for a time is none.

use crate::faults::{TORCHSPY, Target, program};
use crate::native_live::torch_python;
use std::process::{Command, Output};

fn ranks(how: &str) -> Option<Target> {
    let python = torch_python()?;
    let mut command = Command::new(python);
    let torchrun = ["-m", "torch.distributed.run", "--standalone"];
    command
        .args(torchrun)
        .args(["--nproc-per-node", "2", &program("hang_ranks.py"), how])
        .env("OMP_NUM_THREADS", "1");
    let mut target = Target::spawn(&mut command);
    for _ in 0..2 {
        target.expect("ready");
    }
    Some(target)
}

/// What it said, and whether it wrote a dump.
fn watch(target: &Target, duration: &str) -> (Output, bool) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(TORCHSPY)
        .args(["watch", "--pid", &target.pid().to_string()])
        .args(["--after", "1s", "--every", "200ms", "--once", "-o", "hang"])
        .args(["--duration", duration])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let is_dumped = folder.path().join("hang.txt").exists();
    (output, is_dumped)
}

#[test]
fn ranks_that_wait_for_a_worker_that_is_stuck_hang() {
    let Some(target) = ranks("worker") else {
        return;
    };
    let (output, is_dumped) = watch(&target, "60s");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let is_named = said.contains("rank 1: waits for the DataLoader queue");
    assert!(is_dumped && is_named, "{said}");
}

#[test]
fn ranks_that_wait_for_one_that_computes_or_sleeps_do_not() {
    for how in ["python", "lock"] {
        let Some(target) = ranks(how) else {
            return;
        };
        let (output, is_dumped) = watch(&target, "5s");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !is_dumped, "{how} {said}");
        let is_judged = said.contains("it is no hang as far as can be told: ");
        // A loop is at one of two lines.
        assert!(is_judged || how == "python", "{how} {said}");
    }
}
