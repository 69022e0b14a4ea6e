//! A recording in progress: what starts, steers and ends the sampler.
//!
//! TEMPORARY: this file has the interface alone. It watches the root process and writes one empty segment.

use crate::model::segment::Segment;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

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
    /// Share of a running thread's time that stops may take, 0 to 1; infinity for no limit.
    pub max_stopped: f64,
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionEnd {
    /// What went wrong on the way, if anything.
    pub error: Option<String>,
}

/// A recording in progress.
pub struct Session {
    pid: i32,
    started: Instant,
    sink: Mutex<Box<dyn SegmentSink>>,
}

impl Session {
    /// Starts sampling.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn start(
        root_pid: i32,
        _options: SessionOptions,
        sink: Box<dyn SegmentSink>,
    ) -> Result<Session, SessionError> {
        if crate::os::process_info::read_stat(root_pid).is_err() {
            return Err(SessionError::NoSuchProcess(root_pid));
        }
        crate::os::access::try_read_memory(root_pid).map_err(|error| {
            SessionError::PermissionDenied {
                pid: root_pid,
                detail: error.to_string(),
            }
        })?;
        Ok(Session {
            pid: root_pid,
            started: Instant::now(),
            sink: Mutex::new(sink),
        })
    }

    /// Where the recording stands.
    pub fn progress(&self) -> ProgressSnapshot {
        ProgressSnapshot {
            elapsed: self.started.elapsed(),
            ..ProgressSnapshot::default()
        }
    }

    /// Whether the target and its descendants are gone, or nothing can be written any more.
    pub fn finished(&self) -> bool {
        crate::os::process_info::read_stat(self.pid).map_or(true, |stat| stat.state == b'Z')
    }

    /// Lets go of every thread and stops sampling; back when that is done.
    pub fn pause(&self) {}

    /// Goes on after [`Session::pause`].
    pub fn resume(&self) {}

    /// Ends sampling and flushes the last segment.
    ///
    /// # Errors
    /// The last segment could not be written.
    pub fn stop(self) -> Result<SessionEnd, SessionError> {
        let segment = Segment {
            last: true,
            ..Segment::default()
        };
        if let Ok(mut sink) = self.sink.lock() {
            sink.write(&segment)?;
        }
        Ok(SessionEnd::default())
    }
}
