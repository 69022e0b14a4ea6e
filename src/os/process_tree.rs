//! Watches a process and its descendants at low cost: children are found at the next poll.
//!
//! While the newest pid does not change, nothing was started, and a poll costs one read of an open
//! file. When it changes, the parents of the new pids are read. A process that starts and exits
//! between two polls is not found, and neither are its children. A process that was found stays a
//! member when it is re-parented.

use super::bell::Bell;
use super::clock::monotonic_ns;
use super::launch::open_pidfd;
use super::new_pids::{NewPids, NewestPid, PidSeries};
use super::process_end::ending_signal;
use super::process_info::{Stat, read_stat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::time::TimeSpec;
use rustc_hash::{FxHashMap, FxHashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Most members: a fork storm must not use up torchspy's file descriptors and memory.
const MAX_MEMBERS: usize = 4096;

/// A change in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// A process was found that is the root or a descendant of it.
    Started {
        pid: i32,
        parent: i32,
        /// Start time in clock ticks since boot.
        start_ticks: u64,
    },
    Exited {
        pid: i32,
        /// Its start time: the pid may be another's by now.
        start_ticks: u64,
        /// The signal that ended it, where one is known to have.
        signal: Option<i32>,
    },
    /// The tree exceeds the member limit. Reported once.
    TooMany {
        /// The first pid that is not watched.
        pid: i32,
    },
}

/// One row of the process table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRow {
    pub pid: i32,
    pub parent: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

/// Membership in the tree, without I/O.
#[derive(Clone, Debug, Default)]
pub struct ProcessTree {
    /// Start ticks by pid.
    members: FxHashMap<i32, u64>,
    /// Checked, and not members.
    strangers: FxHashSet<i32>,
}

impl ProcessTree {
    pub fn new(root: i32, start_ticks: u64) -> Self {
        let mut tree = Self::default();
        tree.members.insert(root, start_ticks);
        tree
    }

    /// Whether this pid's row need not be read, because it is a known member or stranger.
    pub fn knows(&self, pid: i32) -> bool {
        self.members.contains_key(&pid) || self.strangers.contains(&pid)
    }

    /// Keeps only the strangers that are still there: a later process with the same pid is checked.
    pub fn retain_strangers(&mut self, is_there: impl Fn(i32) -> bool) {
        self.strangers.retain(|&pid| is_there(pid));
    }

    /// Adds rows of unknown pids; returns those that belong to the tree, parents before children.
    pub fn add(&mut self, rows: &[ProcessRow]) -> Vec<ProcessRow> {
        let mut found = Vec::new();
        let mut rest: Vec<ProcessRow> = rows.to_vec();
        // Older pids are usually parents, so that one round is enough; a wrapped pid counter costs
        // another.
        rest.sort_by_key(|row| (row.start_ticks, row.pid));
        loop {
            let before = found.len();
            rest.retain(|row| {
                // A child is never older than its parent: else the parent's pid has been reused.
                let parent = self.members.get(&row.parent);
                let is_member = parent.is_some_and(|&start| start <= row.start_ticks);
                if is_member {
                    self.members.insert(row.pid, row.start_ticks);
                    found.push(*row);
                }
                !is_member
            });
            if found.len() == before {
                break;
            }
        }
        self.strangers.extend(rest.iter().map(|row| row.pid));
        found
    }

    /// Adds a member that need not descend from another.
    pub fn add_root(&mut self, pid: i32, start_ticks: u64) {
        self.strangers.remove(&pid);
        self.members.insert(pid, start_ticks);
    }

    /// Removes a member that exited.
    pub fn remove(&mut self, pid: i32) {
        self.members.remove(&pid);
    }

    /// Removes a member, and ignores its pid while it is listed.
    pub fn leave_out(&mut self, pid: i32) {
        self.members.remove(&pid);
        self.strangers.insert(pid);
    }

    /// Members: pid and start ticks.
    pub fn members(&self) -> impl Iterator<Item = (i32, u64)> + '_ {
        self.members.iter().map(|(&pid, &start)| (pid, start))
    }
}

/// Watches the live tree below a root.
#[derive(Debug)]
pub struct ProcessWatch {
    tree: ProcessTree,
    pidfds: FxHashMap<i32, Option<OwnedFd>>,
    newest: NewestPid,
    series: PidSeries,
    unreported: Vec<ProcessEvent>,
    told_too_many: bool,
}

impl ProcessWatch {
    /// Watches `root_pid` and what descends from it. The first poll reports the root and the
    /// descendants it has.
    ///
    /// # Errors
    /// `NotFound` where there is no such process.
    pub fn new(root_pid: i32) -> io::Result<Self> {
        let (stat, pidfd) = open_process(root_pid)?;
        Ok(Self {
            tree: ProcessTree::new(root_pid, stat.start_ticks),
            pidfds: std::iter::once((root_pid, pidfd)).collect(),
            newest: NewestPid::open(),
            series: PidSeries::new(),
            unreported: vec![ProcessEvent::Started {
                pid: root_pid,
                parent: stat.parent_pid,
                start_ticks: stat.start_ticks,
            }],
            told_too_many: false,
        })
    }

    /// Watches another process and what descends from it, too. To be called before the first poll,
    /// which reports them.
    ///
    /// # Errors
    /// `NotFound` where there is no such process.
    pub fn add_root(&mut self, pid: i32) -> io::Result<()> {
        if self.tree.members.contains_key(&pid) {
            return Ok(());
        }
        let (stat, pidfd) = open_process(pid)?;
        self.tree.add_root(pid, stat.start_ticks);
        self.pidfds.insert(pid, pidfd);
        self.unreported.push(ProcessEvent::Started {
            pid,
            parent: stat.parent_pid,
            start_ticks: stat.start_ticks,
        });
        Ok(())
    }

    /// A new process need not be found sooner than `period` after its start.
    pub fn look_every(&mut self, period: Duration) {
        self.series.look_every(period);
    }

    /// Sleeps until a member exits, `bell` is rung, or `timeout` has passed. Members without a
    /// pidfd (before Linux 5.3) do not wake it.
    pub fn wait(&self, bell: &Bell, timeout: Duration) {
        let mut fds: Vec<PollFd<'_>> = std::iter::once(bell.as_fd())
            .chain(self.pidfds.values().flatten().map(AsFd::as_fd))
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let awaited = self.series.wait(monotonic_ns()).unwrap_or(timeout);
        let timeout = TimeSpec::from_duration(timeout.min(awaited));
        // A signal, or too many descriptors, only makes the poll early.
        let _ = ppoll(&mut fds, Some(timeout), None);
        bell.silence();
    }

    /// Whether the exit of every member wakes [`ProcessWatch::wait`].
    pub fn hears_ends(&self) -> bool {
        self.pidfds.values().all(Option::is_some)
    }

    /// What has changed since the last poll.
    pub fn poll(&mut self) -> Vec<ProcessEvent> {
        let mut events = std::mem::take(&mut self.unreported);
        self.find_ended(&mut events);
        // Read before the processes: one that starts in between changes it again, and is found by
        // the next poll.
        match self.series.poll(self.newest.read(), monotonic_ns()) {
            NewPids::Any => self.find_in_all(&mut events),
            NewPids::These(pids) => self.find_at(&pids, &mut events),
        }
        events
    }

    /// Living members: pid and start ticks.
    pub fn members(&self) -> impl Iterator<Item = (i32, u64)> + '_ {
        self.tree.members()
    }

    /// The pidfd of a member; `None` for strangers and before Linux 5.3.
    pub fn pidfd(&self, pid: i32) -> Option<BorrowedFd<'_>> {
        self.pidfds.get(&pid)?.as_ref().map(AsFd::as_fd)
    }

    fn find_ended(&mut self, events: &mut Vec<ProcessEvent>) {
        let mut ended = Vec::new();
        let mut polled: Vec<(i32, PollFd<'_>)> = Vec::with_capacity(self.pidfds.len());
        for (&pid, pidfd) in &self.pidfds {
            match pidfd {
                Some(fd) => polled.push((pid, PollFd::new(fd.as_fd(), PollFlags::POLLIN))),
                None => {
                    if !is_same_process(pid, &self.tree) {
                        ended.push(pid);
                    }
                }
            }
        }
        let (pids, mut fds): (Vec<i32>, Vec<PollFd<'_>>) = polled.into_iter().unzip();
        if poll(&mut fds, PollTimeout::ZERO).unwrap_or(0) > 0 {
            let ready = pids.iter().zip(&fds);
            ended.extend(
                ready
                    .filter(|(_, fd)| fd.any().unwrap_or(false))
                    .map(|(&pid, _)| pid),
            );
        }
        for pid in ended {
            let pidfd = self.pidfds.remove(&pid).flatten();
            let start_ticks = self.tree.members.get(&pid).copied().unwrap_or(0);
            self.tree.remove(pid);
            events.push(ProcessEvent::Exited {
                pid,
                start_ticks,
                signal: ending_signal(pid, pidfd.as_ref().map(AsFd::as_fd)),
            });
        }
    }

    fn find_in_all(&mut self, events: &mut Vec<ProcessEvent>) {
        let Ok(listing) = std::fs::read_dir("/proc") else {
            return;
        };
        let listed: FxHashSet<i32> = listing
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        let (tree, series) = (&mut self.tree, &self.series);
        tree.retain_strangers(|pid| listed.contains(&pid) && !series.may_be_new(pid));
        let unknown = listed.iter().filter(|&&pid| !self.tree.knows(pid));
        let rows: Vec<ProcessRow> = unknown.filter_map(|&pid| row_of(pid)).collect();
        self.add(&rows, events);
    }

    /// Checks recently allocated pids, of processes and threads of the whole machine.
    fn find_at(&mut self, pids: &[i32], events: &mut Vec<ProcessEvent>) {
        if pids.is_empty() {
            return;
        }
        let new = pids
            .iter()
            .filter(|pid| !self.tree.members.contains_key(pid));
        let rows: Vec<ProcessRow> = new.filter_map(|&pid| row_of(pid)).collect();
        let there: FxHashSet<i32> = rows.iter().map(|row| row.pid).collect();
        let members = &self.tree.members;
        self.series.found(monotonic_ns(), |pid| {
            there.contains(&pid) || members.contains_key(&pid)
        });
        // A thread has an entry in /proc, too, with the parent of its process.
        let may_belong = |row: &&ProcessRow| {
            self.tree.members.contains_key(&row.parent) || there.contains(&row.parent)
        };
        let rows: Vec<ProcessRow> = rows
            .iter()
            .filter(may_belong)
            .filter(|row| is_process(row.pid))
            .copied()
            .collect();
        self.add(&rows, events);
    }

    fn add(&mut self, rows: &[ProcessRow], events: &mut Vec<ProcessEvent>) {
        for row in self.tree.add(rows) {
            self.take_in(row, events);
        }
    }

    fn take_in(&mut self, row: ProcessRow, events: &mut Vec<ProcessEvent>) {
        let pid = row.pid;
        if self.pidfds.len() >= MAX_MEMBERS {
            self.tree.leave_out(pid);
            if !std::mem::replace(&mut self.told_too_many, true) {
                events.push(ProcessEvent::TooMany { pid });
            }
            return;
        }
        match open_process(pid) {
            // A dead process stays in /proc until its parent waits for it.
            Ok((stat, pidfd)) if has_ended(&stat, pidfd.as_ref()) => self.tree.leave_out(pid),
            Ok((stat, pidfd)) if stat.start_ticks == row.start_ticks => {
                self.pidfds.insert(pid, pidfd);
                events.push(ProcessEvent::Started {
                    pid,
                    parent: row.parent,
                    start_ticks: row.start_ticks,
                });
            }
            // It exited, and its pid may have been reused: that process is checked by the next
            // poll.
            _ => self.tree.remove(pid),
        }
    }
}

/// Opens a pidfd and reads `stat` after it, so that both refer to the same process.
fn open_process(pid: i32) -> io::Result<(Stat, Option<OwnedFd>)> {
    let pidfd = open_pidfd(pid).ok();
    Ok((read_stat(pid)?, pidfd))
}

/// Whether a process has exited, by its pidfd where there is one: a living process whose first
/// thread is dead is `Z` in /proc.
fn has_ended(stat: &Stat, pidfd: Option<&OwnedFd>) -> bool {
    match pidfd {
        Some(fd) => {
            let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap_or(0) > 0
        }
        None => stat.state == b'Z',
    }
}

fn is_same_process(pid: i32, tree: &ProcessTree) -> bool {
    let Ok(stat) = read_stat(pid) else {
        return false;
    };
    stat.state != b'Z' && tree.members.get(&pid) == Some(&stat.start_ticks)
}

fn row_of(pid: i32) -> Option<ProcessRow> {
    let stat = read_stat(pid).ok()?;
    Some(ProcessRow {
        pid,
        parent: stat.parent_pid,
        start_ticks: stat.start_ticks,
    })
}

/// Whether a pid is that of a process, and not of a further thread.
fn is_process(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    group.and_then(|group| group.trim().parse().ok()) == Some(pid)
}

#[cfg(test)]
#[path = "process_tree_tests.rs"]
mod tests;
