//! The thread that keeps watch over the process tree: who starts, who execs, who ends.

use super::control::Control;
use super::raw::NamedStack;
use super::session::SessionOptions;
use crate::model::process::ProcessInfo;
use crate::os::clock::{boottime_ns, monotonic_ns};
use crate::os::process_info::{read_process_info, read_stat};
use crate::os::process_tree::{ProcessEvent, ProcessWatch};
use crate::os::redaction::Redaction;
use crate::python::discover::Interpreter;
use crossbeam_channel::Sender;
use nix::unistd::{SysconfVar, sysconf};
use rustc_hash::FxHashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// What the tracer is told of processes.
#[derive(Debug)]
pub(super) enum KeeperEvent {
    /// A process of the tree was found.
    Started { pid: i32, info: Box<ProcessInfo> },
    /// Its facts changed.
    Info { pid: i32, info: Box<ProcessInfo> },
    /// It runs another program (`exec`), or its interpreter was found.
    Image {
        pid: i32,
        interpreter: Option<Arc<Interpreter>>,
        exec: bool,
    },
    /// The fallback reads this one's Python frames: the tracer leaves it alone. Or it cannot any more.
    Fallback { pid: i32, reads: bool },
    /// The fallback read these stacks, by tid, and when.
    Named {
        pid: i32,
        time_ns: u64,
        stacks: Vec<(i32, NamedStack)>,
    },
    /// It has no interpreter whose frames are read.
    NoInterpreter { pid: i32 },
    /// It ended.
    Gone { pid: i32 },
}

/// How often the tree is looked at while the program that torchspy started is on its way to its exec.
const LAUNCH: Duration = Duration::from_micros(500);
/// How often a process is asked whether it has called exec while it is young, and how often later. In between the keeper
/// sleeps: the tracer wakes it at the tick after a process was started, and a process that ends does itself.
const YOUNG_CHECK: Duration = Duration::from_millis(10);
const EXEC_CHECK: Duration = Duration::from_millis(250);
/// Until what age a process is young.
const YOUNG_NS: u64 = 5_000_000_000;

/// A process that is watched.
struct Kept {
    image: ImageMark,
    /// CLOCK_MONOTONIC.
    young_until_ns: u64,
    checked_ns: u64,
    /// Forked by torchspy and not yet the program: nothing to sample.
    before_exec: bool,
    start_ticks: u64,
}

impl Kept {
    fn is_young(&self, now_ns: u64) -> bool {
        now_ns < self.young_until_ns
    }
}

/// For how long a process has lived that was started at `start_ticks`, ns.
fn age_ns(start_ticks: u64) -> u64 {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    let start_ns = start_ticks.saturating_mul(1_000_000_000 / per_second.unsigned_abs().max(1));
    boottime_ns().saturating_sub(start_ns)
}

/// What changes when a process calls exec, even of the same program: addresses are random, and so is this pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ImageMark {
    start_code: u64,
    start_stack: u64,
}

/// The keeper's state.
pub(super) struct Keeper {
    watch: ProcessWatch,
    root_pid: i32,
    subprocesses: bool,
    leave_out: Vec<i32>,
    redaction: Redaction,
    events: Sender<KeeperEvent>,
    control: Arc<Control>,
    kept: FxHashMap<i32, Kept>,
    own_exe: Option<(u64, u64)>,
}

impl Keeper {
    pub(super) fn new(
        root_pid: i32,
        options: &SessionOptions,
        events: Sender<KeeperEvent>,
        control: Arc<Control>,
    ) -> io::Result<Self> {
        Ok(Self {
            watch: ProcessWatch::new(root_pid)?,
            root_pid,
            subprocesses: options.subprocesses,
            leave_out: options.leave_out.clone(),
            redaction: options.redaction,
            events,
            control,
            kept: FxHashMap::default(),
            own_exe: exe_of("self"),
        })
    }

    /// Watches until it is told to stop.
    pub(super) fn run(mut self) {
        while !self.control.stop_requested() {
            self.look();
            self.watch.wait(self.control.keeper_bell(), self.pause());
        }
    }

    fn pause(&self) -> Duration {
        let now_ns = monotonic_ns();
        if self.kept.values().any(|kept| kept.before_exec) {
            LAUNCH
        } else if self.kept.values().any(|kept| kept.is_young(now_ns)) || !self.watch.hears_ends() {
            YOUNG_CHECK
        } else {
            EXEC_CHECK
        }
    }

    /// One look; also made once before the sampler starts, so that the first tick has something to look at.
    pub(super) fn look(&mut self) {
        for event in self.watch.poll() {
            match event {
                ProcessEvent::Started {
                    pid, start_ticks, ..
                } => self.started(pid, start_ticks),
                ProcessEvent::Exited { pid, start_ticks } => self.exited(pid, start_ticks),
                ProcessEvent::TooMany { .. } => {}
            }
        }
        self.check_exec(monotonic_ns());
    }

    fn started(&mut self, pid: i32, start_ticks: u64) {
        if pid != self.root_pid && !self.subprocesses || self.leave_out.contains(&pid) {
            return;
        }
        let now_ns = monotonic_ns();
        let before_exec = pid == self.root_pid
            && is_own_child(pid)
            && self.own_exe.is_some()
            && exe_of(&pid.to_string()) == self.own_exe;
        let kept = Kept {
            image: read_mark(pid),
            young_until_ns: (now_ns + YOUNG_NS).saturating_sub(age_ns(start_ticks)),
            checked_ns: now_ns,
            before_exec,
            start_ticks,
        };
        self.kept.insert(pid, kept);
        if !before_exec {
            self.announce(pid, now_ns);
        }
    }

    fn announce(&self, pid: i32, now_ns: u64) {
        let info = Box::new(self.process_info(pid, now_ns));
        // Nobody listens once the tracer has ended.
        let _ = self.events.send(KeeperEvent::Started { pid, info });
    }

    fn exited(&mut self, pid: i32, start_ticks: u64) {
        if self
            .kept
            .get(&pid)
            .is_some_and(|kept| kept.start_ticks == start_ticks)
        {
            self.kept.remove(&pid);
            let _ = self.events.send(KeeperEvent::Gone { pid });
        }
        if self.kept.is_empty() {
            self.control.set_tree_gone();
        }
    }

    fn check_exec(&mut self, now_ns: u64) {
        let mut changed = Vec::new();
        for (&pid, kept) in &mut self.kept {
            if !kept.is_young(now_ns) && now_ns < kept.checked_ns + EXEC_CHECK.as_nanos() as u64 {
                continue;
            }
            kept.checked_ns = now_ns;
            let mark = read_mark(pid);
            if mark == kept.image || mark.start_code == 0 {
                continue;
            }
            kept.image = mark;
            changed.push((pid, std::mem::take(&mut kept.before_exec)));
        }
        for (pid, was_before_exec) in changed {
            if was_before_exec {
                self.announce(pid, now_ns);
                continue;
            }
            let _ = self.events.send(KeeperEvent::Image {
                pid,
                interpreter: None,
                exec: true,
            });
            let info = Box::new(self.process_info(pid, now_ns));
            let _ = self.events.send(KeeperEvent::Info { pid, info });
        }
    }

    fn process_info(&self, pid: i32, now_ns: u64) -> ProcessInfo {
        let mut info = read_process_info(pid, self.redaction).unwrap_or_default();
        info.pid = pid;
        info.first_seen_ns = now_ns;
        info.last_seen_ns = now_ns;
        info
    }
}

/// Whether torchspy started the process itself.
pub(super) fn is_own_child(pid: i32) -> bool {
    read_stat(pid).is_ok_and(|stat| stat.parent_pid == std::process::id() as i32)
}

/// Device and inode of a process's executable.
fn exe_of(pid: &str) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Whether one is a fork of the other, and neither has called exec since.
pub(super) fn has_same_image(pid: i32, other: i32) -> bool {
    let mark = read_mark(pid);
    mark.start_code != 0 && mark == read_mark(other)
}

/// Fields 26 and 28 of `/proc/PID/stat` (proc_pid_stat(5)); zeros where they may not be read.
fn read_mark(pid: i32) -> ImageMark {
    let text = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = text
        .iter()
        .rposition(|&byte| byte == b')')
        .map_or(&[][..], |at| &text[at + 1..]);
    let text = String::from_utf8_lossy(after_name);
    let mut fields = text.split_ascii_whitespace();
    let mut next = |skip: usize| {
        fields
            .nth(skip)
            .and_then(|field| field.parse().ok())
            .unwrap_or(0)
    };
    let start_code = next(26 - 3);
    let start_stack = next(1);
    ImageMark {
        start_code,
        start_stack,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_read_and_stays_while_the_program_does() {
        let pid = std::process::id() as i32;
        let mark = read_mark(pid);
        assert!(
            mark.start_code > 0 && mark.start_stack > mark.start_code,
            "{mark:?}"
        );
        assert_eq!(read_mark(pid), mark);
    }
}
