//! The keeper thread: watches the process tree for processes that start, exec and exit.

use super::control::Control;
use super::raw::NamedStack;
use super::session::{IdleThreads, SessionOptions};
use crate::model::process::ProcessInfo;
use crate::os::clock::{boottime_ns, monotonic_ns};
use crate::os::process_info::{read_bounded, read_process_info, read_stat};
use crate::os::process_tree::{ProcessEvent, ProcessWatch};
use crate::os::redaction::Redaction;
use crate::python::discover::Interpreter;
use crate::torch::rank_choice::RankChoice;
use crossbeam_channel::Sender;
use nix::unistd::{SysconfVar, sysconf};
use rustc_hash::{FxHashMap, FxHashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// Events about processes, sent to the tracer.
#[derive(Debug)]
pub(super) enum KeeperEvent {
    /// A process of the tree was found.
    Started { pid: i32, info: Box<ProcessInfo> },
    /// Facts about it changed.
    Info { pid: i32, info: Box<ProcessInfo> },
    /// It called exec (`exec`), or its interpreter was found.
    Image {
        pid: i32,
        interpreter: Option<Arc<Interpreter>>,
        exec: bool,
    },
    /// Whether the fallback reads its Python frames; then the tracer does not.
    Fallback { pid: i32, reads: bool },
    /// Stacks by tid that the fallback read at `time_ns` (CLOCK_MONOTONIC).
    Named {
        pid: i32,
        time_ns: u64,
        stacks: Vec<(i32, NamedStack)>,
    },
    /// Torch's allocator of device memory was found in it: the addresses of what it has given to
    /// tensors, a word for each device.
    Allocator { pid: i32, words: Vec<u64> },
    /// It has no interpreter whose frames can be read.
    NoInterpreter { pid: i32 },
    /// It is not sampled any more, because of its rank; with the note that says so.
    LeftOut { pid: i32, note: String },
    /// It exited.
    Gone { pid: i32 },
}

/// Time between polls of the tree until the program that torchspy started has called exec.
const LAUNCH: Duration = Duration::from_micros(500);
/// Time between checks for an exec while a process is young, and later. In between the keeper
/// sleeps: the tracer wakes it at the tick after a process was started, and an exit wakes it, too.
const YOUNG_CHECK: Duration = Duration::from_millis(10);
const EXEC_CHECK: Duration = Duration::from_millis(250);
/// Time between two checks for an exec, and two looks for processes, where idle threads are
/// followed loosely: the tracer does not wake the keeper there.
const LOOSE_CHECK: Duration = Duration::from_secs(1);
/// Age up to which a process is young, ns.
const YOUNG_NS: u64 = 5_000_000_000;

struct WatchedProcess {
    image: ImageMark,
    /// CLOCK_MONOTONIC, as is `checked_ns`.
    young_until_ns: u64,
    checked_ns: u64,
    /// Forked by torchspy, before the exec of the program: there is nothing to sample.
    before_exec: bool,
    start_ticks: u64,
}

impl WatchedProcess {
    fn is_young(&self, now_ns: u64) -> bool {
        now_ns < self.young_until_ns
    }
}

/// Age of a process that was started at `start_ticks` (clock ticks since boot), ns.
pub(super) fn age_ns(start_ticks: u64) -> u64 {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    let start_ns = start_ticks.saturating_mul(1_000_000_000 / per_second.unsigned_abs().max(1));
    boottime_ns().saturating_sub(start_ns)
}

/// Changes when a process calls exec, even of the same program: the addresses are randomised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ImageMark {
    start_code: u64,
    start_stack: u64,
}

pub(super) struct Keeper {
    watch: ProcessWatch,
    /// Time between two checks of a process for an exec.
    check: Duration,
    root_pid: i32,
    more_roots: Vec<i32>,
    subprocesses: bool,
    excluded_pids: Vec<i32>,
    redaction: Redaction,
    events: Sender<KeeperEvent>,
    control: Arc<Control>,
    watched: FxHashMap<i32, WatchedProcess>,
    /// Ranks whose processes are sampled; `None` for all.
    ranks: Option<RankChoice>,
    /// The environment of the first process.
    first_environment: Vec<(String, String)>,
    /// Processes that are not sampled because of their ranks.
    left_out: FxHashSet<i32>,
    own_exe: Option<(u64, u64)>,
}

impl Keeper {
    pub(super) fn new(
        root_pid: i32,
        options: &SessionOptions,
        events: Sender<KeeperEvent>,
        control: Arc<Control>,
    ) -> io::Result<Self> {
        let mut watch = ProcessWatch::new(root_pid)?;
        let (look, check) = match options.idle_threads {
            IdleThreads::Close => {
                let tick = Duration::from_secs_f64(options.rate_hz.max(1.0).recip());
                (tick, EXEC_CHECK)
            }
            IdleThreads::Loose => (LOOSE_CHECK, LOOSE_CHECK),
        };
        watch.look_every(look);
        for &pid in &options.more_roots {
            // It has ended in the meantime.
            let _ = watch.add_root(pid);
        }
        Ok(Self {
            watch,
            check,
            root_pid,
            more_roots: options.more_roots.clone(),
            subprocesses: options.subprocesses,
            excluded_pids: options.leave_out.clone(),
            redaction: options.redaction,
            events,
            control,
            watched: FxHashMap::default(),
            ranks: options.ranks.clone(),
            first_environment: Vec::new(),
            left_out: FxHashSet::default(),
            own_exe: exe_of("self"),
        })
    }

    /// Watches until a stop is requested.
    pub(super) fn run(mut self) {
        while !self.control.stop_requested() {
            self.poll();
            self.watch.wait(self.control.keeper_bell(), self.pause());
        }
    }

    fn pause(&self) -> Duration {
        let now_ns = monotonic_ns();
        if self.watched.values().any(|watched| watched.before_exec) {
            LAUNCH
        } else if self
            .watched
            .values()
            .any(|watched| watched.is_young(now_ns))
            || !self.watch.hears_ends()
        {
            YOUNG_CHECK
        } else {
            self.check
        }
    }

    /// Polls the tree once; also called before the sampler starts, so that the first tick has
    /// processes to poll.
    pub(super) fn poll(&mut self) {
        let events = self.watch.poll();
        // A rank may be known only by its exec, and have started a worker since, which goes by it.
        let is_start = |event: &ProcessEvent| matches!(event, ProcessEvent::Started { .. });
        if events.iter().any(is_start) {
            self.check_exec(monotonic_ns());
        }
        for event in events {
            match event {
                ProcessEvent::Started {
                    pid, start_ticks, ..
                } => self.started(pid, start_ticks),
                ProcessEvent::Exited {
                    pid,
                    start_ticks,
                    signal,
                } => self.exited(pid, start_ticks, signal),
                ProcessEvent::TooMany { .. } => {}
            }
        }
        self.check_exec(monotonic_ns());
    }

    fn started(&mut self, pid: i32, start_ticks: u64) {
        let is_root = pid == self.root_pid || self.more_roots.contains(&pid);
        if !is_root && !self.subprocesses || self.excluded_pids.contains(&pid) {
            return;
        }
        let now_ns = monotonic_ns();
        let before_exec = pid == self.root_pid
            && is_own_child(pid)
            && self.own_exe.is_some()
            && exe_of(&pid.to_string()) == self.own_exe;
        let watched = WatchedProcess {
            image: read_mark(pid),
            young_until_ns: (now_ns + YOUNG_NS).saturating_sub(age_ns(start_ticks)),
            checked_ns: now_ns,
            before_exec,
            start_ticks,
        };
        self.watched.insert(pid, watched);
        if !before_exec {
            self.announce(pid, now_ns);
        }
    }

    fn announce(&mut self, pid: i32, now_ns: u64) {
        let info = Box::new(self.process_info(pid, now_ns));
        if pid == self.root_pid {
            self.first_environment.clone_from(&info.environment);
        }
        let left_out = self.leave_out(&info);
        if left_out.is_some() && self.left_out.contains(&info.parent_pid) {
            // A worker of a rank that is left out.
            return;
        }
        // The receiver is gone once the tracer has ended.
        let _ = self.events.send(KeeperEvent::Started { pid, info });
        if let Some(note) = left_out {
            let _ = self.events.send(KeeperEvent::LeftOut { pid, note });
        }
    }

    /// The note of a process that is not to be sampled because of its rank.
    fn leave_out(&mut self, info: &ProcessInfo) -> Option<String> {
        let ranks = self.ranks.as_ref().filter(|_| info.pid != self.root_pid)?;
        let rank = ranks.leaves_out(&info.environment, &self.first_environment);
        match rank {
            Some(_) => self.left_out.insert(info.pid),
            None => self.left_out.remove(&info.pid),
        };
        rank.map(ProcessInfo::note_of_left_out)
    }

    fn exited(&mut self, pid: i32, start_ticks: u64, signal: Option<i32>) {
        if self
            .watched
            .get(&pid)
            .is_some_and(|watched| watched.start_ticks == start_ticks)
        {
            self.watched.remove(&pid);
            self.left_out.remove(&pid);
            let _ = self.events.send(KeeperEvent::Gone { pid });
            if let Some(signal) = signal {
                self.control.ended_by(pid, signal);
            }
        }
        if self.watched.is_empty() {
            self.control.set_tree_gone();
        }
    }

    fn check_exec(&mut self, now_ns: u64) {
        let mut changed = Vec::new();
        for (&pid, watched) in &mut self.watched {
            if !watched.is_young(now_ns)
                && now_ns < watched.checked_ns + self.check.as_nanos() as u64
            {
                continue;
            }
            watched.checked_ns = now_ns;
            let mark = read_mark(pid);
            if mark == watched.image || mark.start_code == 0 {
                continue;
            }
            watched.image = mark;
            changed.push((pid, std::mem::take(&mut watched.before_exec)));
        }
        for (pid, was_before_exec) in changed {
            if was_before_exec {
                self.announce(pid, now_ns);
                continue;
            }
            if self.left_out.contains(&pid) {
                // Its next program may be of another rank.
                let info = self.process_info(pid, now_ns);
                if self.leave_out(&info).is_none() {
                    self.announce(pid, now_ns);
                }
                continue;
            }
            let _ = self.events.send(KeeperEvent::Image {
                pid,
                interpreter: None,
                exec: true,
            });
            let info = Box::new(self.process_info(pid, now_ns));
            let left_out = self.leave_out(&info);
            let _ = self.events.send(KeeperEvent::Info { pid, info });
            if let Some(note) = left_out {
                let _ = self.events.send(KeeperEvent::LeftOut { pid, note });
            }
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

/// Whether one process is a fork of the other, and neither has called exec since.
pub(super) fn has_same_image(pid: i32, other: i32) -> bool {
    let mark = read_mark(pid);
    mark.start_code != 0 && mark == read_mark(other)
}

/// Fields 26 and 28 of `/proc/PID/stat` (proc_pid_stat(5)); zeros where they cannot be read.
fn read_mark(pid: i32) -> ImageMark {
    let text = read_bounded(format!("/proc/{pid}/stat"), 4096).unwrap_or_default();
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
