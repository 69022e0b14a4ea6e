//! Dumps for tests.

use crate::model::category::FrameKind;
use crate::model::dump::{
    DumpedFrame, DumpedProcess, DumpedThread, DumpedWait, Lock, Owner, Place,
};
use crate::model::profile::Role;
use crate::model::sample::{Capture, Gil, ThreadState};
use crate::model::wait::WaitKind;

/// A frame as `function:line` of train.py; one that begins with a dot is native.
pub(super) fn frame(words: &str) -> DumpedFrame {
    let (name, line) = words.split_once(':').expect("a line");
    DumpedFrame {
        name: name.to_owned(),
        short_name: name.to_owned(),
        file: "train.py".to_owned(),
        line: line.parse().expect("a number"),
        is_python: !name.starts_with('.'),
        is_region: false,
        kind: FrameKind::PythonUser,
        is_guess: false,
        is_plumbing: false,
        module: None,
        locals: None,
    }
}

/// A training thread that sleeps, at its first Python frame.
pub(super) fn thread(tid: i32, frames: &[&str]) -> DumpedThread {
    let frames: Vec<DumpedFrame> = frames.iter().map(|words| frame(words)).collect();
    let at = frames.iter().find(|frame| frame.is_python);
    DumpedThread {
        tid,
        name: "python".to_owned(),
        python_name: None,
        trains: true,
        state: ThreadState::Sleeping,
        capture: Capture::Asleep,
        syscall: None,
        gil: Gil::NotHeld,
        wait: None,
        module: None,
        at: at.map(|frame| Place {
            function: frame.name.clone(),
            file: frame.file.clone(),
            line: frame.line,
        }),
        frames,
        partial: None,
        moved_frames: 0,
        slices: None,
        wchan: None,
        kernel_stack: Vec::new(),
    }
}

/// The same, waiting.
pub(super) fn waiting(tid: i32, frames: &[&str], kind: WaitKind, what: &str) -> DumpedThread {
    DumpedThread {
        wait: Some(DumpedWait {
            kind,
            what: what.to_owned(),
            owner: None,
            lock: None,
        }),
        ..thread(tid, frames)
    }
}

/// The same, waiting for a lock that `owner` holds.
pub(super) fn locked(tid: i32, owner: i32) -> DumpedThread {
    let mut thread = waiting(tid, &["step:1"], WaitKind::Lock, "lock");
    if let Some(wait) = &mut thread.wait {
        wait.owner = Some(Owner {
            tid: owner,
            by: "its `with` block",
        });
        wait.lock = Some(Lock {
            kind: "threading.Lock",
            address: 0x100,
            name: None,
            is_timed: false,
        });
    }
    thread
}

/// A process that belongs to no job.
pub(super) fn process(pid: i32, threads: Vec<DumpedThread>) -> DumpedProcess {
    DumpedProcess {
        pid,
        role: Role::Other,
        trainer_pid: None,
        job: None,
        groups: String::new(),
        command: Vec::new(),
        python: String::new(),
        torch: String::new(),
        note: String::new(),
        progress: Vec::new(),
        gil_holder: None,
        threads,
        tasks: Vec::new(),
    }
}
