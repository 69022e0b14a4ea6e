//! Listing the threads of a process.

use super::account::Charged;
use super::thread::{LastPoll, TracedThread};
use super::{TracedProcess, Tracer};
use crate::model::frame::Partial;
use crate::model::ids::ThreadId;
use crate::model::process::ThreadInfo;
use crate::model::sample::{Capture, Sample, ThreadState};
use crate::os::clock::monotonic_ns;
use crate::python::thread_name::{MAIN_THREAD, read_thread_name};
use crate::sampling::raw::Message;
use crate::sampling::session::SessionOptions;
use nix::libc;
use rustc_hash::{FxHashMap, FxHashSet};

impl Tracer {
    pub(super) fn list_threads(&mut self, index: usize, link_count: u64) {
        let tids = match self.processes[index].tasks.list() {
            Ok(tids) => tids,
            Err(error) => {
                // Any other error, such as no free descriptor, may be gone at the next tick.
                let reason = error.raw_os_error();
                self.processes[index].exited = matches!(reason, Some(libc::ENOENT | libc::ESRCH));
                return;
            }
        };
        let known: FxHashMap<i32, usize> = self.processes[index]
            .threads
            .iter()
            .enumerate()
            .map(|(at, thread)| (thread.tid, at))
            .collect();
        let alive: FxHashSet<i32> = tids.iter().copied().collect();
        let gone: Vec<usize> = known
            .iter()
            .filter(|(tid, _)| !alive.contains(tid))
            .map(|(_, &at)| at)
            .collect();
        self.remove_threads(index, gone);
        let now_ns = monotonic_ns();
        let mut is_larger = false;
        for tid in tids {
            if !known.contains_key(&tid) {
                self.add_thread(index, tid, now_ns);
                is_larger = true;
            }
        }
        let process = &mut self.processes[index];
        process.link_count = link_count;
        if is_larger {
            process.match_new_threads(now_ns);
        }
    }

    fn add_thread(&mut self, index: usize, tid: i32, now_ns: u64) {
        let id = ThreadId::from_index(self.next_thread);
        self.next_thread += 1;
        let process = &mut self.processes[index];
        let mut thread = TracedThread::new(process.pid, tid, id, self.accounted_to);
        let info = thread_info(process, &thread, now_ns);
        thread.name.clone_from(&info.name);
        thread.is_selected = matches_filter(&self.options, &info.name);
        self.outbox.send(Message::Thread(id, Box::new(info)));
        process.add_thread(thread);
    }

    fn remove_threads(&mut self, index: usize, mut gone: Vec<usize>) {
        gone.sort_unstable();
        for at in gone.into_iter().rev() {
            self.close_thread(index, at);
            self.processes[index].remove_thread(at);
        }
    }

    /// Reads thread names again. Threads set their names after they have started, the first one
    /// when torch is imported; and an exec changes the name.
    pub(super) fn rename_threads(&mut self, index: usize, all: bool) {
        let now_ns = monotonic_ns();
        for at in 0..self.processes[index].threads.len() {
            let thread = &mut self.processes[index].threads[at];
            // Excluded threads are not polled, so whether they ran is not known.
            if !std::mem::take(&mut thread.may_be_renamed) && thread.is_selected && !all {
                continue;
            }
            if all || !thread.is_selected {
                // The program may have changed it, or another program runs.
                thread.python_name = None;
            }
            let process = &self.processes[index];
            let thread = &process.threads[at];
            let Ok(name) = thread.files.name() else {
                continue;
            };
            if name == thread.name {
                continue;
            }
            let (id, was_selected) = (thread.id, thread.is_selected);
            let info = thread_info(process, thread, now_ns);
            let python_name = thread.python_name.as_deref().unwrap_or_default();
            let wanted =
                matches_filter(&self.options, &name) || matches_filter(&self.options, python_name);
            if was_selected && !wanted {
                self.flush_reused(index, at, true);
            }
            let thread = &mut self.processes[index].threads[at];
            if wanted && !was_selected {
                // Its time while it was not polled is not recorded.
                thread.last = thread.files.schedstat().unwrap_or_default();
                thread.last_poll = LastPoll::Unknown;
                thread.ledger.discard_to(self.accounted_to);
            }
            (thread.name, thread.is_selected) = (name, wanted);
            self.outbox.send(Message::Thread(id, Box::new(info)));
        }
    }

    /// Selects threads whose Python name matches `--thread-name`.
    pub(super) fn select_by_python_name(&mut self, index: usize) {
        if self.options.threads.is_none() {
            return;
        }
        let process = &mut self.processes[index];
        let Some(interpreter) = process.interpreter.clone() else {
            return;
        };
        for (thread, backoff) in process.threads.iter_mut().zip(&mut process.backoffs) {
            if thread.is_selected || thread.python_name.is_some() {
                continue;
            }
            if thread.stack_pointer == 0
                && let Ok(whereabouts) = thread.files.whereabouts()
                && let Some(registers) = whereabouts.registers()
            {
                // Nothing else reads it, and 3.10 identifies its threads only by their stacks.
                thread.stack_pointer = registers.stack_pointer().unwrap_or(0);
            }
            thread.python_name = match (thread.tid == process.pid, thread.plan.state_address) {
                (true, _) => Some(MAIN_THREAD.to_owned()),
                (false, Some(state)) => read_thread_name(&interpreter, state, &process.memory),
                (false, None) => None,
            };
            let name = thread.python_name.as_deref().unwrap_or_default();
            if !name.is_empty() && matches_filter(&self.options, name) {
                thread.is_selected = true;
                // CPU time while it was not polled is not recorded.
                thread.last = thread.files.schedstat().unwrap_or_default();
                thread.last_poll = LastPoll::Unknown;
                backoff.reset();
            }
        }
    }

    /// Sends the remaining time of a thread that will not be polled again.
    fn close_thread(&mut self, index: usize, at: usize) {
        self.flush_reused(index, at, true);
        self.flush_deferred(index, at, Partial::Exited);
        let id = self.processes[index].threads[at].id;
        self.outbox.send(Message::ThreadGone(id));
    }

    /// Sends a thread's deferred time without a stack: no capture will stand for it.
    pub(super) fn flush_deferred(&mut self, index: usize, at: usize, why: Partial) {
        let thread = &mut self.processes[index].threads[at];
        let charge = thread.ledger.take_deferred();
        if charge.weight_ns > 0 {
            let charged = Charged {
                start_ns: monotonic_ns().saturating_sub(charge.weight_ns),
                charge,
            };
            let sample = thread.sample(charged, Capture::NotCaptured);
            let state = ThreadState::Running;
            self.outbox.span(Sample { state, ..sample }, Some(why));
        }
    }

    /// Forgets processes that have exited, or are not sampled any more.
    pub(super) fn remove_exited(&mut self) {
        let mut index = 0;
        while index < self.processes.len() {
            let process = &self.processes[index];
            if !process.exited && process.left_out.is_none() {
                index += 1;
                continue;
            }
            for at in 0..self.processes[index].threads.len() {
                self.close_thread(index, at);
            }
            let process = self.processes.swap_remove(index);
            self.outbox.send(match process.left_out {
                Some(note) if !process.exited => Message::LeftOut(process.id, note),
                _ => Message::ProcessGone(process.id),
            });
        }
    }
}

fn thread_info(process: &TracedProcess, thread: &TracedThread, now_ns: u64) -> ThreadInfo {
    ThreadInfo {
        process: process.id,
        tid: thread.tid,
        start_ticks: thread.files.stat().map_or(0, |(_, start)| start),
        name: thread.files.name().unwrap_or_default(),
        is_python: false,
        first_seen_ns: now_ns,
        last_seen_ns: now_ns,
    }
}

fn matches_filter(options: &SessionOptions, name: &str) -> bool {
    let wanted = options.threads.as_ref();
    wanted.is_none_or(|wanted| wanted.is_match(name))
}
