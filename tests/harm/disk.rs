//! Disks that are full, and disks that stand still, while a recording is written.
//!
//! A full disk is a small tmpfs in a mount namespace of its own. A disk that stands still is a
//! writer thread that does: the test holds it by ptrace where it waits for its next segment, so
//! that the rest of torchspy meets what a write that does not come back is, and a test that is
//! killed leaves nothing frozen behind.

use crate::faults::{
    How, PATIENCE, Recorded, Recorder, TORCHSPY, Target, any_python, compiled, functions, program,
    run, seconds_with, states, wait_until,
};
use crate::so_far;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A small file system that nobody else sees, and that is gone when this is dropped.
struct SmallDisk {
    keeper: Child,
}

impl SmallDisk {
    /// `None`, with the reason printed, where nothing may be mounted.
    fn new(kilobytes: u32) -> Option<Self> {
        let script = format!(
            "mount -t tmpfs -o size={kilobytes}k torchspy-test /mnt && echo mounted && read end"
        );
        let keeper = Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut keeper = match keeper {
            Ok(keeper) => keeper,
            Err(error) => {
                eprintln!("skipped: unshare: {error}");
                return None;
            }
        };
        let mut line = String::new();
        let mut said = BufReader::new(keeper.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let disk = Self { keeper };
        if line != "mounted\n" {
            let mut disk = disk;
            let why = crate::faults::rest_of(disk.keeper.stderr.take().unwrap());
            eprintln!("skipped: no file system may be mounted here: {why}");
            return None;
        }
        Some(disk)
    }

    /// Its folder, as seen from outside (proc_pid_root(5)).
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/mnt", self.keeper.id()))
    }

    /// Leaves no space but `bytes`.
    fn fill_but(&self, bytes: u64) {
        let free = nix::sys::statvfs::statvfs(&self.path()).unwrap();
        let free = free.blocks_available() * free.fragment_size();
        let zeros = vec![0; usize::try_from(free.saturating_sub(bytes)).unwrap()];
        match std::fs::write(self.path().join("ballast"), zeros) {
            // A segment took some of it meanwhile: less than `bytes` are left.
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {}
            written => written.unwrap(),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Records onto a disk, with a recording of `name` there and none beside it.
fn spawn_onto(disk: &SmallDisk, options: &[&str]) -> Recorder {
    let mut command = Command::new(TORCHSPY);
    let path = disk.path().join("run.tspy");
    command.arg("record").arg("-o").arg(path).args(options);
    Recorder::spawn(command, tempfile::tempdir().unwrap())
}

/// `report --json` and `inspect` of what is on the disk.
fn read_back(disk: &SmallDisk) -> (serde_json::Value, String) {
    let path = disk.path().join("run.tspy").to_string_lossy().into_owned();
    let report = run(&["report", "--json", &path]);
    assert!(report.status.success(), "{}", report.stderr);
    let dump = run(&["inspect", &path]);
    assert!(dump.status.success(), "{}", dump.stderr);
    (serde_json::from_str(&report.stdout).unwrap(), dump.stdout)
}

fn assert_says_full(recorded: &Recorded) {
    let said = &recorded.messages;
    assert!(
        said.contains("warning: cannot write the recording: No space left on device"),
        "{said}"
    );
    assert!(said.contains("hint: free some space"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// The target goes on, and what fitted is there. Attached, torchspy's own status says that not all
/// was written.
#[test]
fn a_disk_that_fills_up_under_an_attached_recording() {
    let (Some(python), Some(disk)) = (any_python(), SmallDisk::new(1024)) else {
        return;
    };
    let script = program("fault_exit.py");
    let mut target = Target::start(&[&python, &script, "--go", "return"]);
    let recorder = spawn_onto(&disk, &["--pid", &target.pid().to_string()]);
    let path = disk.path().join("run.tspy");
    so_far::wait_for_part(&path, "py main (");
    disk.fill_but(0);
    // It ends by itself: nothing more can be recorded.
    let recorded = recorder.finish();
    assert_eq!(recorded.status.code(), Some(1), "{}", recorded.messages);
    assert_says_full(&recorded);
    let (report, dump) = read_back(&disk);
    assert!(functions(&report).contains_key("main"), "{report}");
    assert!(dump.contains("py main ("), "{dump}");
    let missing = report["missing"].to_string();
    assert!(missing.contains("the end is missing"), "{missing}");
    assert!(
        states(target.pid())
            .iter()
            .all(|state| b"RS".contains(state)),
        "the target runs on"
    );
    target.tell("end");
    assert!(target.wait().success());
}

/// Launched, the status is the program's, whatever became of the recording.
#[test]
fn a_disk_that_fills_up_under_a_launched_program() {
    let (Some(python), Some(disk)) = (any_python(), SmallDisk::new(1024)) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    // Works until there is a file, then ends with a status of its own. Where the test fails, the
    // folder goes first.
    let script = "import os, sys\ngo = sys.argv[1]\ndef work():\n    while os.path.isdir(os.path.dirname(go)) and not os.path.exists(go): sum(range(1000))\nwork()\nsys.exit(7)";
    let go_text = go.to_string_lossy().into_owned();
    let mut recorder = spawn_onto(&disk, &["--", &python, "-c", script, &go_text]);
    let path = disk.path().join("run.tspy");
    so_far::wait_for_part(&path, "py work (");
    disk.fill_but(0);
    recorder.wait_for_message("the program goes on");
    std::fs::write(&go, "").unwrap();
    let recorded = recorder.finish();
    assert_eq!(recorded.status.code(), Some(7), "{}", recorded.messages);
    assert_says_full(&recorded);
    let (report, _) = read_back(&disk);
    assert!(functions(&report).contains_key("work"), "{report}");
}

/// No space for the first bytes: an error before anything runs.
#[test]
fn a_disk_that_is_full_from_the_start() {
    let Some(disk) = SmallDisk::new(64) else {
        return;
    };
    disk.fill_but(0);
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let recorded = spawn_onto(&disk, &["--", "touch", &ran.to_string_lossy()]).finish();
    assert_eq!(recorded.status.code(), Some(1), "{}", recorded.messages);
    let said = &recorded.messages;
    assert!(
        said.starts_with("error: ") && said.contains("No space left on device"),
        "{said}"
    );
    assert!(said.contains("hint: free some space"), "{said}");
    assert!(!ran.exists(), "the program did not run");
    assert!(!disk.path().join("run.tspy").exists(), "nothing is left");
}

/// Space for the recording and not for what is made from it.
#[test]
fn a_disk_without_space_for_the_flamegraph() {
    let (Some(python), Some(disk)) = (any_python(), SmallDisk::new(64)) else {
        return;
    };
    disk.fill_but(4096);
    let script = program("fault_exit.py");
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(TORCHSPY);
    command
        .args(["record", "-o", "run.tspy", "-o"])
        .arg(disk.path().join("run.svg"))
        .args(["--", &python, &script, "--after", "0.3", "sys-exit-3"]);
    let recorded = Recorder::spawn(command, folder).finish();
    assert_eq!(recorded.status.code(), Some(3), "{}", recorded.messages);
    let said = &recorded.messages;
    assert_eq!(said.matches("No space left on device").count(), 1, "{said}");
    assert!(
        said.contains("run.svg: cannot write the flamegraph: No space left on device")
            && said.contains("hint: free some space"),
        "{said}"
    );
    assert!(said.contains("wrote run.tspy"), "{said}");
    assert!(!said.contains("run.svg\n"), "{said}");
    assert!(functions(&recorded.report()).contains_key("main"));
    assert!(
        !disk.path().join("run.svg").exists(),
        "no half of one is left"
    );
}

/// torchspy's writer thread, held where it waits for the next segment.
struct StalledWriter {
    tid: Pid,
}

impl StalledWriter {
    /// `None`, with the reason printed, where a child may not be traced.
    fn hold(torchspy: i32) -> Option<Self> {
        let tid = Pid::from_raw(thread_of(torchspy, "torchspy-write"));
        if let Err(error) = ptrace::seize(tid, ptrace::Options::empty()) {
            eprintln!("skipped: the writer may not be held: {error}");
            return None;
        }
        loop {
            ptrace::interrupt(tid).unwrap();
            let status = waitpid(tid, Some(WaitPidFlag::__WALL)).unwrap();
            assert!(matches!(status, WaitStatus::PtraceEvent(..)), "{status:?}");
            // Between two writes it waits for the channel: in futex, where it holds nothing that
            // others wait for.
            let call = std::fs::read_to_string(format!("/proc/{torchspy}/task/{tid}/syscall"));
            let call = call.unwrap();
            let number: i64 = call.split(' ').next().unwrap().parse().unwrap_or(-1);
            if number == 202 {
                return Some(Self { tid });
            }
            ptrace::cont(tid, None).unwrap();
        }
    }

    /// A thread that dies traced is not gone before its tracer has seen that.
    fn bury(&self) {
        let _ = waitpid(self.tid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
    }

    fn release(self) {
        ptrace::detach(self.tid, None).unwrap();
    }
}

fn thread_of(pid: i32, name: &str) -> i32 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let found = tasks.flatten().find(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    let found = found.unwrap_or_else(|| panic!("no thread {name}"));
    found.file_name().to_string_lossy().parse().unwrap()
}

/// A figure of `/proc/.../status`.
fn status_of(folder: &Path, key: &str) -> u64 {
    let text = std::fs::read_to_string(folder.join("status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let figure = line.unwrap().trim_start_matches(':').trim();
    figure.split_whitespace().next().unwrap().parse().unwrap()
}

fn sleeps_of(pid: i32, thread: &str) -> u64 {
    let folder = format!("/proc/{pid}/task/{}", thread_of(pid, thread));
    status_of(Path::new(&folder), "voluntary_ctxt_switches")
}

/// Waits for so many more sleeps of the sampler: at least one tick each.
fn wait_for_ticks(pid: i32, ticks: u64) {
    let before = sleeps_of(pid, "torchspy-trace");
    wait_until("ticks", || {
        sleeps_of(pid, "torchspy-trace") >= before + ticks
    });
}

/// Sampling goes on, the target is not held up, memory stays within its bounds; what the queues
/// cannot take is counted as lost; and once the disk goes on, all the rest is written.
#[test]
fn a_disk_that_stands_still() {
    let Some(waker) = compiled("fault_wakers.c") else {
        return;
    };
    let mut target = Target::start(&[&waker, "32", "3"]);
    let options = ["--rate", "500", "--max-stopped", "off"];
    let how = How {
        options: &options,
        fault: None,
    };
    let recorder = Recorder::attach(target.pid(), how);
    recorder.wait_for_segment();
    let pid = recorder.pid();
    let Some(writer) = StalledWriter::hold(pid) else {
        return;
    };
    let written = recorder.path().metadata().unwrap().len();
    // The worker waits for the writer once its queue of segments is full: it does not run at all
    // any more.
    let worker = format!(
        "/proc/{pid}/task/{}/schedstat",
        thread_of(pid, "torchspy-work")
    );
    let mut before = String::new();
    wait_until("the worker waits for the disk", || {
        wait_for_ticks(pid, 500);
        let now = std::fs::read_to_string(&worker).unwrap();
        let then = std::mem::replace(&mut before, now);
        then == before
    });
    // A message for each wake: the queue of 8,192 stacks and the 50,000 spans behind it are full
    // after this.
    let wakes = |target: &mut Target| -> u64 {
        target.tell("how far");
        target.expect("wakes")[0].parse().unwrap()
    };
    let first = wakes(&mut target);
    let deadline = Instant::now() + PATIENCE;
    for ticks in (500..).step_by(500) {
        wait_for_ticks(pid, 500);
        let woken = wakes(&mut target) - first;
        if ticks >= 5_000 && woken >= 80_000 {
            break;
        }
        assert!(Instant::now() < deadline, "{ticks} ticks, {woken} wakes");
    }
    let process = PathBuf::from(format!("/proc/{pid}"));
    let full = status_of(&process, "VmRSS");
    wait_for_ticks(pid, 2_000);
    let later = status_of(&process, "VmRSS");
    assert!(later < full + full / 10, "{full} kB, then {later} kB");
    assert_eq!(
        recorder.path().metadata().unwrap().len(),
        written,
        "nothing was written meanwhile"
    );
    // The target answers: it is not held up.
    target.tell("how far");
    target.expect("wakes");
    writer.release();
    recorder.wait_for_bytes(written + 1);
    let recorded = recorder.interrupt().expect_success();
    target.tell("end");
    let (report, dump) = (recorded.report(), recorded.inspect());
    assert!(report["quality"]["lost"].as_u64().unwrap() > 0, "{report}");
    assert!(
        dump.contains("samples: stacks dropped: samples came faster"),
        "{dump}"
    );
    assert!(
        dump.contains("samples: samples dropped with their time: the worker did not answer"),
        "{dump}"
    );
    assert!(crate::faults::partial(&report, "overflow") > 0, "{report}");
    assert_eq!(report["missing"], serde_json::json!([]), "{report}");
    // Stacks from before, and from after it.
    assert!(seconds_with(&dump, "nap_in_c") > 0.0, "{dump}");
}

/// Ctrl-C while the disk stands still. The first ends the recording, which cannot be written; more
/// of them end torchspy.
#[test]
fn interrupts_end_torchspy_while_the_disk_stands_still() {
    let Some(python) = any_python() else { return };
    let script = program("fault_exit.py");
    let mut target = Target::start(&[&python, &script, "--go", "return"]);
    let mut recorder = Recorder::attach(target.pid(), How::default());
    so_far::wait_for_part(&recorder.path(), "py main (");
    let Some(writer) = StalledWriter::hold(recorder.pid()) else {
        return;
    };
    recorder.kill(Signal::SIGINT);
    // Sampling is over when its thread is gone.
    wait_until("the end of sampling", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", recorder.pid())).unwrap();
        !tasks.flatten().any(|task| {
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|comm| comm.trim() == "torchspy-trace")
        })
    });
    // Nothing was lost yet if the disk goes on, so one more is not enough, and a few are.
    wait_until("torchspy ends", || {
        recorder.kill(Signal::SIGINT);
        writer.bury();
        recorder.child.try_wait().unwrap().is_some()
    });
    let recorded = recorder.finish();
    assert_eq!(recorded.status.code(), Some(1), "{}", recorded.messages);
    assert!(
        recorded.messages.contains("not all outputs were written"),
        "{}",
        recorded.messages
    );
    assert!(functions(&recorded.report()).contains_key("main"));
    target.tell("end");
    assert!(target.wait().success());
}
