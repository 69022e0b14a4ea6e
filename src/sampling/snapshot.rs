//! A snapshot of every thread of a process, or of a process and its descendants.
//!
//! It is a [session](super::session) that captures all threads once, into memory.

use super::session::{SegmentSink, Session, SessionError, SessionOptions};
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use crate::os::stop::block_child_signals;
use crate::os::threads::Whereabouts;
use crate::python::discover::Interpreter;
use crate::recording::{Recording, recording_of};
use crossbeam_channel::bounded;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Additional wait for a snapshot that exceeds its time limit.
const GRACE: Duration = Duration::from_secs(1);

/// What a snapshot captured, and when.
#[derive(Clone, Debug, Default)]
pub struct SnapshotFacts {
    /// Before the first thread was read, CLOCK_MONOTONIC.
    pub begun_ns: u64,
    /// Processes that lived at the end of the snapshot.
    pub processes: Vec<SnapshotProcess>,
}

/// A captured process.
#[derive(Clone, Debug)]
pub struct SnapshotProcess {
    /// Its pid.
    pub pid: i32,
    /// Its interpreter, where one was found.
    pub interpreter: Option<Arc<Interpreter>>,
    /// Number of execs that were seen during the snapshot.
    pub execs: u32,
    /// Its threads.
    pub threads: Vec<SnapshotThread>,
}

/// A captured thread.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotThread {
    /// Its tid.
    pub tid: i32,
    /// Address of its `PyThreadState`, if it has one.
    pub python_state: Option<u64>,
    /// When it was captured, CLOCK_MONOTONIC; 0 if it was not.
    pub captured_ns: u64,
    /// Where it slept when it was captured.
    pub asleep: Option<Whereabouts>,
}

/// Result of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The threads' stacks, as a recording with one sample per thread.
    pub recording: Recording,
    /// `None` where the snapshot did not end in time: the recording then holds what was captured
    /// before.
    pub facts: Option<SnapshotFacts>,
}

/// Keeps segments in memory.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Segment>>>);

impl SegmentSink for Kept {
    fn write(&mut self, segment: &Segment) -> io::Result<()> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(segment.clone());
        Ok(())
    }
}

/// Takes a snapshot of `run.pid` within `patience`. Returns even if reads of the target block.
///
/// # Errors
/// See [`SessionError`].
pub fn take_snapshot(
    run: &RunInfo,
    options: SessionOptions,
    patience: Duration,
) -> Result<Snapshot, SessionError> {
    let (sender, ended) = bounded(1);
    let thread_run = run.clone();
    // The calling thread must not take the signals that wake the tracer.
    block_child_signals();
    // Even the start reads files of the target, and may block.
    Builder::new()
        .name("torchspy-snap".to_owned())
        .spawn(move || {
            // The receiver is gone where it took too long.
            let _ = sender.send(run_session(&thread_run, options, patience));
        })?;
    match ended.recv_timeout(patience.saturating_add(GRACE)) {
        Ok(found) => found,
        Err(_) => Ok(Snapshot {
            recording: recording_of(run.clone(), Vec::new()),
            facts: None,
        }),
    }
}

fn run_session(
    run: &RunInfo,
    options: SessionOptions,
    patience: Duration,
) -> Result<Snapshot, SessionError> {
    let kept = Kept::default();
    let deadline = Instant::now() + patience;
    let session = Session::start(run.pid, options, Box::new(kept.clone()))?;
    let facts = session.snapshot_facts(patience);
    let ended = facts.is_some() || session.finished();
    let left = deadline.saturating_duration_since(Instant::now());
    // Symbols of native code may take a while after the last capture.
    if ended && left > Duration::ZERO {
        session.stop()?;
    } else {
        session.abandon();
    }
    let segments = std::mem::take(&mut *kept.0.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Snapshot {
        recording: recording_of(run.clone(), segments),
        facts,
    })
}
