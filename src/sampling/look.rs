//! One look at every thread of a process, or of it and all that descend from it.
//!
//! It is a [session](super::session) that goes through all threads once, into memory.

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

/// How much longer than it may take a look is waited for.
const GRACE: Duration = Duration::from_secs(1);

/// What was looked at, and when.
#[derive(Clone, Debug, Default)]
pub struct LookFacts {
    /// When the first thread was about to be read, CLOCK_MONOTONIC.
    pub begun_ns: u64,
    /// Processes that lived at the end of the look.
    pub processes: Vec<LookedProcess>,
}

/// A process that was looked at.
#[derive(Clone, Debug)]
pub struct LookedProcess {
    /// Its pid.
    pub pid: i32,
    /// Its interpreter, where one was found.
    pub interpreter: Option<Arc<Interpreter>>,
    /// How often it was seen to have replaced its program (exec) during the snapshot.
    pub execs: u32,
    /// Its threads.
    pub threads: Vec<LookedThread>,
}

/// A thread that was looked at.
#[derive(Clone, Copy, Debug)]
pub struct LookedThread {
    /// Its tid.
    pub tid: i32,
    /// Its `PyThreadState`, where it has one.
    pub python_state: Option<u64>,
    /// When it was read, CLOCK_MONOTONIC; 0 where it was not.
    pub captured_ns: u64,
    /// Where it slept when it was read.
    pub asleep: Option<Whereabouts>,
}

/// What one look gave.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The threads' stacks, as a recording of one moment.
    pub recording: Recording,
    /// What was looked at. `None` where the look did not end in time: the recording then holds what was read before.
    pub facts: Option<LookFacts>,
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

/// Looks at `run.pid`, for at most `patience`: whatever the target does to whoever reads it, this comes back.
///
/// # Errors
/// See [`SessionError`].
pub fn look(
    run: &RunInfo,
    options: SessionOptions,
    patience: Duration,
) -> Result<Look, SessionError> {
    let (sender, ended) = bounded(1);
    let asked = run.clone();
    // The calling thread must not take the signals that wake the tracer.
    block_child_signals();
    // Even starting reads files of the target, and may wait for it.
    Builder::new()
        .name("torchspy-look".to_owned())
        .spawn(move || {
            // Nobody listens where it took too long.
            let _ = sender.send(look_to_its_end(&asked, options, patience));
        })?;
    match ended.recv_timeout(patience.saturating_add(GRACE)) {
        Ok(found) => found,
        Err(_) => Ok(Look {
            recording: recording_of(run.clone(), Vec::new()),
            facts: None,
        }),
    }
}

fn look_to_its_end(
    run: &RunInfo,
    options: SessionOptions,
    patience: Duration,
) -> Result<Look, SessionError> {
    let kept = Kept::default();
    let deadline = Instant::now() + patience;
    let session = Session::start(run.pid, options, Box::new(kept.clone()))?;
    let facts = session.looked(patience);
    let ended = facts.is_some() || session.finished();
    let left = deadline.saturating_duration_since(Instant::now());
    // The names of native code may take a while after the last thread was read.
    if ended && left > Duration::ZERO {
        session.stop()?;
    } else {
        session.abandon();
    }
    let segments = std::mem::take(&mut *kept.0.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Look {
        recording: recording_of(run.clone(), segments),
        facts,
    })
}
