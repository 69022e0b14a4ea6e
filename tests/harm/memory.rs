//! Targets that end for lack of memory: the report says so.

use crate::faults::{How, Recorder, Target, any_python, program, run};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Held by tests of which one makes the kernel kill a process, and the other looks at the machine's
/// count of such kills.
static KILLS: Mutex<()> = Mutex::new(());

const PLAIN: How<'_> = How {
    options: &[],
    fault: None,
};
const LIMIT: u64 = 64 << 20;

/// A cgroup with a limit of its memory, which is removed at the end.
struct Limited(PathBuf);

impl Limited {
    /// `None`, with the reason, where none can be made.
    fn new() -> Option<Self> {
        let name = format!("torchspy-test-{}", std::process::id());
        let version_2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let (root, limit, swap) = if version_2 {
            // The root may let its children have the controller already; else this asks for it.
            let _ = std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
            ("/sys/fs/cgroup", "memory.max", "memory.swap.max")
        } else {
            let swap = "memory.memsw.limit_in_bytes";
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", swap)
        };
        let folder = Path::new(root).join(name);
        let made = std::fs::create_dir(&folder);
        let group = made.map(|()| Self(folder));
        let limited = group.and_then(|group| {
            std::fs::write(group.0.join(limit), LIMIT.to_string())?;
            // Not there without swap accounting.
            let swap_limit = if version_2 { 0 } else { LIMIT };
            let _ = std::fs::write(group.0.join(swap), swap_limit.to_string());
            Ok(group)
        });
        limited
            .inspect_err(|error| println!("skipped: no cgroup with a limit here: {error}"))
            .ok()
    }

    /// A command that runs in it.
    fn shell(&self) -> String {
        let procs = self.0.join("cgroup.procs");
        format!("echo $$ > {} && exec \"$@\"", procs.display())
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn ended(report: &serde_json::Value) -> &serde_json::Value {
    let all = &report["host_use"]["ended_by_signal"];
    assert_eq!(all.as_array().map(Vec::len), Some(1), "{all}");
    &all[0]
}

#[test]
fn a_target_at_the_limit_of_its_cgroup_was_killed_by_the_kernel() {
    let (Some(python), Some(group)) = (any_python(), Limited::new()) else {
        return;
    };
    let _alone = KILLS.lock().unwrap_or_else(PoisonError::into_inner);
    let script = program("memory_ends.py");
    let shell = group.shell();
    let mut target = Target::start(&["sh", "-c", &shell, "sh", &python, &script, "heap"]);
    let recorder = Recorder::attach(target.pid(), PLAIN);
    recorder.wait_for_segment();
    target.tell("go");
    let recorded = recorder.finish().expect_success();
    assert_eq!(target.wait().signal(), Some(9));
    let report = recorded.report();
    let end = ended(&report);
    assert_eq!(end["reason"], "cgroup_limit", "{report}");
    assert_eq!(end["limit_bytes"], LIMIT);
    let path = end["cgroup"].as_str().unwrap();
    assert!(group.0.ends_with(path.trim_start_matches('/')), "{path}");
    let limit = &report["host_use"]["memory_limits"][0];
    assert_eq!(
        (&limit["of"], &limit["path"]),
        (&"cgroup".into(), &end["cgroup"])
    );
    let text = run(&["report", &recorded.path().to_string_lossy()]).stdout;
    assert!(text.contains("was killed by the kernel after"), "{text}");
}

/// A user's SIGKILL is not the kernel's.
#[test]
fn a_target_that_a_user_kills_has_no_reason() {
    let Some(python) = any_python() else { return };
    let _alone = KILLS.lock().unwrap_or_else(PoisonError::into_inner);
    let script = program("memory_ends.py");
    let mut target = Target::start(&[&python, &script, "heap"]);
    let recorder = Recorder::attach(target.pid(), PLAIN);
    recorder.wait_for_segment();
    target.kill(nix::sys::signal::Signal::SIGKILL);
    let recorded = recorder.finish().expect_success();
    target.wait();
    let report = recorded.report();
    let end = ended(&report);
    assert_eq!(
        (&end["signal"], &end["reason"]),
        (&9.into(), &().into()),
        "{report}"
    );
}

/// As a DataLoader worker does whose batch does not fit.
#[test]
fn a_worker_that_writes_to_a_full_dev_shm_is_named() {
    let Some(python) = any_python() else { return };
    let script = program("memory_ends.py");
    let mount = "mount -t tmpfs -o size=16m tmpfs /dev/shm";
    let tried = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", mount])
        .status();
    if !tried.is_ok_and(|status| status.success()) {
        println!("skipped: no mount namespace with a /dev/shm of its own can be made here");
        return;
    }
    let shell = format!("{mount} && exec \"$@\"");
    let words = [
        "unshare", "-m", "sh", "-c", &shell, "sh", &python, &script, "shm", "--fork",
    ];
    let mut target = Target::start(&words);
    let recorder = Recorder::attach(target.pid(), PLAIN);
    recorder.wait_for_segment();
    target.tell("go");
    assert_eq!(target.expect("ended"), ["7"]);
    let recorded = recorder.finish().expect_success();
    let report = recorded.report();
    let end = ended(&report);
    assert_eq!(end["reason"], "dev_shm_full", "{report}");
    assert_eq!(
        (&end["perhaps"], &end["limit_bytes"]),
        (&false.into(), &(16 << 20).into())
    );
    assert_ne!(end["pid"], target.pid());
    let text = run(&["report", &recorded.path().to_string_lossy()]).stdout;
    assert!(text.contains("/dev/shm was full: 17 MB of 17 MB"), "{text}");
}
