//! A recording in progress: starts, controls and ends the sampler.
//!
//! It has four threads: the tracer, which stops and copies; the worker, which unwinds and merges;
//! the keeper, which watches the process tree; and the writer. Bounded queues connect them.

use super::control::Control;
use super::fallback::Fallback;
use super::held_reader;
use super::keeper::{Keeper, is_own_child};
use super::outbox::Outbox;
use super::snapshot::SnapshotFacts;
use super::tracer::Tracer;
use super::worker::{Inbox, Worker};
use crate::gpu::collector::{self, GpuOptions};
use crate::model::segment::Segment;
use crate::os::access::try_read_memory;
use crate::os::allocator::give_back_large_blocks;
use crate::os::descriptors::raise_limit;
use crate::os::own_thread::{OwnThread, ask};
use crate::os::perf_event::Scope;
use crate::os::priority::run_behind;
use crate::os::process_info::read_stat;
use crate::os::redaction::Redaction;
use crate::os::stop::block_child_signals;
use crate::torch::rank_choice::RankChoice;
use crate::torch::rules::RuleSet;
use crossbeam_channel::{Receiver, bounded, unbounded};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Messages between tracer and worker: a tenth of a second of a thousand threads.
const QUEUE: usize = 8192;
/// Length of a segment of a recording.
pub const SEGMENT: Duration = Duration::from_secs(1);
/// Time between checks whether a thread has ended.
const POLL: Duration = Duration::from_millis(2);
/// Maximum number of segments that wait for the disk.
const SEGMENTS: usize = 16;

/// What to sample, and at what cost.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Ticks per second.
    pub rate_hz: f64,
    /// Whether native frames are captured.
    pub native: bool,
    /// Whether nothing may be stopped.
    pub nonblocking: bool,
    /// How running threads are captured.
    pub engine: Engine,
    /// Whether only threads that hold the GIL are recorded.
    pub gil_only: bool,
    /// Pattern of the names of threads to record; `None` for all.
    pub threads: Option<regex::Regex>,
    /// Ranks whose processes are sampled; `None` for all. A process without a rank of its own is
    /// sampled.
    pub ranks: Option<RankChoice>,
    /// Whether child processes are sampled, too.
    pub subprocesses: bool,
    /// Whether child processes without Python may be stopped, too. Otherwise they are read only
    /// while they sleep: a setuid program that a traced thread execs runs without its privileges.
    pub stop_any_child: bool,
    /// Share of a running thread's time that stops may take, 0 to 1; infinity for no limit.
    pub max_stopped: f64,
    /// Whether to take one [`Snapshot`](super::snapshot::Snapshot) of every thread and end.
    pub once: bool,
    /// Pids of processes that are not sampled.
    pub leave_out: Vec<i32>,
    /// Processes that are sampled besides the root, whether or not they descend from it.
    pub more_roots: Vec<i32>,
    /// Removes secrets from command lines.
    pub redaction: Redaction,
    /// Classify functions: which threads train, and where modules, counters and compilations are
    /// searched for.
    pub rules: &'static RuleSet,
    /// Which GPUs are measured, and how.
    pub gpu: GpuOptions,
    /// Length of a segment. With a length below [`SEGMENT`] the first segment is shorter still,
    /// because a user waits for it.
    pub segment: Duration,
    /// How closely threads that hardly run are followed.
    pub idle_threads: IdleThreads,
}

/// How running threads are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Stopped for as long as it takes to read them.
    Ptrace,
    /// Sampled by the kernel while they run, on request; nothing is stopped.
    Perf {
        /// What the kernel lets us sample.
        scope: Scope,
        /// Whether threads are stopped from then on if the kernel has nothing left for a sampler.
        or_stops: bool,
    },
}

impl SessionOptions {
    /// Whether the kernel samples running threads.
    pub(super) fn samples_by_kernel(&self) -> bool {
        self.engine != Engine::Ptrace && self.native && !self.nonblocking && !self.once
    }

    /// Whether no thread is ever stopped.
    pub fn never_stops(&self) -> bool {
        self.nonblocking || self.engine != Engine::Ptrace
    }
}

/// How closely threads that hardly run, and those that start, are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleThreads {
    /// One that sleeps is polled each 170 ms at least, one that runs for moments in every second
    /// tick; threads that start are seen at the next tick.
    Close,
    /// For sessions that last for months: one that sleeps is polled each 1.7 s at least, one that
    /// runs for moments in every sixteenth tick; threads that start are seen within two seconds.
    Loose,
}

impl IdleThreads {
    /// Time between two readings of the host's counters.
    fn host_period(self) -> Duration {
        match self {
            Self::Close => Duration::from_millis(500),
            Self::Loose => Duration::from_secs(1),
        }
    }
}

/// Where segments go.
pub trait SegmentSink: Send {
    /// Writes one segment.
    ///
    /// # Errors
    /// The disk is full or gone; the session ends.
    fn write(&mut self, segment: &Segment) -> io::Result<()>;
}

impl<S: SegmentSink + ?Sized> SegmentSink for Box<S> {
    fn write(&mut self, segment: &Segment) -> io::Result<()> {
        (**self).write(segment)
    }
}

/// Progress of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProgressSnapshot {
    /// Since the start.
    pub elapsed: Duration,
    /// Ticks so far.
    pub ticks: u64,
    /// Stacks read so far.
    pub samples: u64,
    /// Actual ticks per second.
    pub rate_hz: f64,
    /// Number of sampled threads.
    pub threads: usize,
    /// Number of sampled processes.
    pub processes: usize,
    /// Share of the target's running time in which it was stopped, 0 to 1.
    pub stopped_share: f64,
    /// Whether stops are skipped to stay within `max_stopped`.
    pub over_budget: bool,
}

/// Why sampling could not start or failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is no process with this pid.
    #[error("there is no process {0}")]
    NoSuchProcess(i32),
    /// The kernel refused access.
    #[error("process {pid} may not be sampled: {detail}")]
    PermissionDenied {
        /// Pid of the process.
        pid: i32,
        /// The kernel's error message.
        detail: String,
    },
    /// Any other error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How a session ended.
#[derive(Debug, Default)]
pub struct SessionEnd {
    /// The first error while writing; `None` if there was none.
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
    snapshot: Receiver<SnapshotFacts>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Session({:?})", self.control.figures())
    }
}

impl Session {
    /// Starts sampling `root_pid` and, if the options say so, its descendants. Segments go to
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
        // A timeout is not a refusal: the process may answer later.
        if !options.leave_out.contains(&root_pid)
            && let Some(Err(error)) = ask(root_pid, move || try_read_memory(root_pid))?.answer()
        {
            return Err(SessionError::PermissionDenied {
                pid: root_pid,
                detail: error.to_string(),
            });
        }
        raise_limit();
        if !options.once {
            give_back_large_blocks();
        }
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
        let reads_held = !options.once && options.idle_threads == IdleThreads::Close;
        let held = held_reader::start(control.clone(), reads_held);
        let inbox = Inbox {
            messages,
            rung,
            held,
            control: control.clone(),
        };
        let tracks = collector::start(options.gpu.clone(), options.idle_threads.host_period())?;
        let worker = Worker::new(
            inbox,
            recycle,
            event_sender,
            segment_sender,
            link,
            tracks,
            &options,
        );
        let (writer_control, writer_error) = (control.clone(), error.clone());
        let tracer_control = control.clone();
        let in_a_hurry = options.once;
        let (snapshot_sender, snapshot) = bounded(1);
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
            // The queue of the writer absorbs short delays of the disk.
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
                true => tracer.snapshot(&snapshot_sender),
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
            snapshot,
        })
    }

    /// The facts of a snapshot once all threads were captured; `None` if that takes longer than
    /// `patience`, or the tracer ended without them.
    pub(super) fn snapshot_facts(&self, patience: Duration) -> Option<SnapshotFacts> {
        self.snapshot.recv_timeout(patience).ok()
    }

    /// The progress at the time of the call.
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

    /// A signal ended a process, as its parent knows: before Linux 6.15 nobody else may.
    pub fn ended_by(&self, pid: i32, signal: i32) {
        self.control.ended_by(pid, signal);
    }

    /// Whether the target and its descendants have ended, or writing failed.
    pub fn finished(&self) -> bool {
        self.control.is_finished()
    }

    /// Resumes every thread and stops sampling; returns once that is done. `false` if it is not
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

    /// Continues after [`Session::pause`].
    pub fn resume(&self) {
        self.control.set_pause(false);
    }

    /// Requests the end without waiting: one of the threads may be blocked in the kernel.
    pub(super) fn abandon(self) {
        self.control.request_stop();
    }

    /// Ends sampling and flushes the last segment. A thread that is blocked in a read of the target
    /// is not waited for: it ends with torchspy, and the kernel then resumes what it has stopped.
    ///
    /// # Errors
    /// None so far; errors while writing are in [`SessionEnd`].
    pub fn stop(mut self) -> Result<SessionEnd, SessionError> {
        self.control.request_stop();
        // Blocked threads are given up at the same time.
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
        // The worker hands the last segment to the writer, which then ends.
        let [fallback, keeper] = self.others;
        if end(self.worker) {
            end(self.writer);
            // The fallback waits for orders of the worker, or for its end.
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

/// Writes segments as they arrive. After a failure further segments are received and dropped, so
/// that the sender never blocks.
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
