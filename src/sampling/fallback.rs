//! The thread that reads Pythons older than 3.10 with py-spy: only Python frames, and without a
//! stop.

use super::control::Control;
use super::keeper::KeeperEvent;
use super::old_threads::OldThreads;
use super::raw::NamedStack;
use super::schedule::Schedule;
use crate::model::code::PythonVersion;
use crate::model::ids::ProcessId;
use crate::model::sample::{Gil, ThreadState};
use crate::os::clock::{monotonic_ns, sleep_until};
use crate::os::process_info::read_stat;
use crossbeam_channel::{Receiver, Sender, unbounded};
use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy, StackTrace};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How long reads of a process may fail, at its start or later, before the tracer captures its
/// native stacks instead, ns.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Time between searches for an interpreter that is not ready, ns, doubled each time: a search
/// parses the whole file.
const FIRST_RETRY_NS: u64 = 50_000_000;
const SLOWEST_RETRY_NS: u64 = 2_000_000_000;
/// Queued events above which ticks are skipped; the next one stands for their time.
const MAX_WAITING: usize = 1_000;
/// Longest sleep between checks for orders and for a stop request, ns.
const NAP_NS: u64 = 20_000_000;

/// From the worker: which processes to read.
#[derive(Debug)]
pub(super) enum Order {
    Watch {
        process: ProcessId,
        pid: i32,
    },
    /// It exited, or has called exec.
    Forget(ProcessId),
}

/// To the worker: the result for a process.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) process: ProcessId,
    /// The interpreter's full version, or why there are no stacks.
    pub(super) result: Result<String, String>,
}

/// The worker's channels to the fallback.
#[derive(Debug)]
pub(super) struct FallbackLink {
    pub(super) orders: Sender<Order>,
    pub(super) findings: Receiver<Finding>,
}

/// A process whose interpreter py-spy reads.
struct Watched {
    process: ProcessId,
    pid: i32,
    spy: Option<PythonSpy>,
    threads: OldThreads,
    next_try_ns: u64,
    retry_pause_ns: u64,
    /// Since when reads have failed; `None` after a successful read.
    failing_since_ns: Option<u64>,
    /// The result last reported to the other threads: whether it can be read.
    reported: Option<bool>,
}

pub(super) struct Fallback {
    orders: Receiver<Order>,
    findings: Sender<Finding>,
    events: Sender<KeeperEvent>,
    control: Arc<Control>,
    config: Config,
    rate_hz: f64,
    watched: Vec<Watched>,
}

impl Fallback {
    /// The thread's state, and the worker's channels to it.
    pub(super) fn new(
        rate_hz: f64,
        gil_only: bool,
        events: Sender<KeeperEvent>,
        control: Arc<Control>,
    ) -> (Self, FallbackLink) {
        let (order_sender, orders) = unbounded();
        let (finding_sender, findings) = unbounded();
        let config = Config {
            blocking: LockingStrategy::NonBlocking,
            native: false,
            subprocesses: false,
            include_idle: true,
            gil_only,
            // Thread names come from the kernel, and file names are not shortened: both would cost
            // reads.
            collect_thread_names: false,
            full_filenames: true,
            ..Config::default()
        };
        let fallback = Self {
            orders,
            findings: finding_sender,
            events,
            control,
            config,
            rate_hz,
            watched: Vec::new(),
        };
        let link = FallbackLink {
            orders: order_sender,
            findings,
        };
        (fallback, link)
    }

    /// Reads until a stop is requested or the worker has ended.
    pub(super) fn run(mut self) {
        while self.wait_for_work() {
            let now_ns = monotonic_ns();
            let mut schedule = Schedule::new(self.rate_hz, now_ns, now_ns ^ 0x517c_c1b7_2722_0a95);
            while !self.watched.is_empty() && self.take_orders() {
                let now_ns = monotonic_ns();
                if now_ns < schedule.next_ns() {
                    sleep_until(schedule.next_ns().min(now_ns + NAP_NS));
                    continue;
                }
                schedule.take(now_ns);
                if !self.control.pause_requested() && self.events.len() < MAX_WAITING {
                    self.poll_all();
                }
            }
        }
    }

    /// Waits for a process to watch. `false` if there will be none.
    fn wait_for_work(&mut self) -> bool {
        loop {
            // The worker, which gives the orders, ends with the session.
            let Ok(order) = self.orders.recv() else {
                return false;
            };
            self.apply(order);
            if !self.watched.is_empty() {
                return true;
            }
        }
    }

    /// Handles queued orders. `false` if a stop was requested.
    fn take_orders(&mut self) -> bool {
        while let Ok(order) = self.orders.try_recv() {
            self.apply(order);
        }
        !self.control.stop_requested()
    }

    fn apply(&mut self, order: Order) {
        match order {
            Order::Watch { process, pid } => self.watched.push(Watched::new(process, pid)),
            Order::Forget(process) => self.watched.retain(|one| one.process != process),
        }
    }

    fn poll_all(&mut self) {
        let now_ns = monotonic_ns();
        let mut at = 0;
        while let Some(one) = self.watched.get_mut(at) {
            if now_ns < one.next_try_ns {
                at += 1;
                continue;
            }
            match walk(|| one.read(&self.config), str::to_owned) {
                Ok(stacks) => self.forward(at, stacks),
                Err(_) if is_gone(one.pid) => {
                    self.watched.swap_remove(at);
                    continue;
                }
                Err(why) => self.fail(at, why, now_ns),
            }
            at += 1;
        }
    }

    fn forward(&mut self, at: usize, stacks: Vec<(i32, NamedStack)>) {
        let one = &mut self.watched[at];
        one.failing_since_ns = None;
        let pid = one.pid;
        if one.reported.replace(true) != Some(true) {
            let version = one.spy.as_ref().map(|spy| spy.version.to_string());
            let finding = Finding {
                process: one.process,
                result: Ok(version.unwrap_or_default()),
            };
            // The receivers are gone once the other threads have ended; so below.
            let _ = self.findings.send(finding);
            let _ = self.events.send(KeeperEvent::Fallback { pid, reads: true });
        }
        let _ = self.events.send(KeeperEvent::Named {
            pid,
            time_ns: monotonic_ns(),
            stacks,
        });
    }

    /// A single failed read costs one tick; after [`PATIENCE_NS`] of failures the process has no
    /// Python frames.
    fn fail(&mut self, at: usize, why: String, now_ns: u64) {
        let one = &mut self.watched[at];
        let since_ns = *one.failing_since_ns.get_or_insert(now_ns);
        if now_ns < since_ns + PATIENCE_NS {
            return;
        }
        one.spy = None;
        let pid = one.pid;
        if one.reported.replace(false) != Some(false) {
            let finding = Finding {
                process: one.process,
                result: Err(why),
            };
            let _ = self.findings.send(finding);
            let _ = self
                .events
                .send(KeeperEvent::Fallback { pid, reads: false });
        }
    }
}

fn is_gone(pid: i32) -> bool {
    read_stat(pid).map_or(true, |stat| stat.state == b'Z')
}

impl Watched {
    fn new(process: ProcessId, pid: i32) -> Self {
        Self {
            process,
            pid,
            spy: None,
            threads: OldThreads::new(pid),
            next_try_ns: 0,
            retry_pause_ns: FIRST_RETRY_NS,
            failing_since_ns: None,
            reported: None,
        }
    }

    /// The stacks of its Python threads, by tid.
    fn read(&mut self, config: &Config) -> Result<Vec<(i32, NamedStack)>, String> {
        let spy = match &mut self.spy {
            Some(spy) => spy,
            none => {
                self.next_try_ns = monotonic_ns() + self.retry_pause_ns;
                self.retry_pause_ns = (self.retry_pause_ns * 2).min(SLOWEST_RETRY_NS);
                let spy = none.insert(find_interpreter(self.pid, config)?);
                self.next_try_ns = 0;
                self.retry_pause_ns = FIRST_RETRY_NS;
                spy
            }
        };
        let traces = spy.get_stack_traces().map_err(text)?;
        let version = PythonVersion::new(
            u8::try_from(spy.version.major).unwrap_or(0),
            u8::try_from(spy.version.minor).unwrap_or(0),
        );
        let is_gil_held = traces.iter().any(|trace| trace.owns_gil);
        let pthreads: Vec<u64> = traces.iter().map(|trace| trace.thread_id).collect();
        let tids = self.threads.tids(&pthreads);
        let mut stacks = Vec::with_capacity(traces.len());
        for (trace, tid) in traces.into_iter().zip(tids) {
            let gil = match (is_gil_held, trace.owns_gil) {
                (false, _) => Gil::Unknown,
                (true, true) => Gil::Held,
                (true, false) => Gil::NotHeld,
            };
            let Some(tid) = tid else { continue };
            let files = self.threads.files(tid);
            // The thread has just exited.
            let Ok(scheduled) = files.schedstat() else {
                continue;
            };
            let stack = NamedStack {
                frames: named_frames(trace),
                version,
                gil,
                scheduled,
                state: files
                    .stat()
                    .map_or(ThreadState::Unknown, |(state, _)| state),
                syscall: files.whereabouts().ok().and_then(|at| at.syscall()),
            };
            stacks.push((tid, stack));
        }
        Ok(stacks)
    }
}

/// Before an interpreter has started, py-spy may report a wrong one: only a stack proves it.
fn find_interpreter(pid: i32, config: &Config) -> Result<PythonSpy, String> {
    let mut spy = PythonSpy::new(pid, config).map_err(text)?;
    let traces = spy.get_stack_traces().map_err(text)?;
    if traces.iter().all(|trace| trace.frames.is_empty()) {
        return Err("it runs no Python function".to_owned());
    }
    Ok(spy)
}

/// An error with its causes, on one line.
fn text(error: impl std::fmt::Display) -> String {
    format!("{error:#}").replace('\n', " ")
}

/// Function, file and line, leaf first.
fn named_frames(trace: StackTrace) -> Vec<(String, String, u32)> {
    let frames = trace.frames.into_iter().map(|frame| {
        let line = u32::try_from(frame.line).unwrap_or(0);
        (frame.name, frame.filename, line)
    });
    frames.collect()
}

/// Calls py-spy's walker, which may panic on inconsistent memory.
pub(super) fn walk<T, E>(
    read: impl FnOnce() -> Result<T, E>,
    failed: impl FnOnce(&'static str) -> E,
) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(failed("py-spy's walker failed")))
}
