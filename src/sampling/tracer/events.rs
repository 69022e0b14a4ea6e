//! Events from the keeper and the fallback.

use super::once::SNAPSHOT_NS;
use super::{TracedProcess, Tracer};
use crate::model::ids::ProcessId;
use crate::model::sample::{Capture, Gil, Sample};
use crate::os::clock::monotonic_ns;
use crate::sampling::keeper::KeeperEvent;
use crate::sampling::raw::{Message, NamedStack};

impl Tracer {
    pub(super) fn take_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                KeeperEvent::Started { pid, info } => {
                    let id = ProcessId::from_index(self.next_process);
                    self.next_process += 1;
                    let parent_pid = info.parent_pid;
                    self.outbox.send(Message::Process(id, info));
                    let is_own_child = self.launched_pid == Some(pid);
                    self.processes
                        .push(TracedProcess::new(id, pid, parent_pid, is_own_child));
                }
                KeeperEvent::Info { pid, info } => {
                    if let Some(process) = self.processes.iter().find(|process| process.pid == pid)
                    {
                        self.outbox.send(Message::Process(process.id, info));
                    }
                }
                KeeperEvent::Image {
                    pid,
                    interpreter,
                    exec,
                } => {
                    let found = self.processes.iter().position(|process| process.pid == pid);
                    if let Some(index) = found {
                        self.processes[index].discovery_done = interpreter.is_some();
                        self.processes[index].set_interpreter(
                            interpreter.clone(),
                            exec,
                            self.accounted_to,
                        );
                        if exec {
                            self.processes[index].execs.record(monotonic_ns());
                            self.rename_threads(index, true);
                        }
                        let id = self.processes[index].id;
                        self.outbox.send(Message::Image(id, interpreter));
                    }
                }
                KeeperEvent::Fallback { pid, reads } => {
                    if let Some(process) =
                        self.processes.iter_mut().find(|process| process.pid == pid)
                    {
                        process.discovery_done |= !reads;
                        process.set_fallback(reads, self.accounted_to);
                        process.named_ns = monotonic_ns();
                    }
                }
                KeeperEvent::Allocator { pid, words } => {
                    if let Some(process) =
                        self.processes.iter_mut().find(|process| process.pid == pid)
                    {
                        process.allocated.set(words);
                    }
                }
                KeeperEvent::NoInterpreter { pid } => {
                    if let Some(process) =
                        self.processes.iter_mut().find(|process| process.pid == pid)
                    {
                        process.discovery_done = true;
                    }
                }
                KeeperEvent::Named {
                    pid,
                    time_ns,
                    stacks,
                } => self.take_named(pid, time_ns, stacks),
                KeeperEvent::LeftOut { pid, note } => {
                    if let Some(process) =
                        self.processes.iter_mut().find(|process| process.pid == pid)
                    {
                        process.left_out = Some(note);
                    }
                }
                KeeperEvent::Gone { pid } => {
                    if let Some(process) =
                        self.processes.iter_mut().find(|process| process.pid == pid)
                    {
                        process.exited = true;
                    }
                }
            }
        }
    }

    /// Stacks of a Python that only the fallback reads: each stands for the time since the previous
    /// one.
    fn take_named(&mut self, pid: i32, now_ns: u64, stacks: Vec<(i32, NamedStack)>) {
        let Some(index) = self.processes.iter().position(|process| process.pid == pid) else {
            return;
        };
        let is_once = self.options.once;
        if is_once && self.processes[index].threads.is_empty() {
            // The first stacks may arrive before the threads were listed.
            self.list_threads(index, 0);
        }
        let process = &mut self.processes[index];
        if !process.by_fallback || (now_ns <= process.named_ns && !is_once) {
            return;
        }
        process.discovery_done = true;
        let last_ns = std::mem::replace(&mut process.named_ns, now_ns);
        let since_ns = match is_once {
            true => now_ns.saturating_sub(SNAPSHOT_NS),
            false => last_ns,
        };
        let gil_holder = stacks
            .iter()
            .find(|(_, stack)| stack.gil == Gil::Held)
            .and_then(|(tid, _)| process.threads.iter().find(|thread| thread.tid == *tid))
            .map(|thread| thread.id);
        for (tid, stack) in stacks {
            let Some(thread) = process
                .threads
                .iter_mut()
                .find(|thread| thread.tid == tid && thread.is_selected)
            else {
                continue;
            };
            thread.captures = thread.captures.saturating_add(1);
            thread.captured_ns = now_ns;
            let (run_ns, queue_ns) = thread.advance(stack.scheduled);
            let span = Sample {
                thread: thread.id,
                stack: None,
                start_ns: since_ns,
                weight_ns: now_ns - since_ns,
                ticks: 1,
                capture: Capture::Unstopped,
                state: stack.state,
                syscall: stack.syscall,
                gil: stack.gil,
                gil_holder: gil_holder.filter(|_| stack.gil == Gil::NotHeld),
                run_ns,
                queue_ns,
            };
            self.outbox.send(Message::Named(span, Box::new(stack)));
            self.control.show_sample();
        }
    }
}
