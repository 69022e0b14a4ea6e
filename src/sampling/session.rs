//! A recording in progress: what starts, steers and ends the sampler.
//!
//! Four threads: the tracer, which stops and copies; the worker, which unwinds and merges; the
//! keeper, which watches the process tree; the writer. Between them are bounded queues.

use super::control::Control;
use super::fallback::Fallback;
use super::keeper::{Keeper, is_own_child};
use super::outbox::Outbox;
use super::snapshot::SnapshotFacts;
use super::tracer::Tracer;
use super::worker::{Inbox, Worker};
use crate::gpu::collector::{self, GpuOptions};
use crate::model::segment::Segment;
use crate::os::access::try_read_memory;
use crate::os::descriptors::raise_limit;
use crate::os::own_thread::{OwnThread, ask};
use crate::os::priority::run_behind;
use crate::os::process_info::read_stat;
use crate::os::redaction::Redaction;
use crate::os::stop::block_child_signals;
use crate::torch::rules::RuleSet;
use crossbeam_channel::{Receiver, bounded, unbounded};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Messages between tracer and worker: a tenth of a second of a thousand threads.
const QUEUE: usize = 8192;
/// How much time a segment of a recording holds.
pub const SEGMENT: Duration = Duration::from_secs(1);
/// How often it is asked whether a thread has ended.
const POLL: Duration = Duration::from_millis(2);
/// Segments that wait for the disk.
const SEGMENTS: usize = 16;

/// What to sample, and at what cost.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Ticks per second.
    pub rate_hz: f64,
    /// Native frames.
    pub native: bool,
    /// Never stop anything.
    pub nonblocking: bool,
    /// Only threads that hold the GIL.
    pub gil_only: bool,
    /// Only threads whose name matches.
    pub threads: Option<regex::Regex>,
    /// Child processes, too.
    pub subprocesses: bool,
    /// Child processes that run no Python may be stopped, too. Else they are read only while they
    /// sleep: a setuid program that a thread execs while it is traced runs without its privileges.
    pub stop_any_child: bool,
    /// Share of a running thread's time that stops may take, 0 to 1; infinity for no limit.
    pub max_stopped: f64,
    /// Take one [`Snapshot`](super::snapshot::Snapshot) of every thread and end, rather than sample
    /// at a rate.
    pub once: bool,
    /// Processes that are left alone.
    pub leave_out: Vec<i32>,
    /// Whether secrets are taken out of command lines.
    pub redaction: Redaction,
    /// What functions are: which threads train, where modules, counters and compilations are looked
    /// for.
    pub rules: &'static RuleSet,
    /// GPUs.
    pub gpu: GpuOptions,
    /// How much time a segment holds. The first of shorter ones than [`SEGMENT`] comes sooner:
    /// somebody waits for it.
    pub segment: Duration,
}

/// Where segments go.
pub trait SegmentSink: Send {
    /// Writes one segment.
    ///
    /// # Errors
    /// The disk is full or gone; the session ends.
    fn write(&mut self, segment: &Segment) -> io::Result<()>;
}

/// Where a recording stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProgressSnapshot {
    /// Since the start.
    pub elapsed: Duration,
    /// Ticks carried out.
    pub ticks: u64,
    /// Samples taken.
    pub samples: u64,
    /// Rate reached.
    pub rate_hz: f64,
    /// Threads being watched.
    pub threads: usize,
    /// Processes being watched.
    pub processes: usize,
    /// Share of the target's running time in which it stood stopped, 0 to 1.
    pub stopped_share: f64,
    /// The sampler backed off to stay within `max_stopped`.
    pub over_budget: bool,
}

/// Why sampling could not start, or went wrong.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is no process with this pid.
    #[error("there is no process {0}")]
    NoSuchProcess(i32),
    /// The kernel refuses.
    #[error("process {pid} may not be sampled: {detail}")]
    PermissionDenied {
        /// The process.
        pid: i32,
        /// What the kernel said.
        detail: String,
    },
    /// Anything else.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How a session ended.
#[derive(Debug, Default)]
pub struct SessionEnd {
    /// What went wrong on the way, if anything.
    pub error: Option<io::Error>,
}

/// A recording in progress.
pub struct Session {
    started: Instant,
    control: Arc<Control>,
    error: Arc<Mutex<Option<io::Error>>>,
    tracer: OwnThread,
    worker: OwnThread,
    writer: OwnThread,
    others: [OwnThread; 2],
    look: Receiver<SnapshotFacts>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Session({:?})", self.control.figures())
    }
}

impl Session {
    /// Starts sampling `root_pid` and, if the options say so, what descends from it. Segments go to
    /// `sink`.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn start(
        root_pid: i32,
        options: SessionOptions,
        sink: Box<dyn SegmentSink>,
    ) -> Result<Session, SessionError> {
        if read_stat(root_pid).is_err() {
            return Err(SessionError::NoSuchProcess(root_pid));
        }
        // What does not answer is not refused: it may answer later.
        if !options.leave_out.contains(&root_pid)
            && let Some(Err(error)) = ask(move || try_read_memory(root_pid))?.answer()
        {
            return Err(SessionError::PermissionDenied {
                pid: root_pid,
                detail: error.to_string(),
            });
        }
        raise_limit();
        // Threads inherit the mask: a stop of the target must wake the tracer and nobody else.
        block_child_signals();
        let control = Arc::new(Control::new()?);
        let error: Arc<Mutex<Option<io::Error>>> = Arc::default();
        let (message_sender, messages) = bounded(QUEUE);
        let (recycle, recycled) = bounded(QUEUE);
        let (worker_bell, rung) = bounded(1);
        let (event_sender, events) = unbounded();
        let (segment_sender, segments) = bounded(SEGMENTS);
        let mut keeper = Keeper::new(root_pid, &options, event_sender.clone(), control.clone())?;
        keeper.poll();
        let launched = is_own_child(root_pid).then_some(root_pid);
        let outbox = Outbox::new(message_sender, worker_bell, recycled);
        let (fallback, link) = Fallback::new(
            options.rate_hz,
            options.gil_only,
            event_sender.clone(),
            control.clone(),
        );
        let inbox = Inbox {
            messages,
            rung,
            control: control.clone(),
        };
        let lanes = collector::start(options.gpu.clone())?;
        let worker = Worker::new(
            inbox,
            recycle,
            event_sender,
            segment_sender,
            link,
            lanes,
            &options,
        );
        let (writer_control, writer_error) = (control.clone(), error.clone());
        let tracer_control = control.clone();
        let in_a_hurry = options.once;
        let (look_sender, look) = bounded(1);
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let ends = EndsSession(control.clone());
            OwnThread::start(name, move || {
                let _ends = ends;
                work();
            })
        };
        let work = move || write_segments(&segments, sink, &writer_control, &writer_error);
        let writer = start("torchspy-write", Box::new(work))?;
        let work = move || {
            // Its queue takes up what it cannot keep up with for a while.
            if !in_a_hurry {
                run_behind(0);
            }
            worker.run();
        };
        let worker = start("torchspy-work", Box::new(work))?;
        let fallback = start("torchspy-legacy", Box::new(move || fallback.run()))?;
        let keeper = start("torchspy-keep", Box::new(move || keeper.run()))?;
        let work = move || {
            let once = options.once;
            let tracer = Tracer::new(options, tracer_control, events, outbox, launched);
            match once {
                true => tracer.snapshot(&look_sender),
                false => tracer.run(),
            }
        };
        let tracer = start("torchspy-trace", Box::new(work))?;
        Ok(Session {
            started: Instant::now(),
            control,
            error,
            tracer,
            worker,
            writer,
            others: [fallback, keeper],
            look,
        })
    }

    /// What was found at the one look of a session that looks once, when all threads were read;
    /// `None` if that takes longer than `patience`, or never comes.
    pub(super) fn snapshot_facts(&self, patience: Duration) -> Option<SnapshotFacts> {
        self.look.recv_timeout(patience).ok()
    }

    /// Where the recording stands.
    pub fn progress(&self) -> ProgressSnapshot {
        let figures = self.control.figures();
        let elapsed = self.started.elapsed();
        ProgressSnapshot {
            elapsed,
            ticks: figures.ticks,
            samples: figures.samples,
            rate_hz: figures.ticks as f64 / elapsed.as_secs_f64().max(1e-3),
            threads: figures.threads,
            processes: figures.processes,
            stopped_share: figures.stopped_share,
            over_budget: figures.limiting,
        }
    }

    /// Whether the target and its descendants are gone, or nothing can be written any more.
    pub fn finished(&self) -> bool {
        self.control.is_finished()
    }

    /// Lets go of every thread and stops sampling; back when that is done. `false` if it is not
    /// done in time: a thread that was asked to stop is blocked in the kernel, and would stay
    /// stopped while torchspy is.
    pub fn pause(&self) -> bool {
        self.control.set_pause(true);
        let deadline = Instant::now() + Duration::from_secs(2);
        let is_released = || self.control.is_paused() || self.finished();
        while !is_released() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        is_released()
    }

    /// Goes on after [`Session::pause`].
    pub fn resume(&self) {
        self.control.set_pause(false);
    }

    /// Asks it to end, and waits for nothing: a thread of it may stand in the kernel.
    pub(super) fn abandon(self) {
        self.control.request_stop();
    }

    /// Ends sampling and flushes the last segment. A thread that hangs in a read of the target is
    /// left there: it ends with torchspy, and what it has stopped runs on then.
    ///
    /// # Errors
    /// None so far; what went wrong while writing is in [`SessionEnd`].
    pub fn stop(mut self) -> Result<SessionEnd, SessionError> {
        self.control.request_stop();
        // All that hang do so at the same time.
        while !self.tracer.has_ended() && !self.tracer.hangs() {
            if self.worker.hangs() {
                self.control.abandon_worker();
            }
            self.others.iter_mut().for_each(|thread| {
                thread.hangs();
            });
            std::thread::sleep(POLL);
        }
        let (mut died, mut hangs) = (false, false);
        let mut end = |mut thread: OwnThread| {
            while !thread.has_ended() && !thread.hangs() {
                std::thread::sleep(POLL);
            }
            let ended = thread.has_ended();
            hangs |= !ended;
            died |= ended && !thread.join();
            ended
        };
        if !end(self.tracer) {
            self.control.abandon_tracer();
        }
        // What it was given last it hands to the writer, which ends after it.
        let [fallback, keeper] = self.others;
        if end(self.worker) {
            end(self.writer);
            // It waits for the worker's orders, or for its end.
            end(fallback);
        }
        end(keeper);
        let mut error = self
            .error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if hangs && error.is_none() {
            error = Some(io::Error::other(
                "the target's memory does not answer; what was read before it stopped answering was written",
            ));
        }
        if died && error.is_none() {
            error = Some(io::Error::other(
                "a part of the sampler failed; what it had gathered was written",
            ));
        }
        Ok(SessionEnd { error })
    }
}

/// Ends the session when it is dropped: each of its threads has one, and none ends before the
/// others but by a panic. Without the worker, for example, threads would be stopped for nothing.
struct EndsSession(Arc<Control>);

impl Drop for EndsSession {
    fn drop(&mut self) {
        self.0.set_finished();
        self.0.request_stop();
    }
}

/// Writes segments as they come. After a failure the rest is taken and dropped, so that nobody
/// waits for it.
fn write_segments(
    segments: &Receiver<Segment>,
    mut sink: Box<dyn SegmentSink>,
    control: &Control,
    error: &Mutex<Option<io::Error>>,
) {
    for segment in segments {
        let failed = error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some();
        if failed {
            continue;
        }
        if let Err(problem) = sink.write(&segment) {
            *error.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
            control.set_finished();
            control.request_stop();
        }
    }
}
