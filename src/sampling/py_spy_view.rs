//! Threads of a process as py-spy prints them, read by py-spy's own walker without a stop: what its
//! output has besides stacks (order and ids of threads, entry frames, variables in its own words).
//!
//! The walker may read a thread that runs in the middle of a call. Who prints its stacks checks
//! them against a snapshot.

use super::fallback::walk;
use super::old_threads::OldThreads;
use crate::model::py_spy_view::{PySpyView, StackTrace};
use crate::os::process_info::read_stat;
use crate::os::redaction::Redaction;
use anyhow::{Error, Result};
use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy};

/// How often a read that fails is tried: one takes about a millisecond.
const TRIES: usize = 50;

/// Which of py-spy's options a view follows.
#[derive(Clone, Copy, Debug)]
pub struct PySpyViewOptions {
    /// How often `-l` was given: values have 128 characters for each; 0 is without variables.
    pub locals: u8,
    pub full_filenames: bool,
    pub redaction: Redaction,
}

/// Reads a process.
///
/// # Errors
///
/// The process runs no Python that py-spy knows, has ended, or may not be read.
pub fn read_py_spy_view(pid: i32, options: PySpyViewOptions) -> Result<PySpyView> {
    let config = Config {
        blocking: LockingStrategy::NonBlocking,
        native: false,
        subprocesses: false,
        include_idle: true,
        dump_locals: options.locals.into(),
        full_filenames: options.full_filenames,
        collect_thread_names: true,
        lineno: py_spy::config::LineNo::LastInstruction,
        ..Config::default()
    };
    // Finding the interpreter, too, may panic on inconsistent memory.
    let read = || -> Result<PySpyView> {
        let mut spy = PythonSpy::new(pid, &config)?;
        let mut threads = stacks(&mut spy)?;
        if options.locals > 0 {
            keep_steady(&mut threads, &stacks(&mut spy)?);
        }
        Ok(PySpyView {
            version: spy.version.to_string(),
            executable: spy.process.exe()?,
            threads,
            tids: Vec::new(),
        })
    };
    let mut view = walk(read, Error::msg)?;
    // What py-spy finds by unwinding before Python 3.11, and not at all from another pid namespace.
    let handles: Vec<u64> = view.threads.iter().map(|each| each.thread_id).collect();
    view.tids = OldThreads::new(pid).tids(&handles);
    for (thread, tid) in view.threads.iter_mut().zip(&view.tids) {
        if let Some(tid) = *tid {
            thread.active &= read_stat(tid).is_ok_and(|stat| stat.state == b'R');
            thread.os_thread_id = thread.os_thread_id.or(u64::try_from(tid).ok());
        }
    }
    let frames = view.threads.iter_mut().flat_map(|each| &mut each.frames);
    for local in frames.flat_map(|frame| frame.locals.iter_mut().flatten()) {
        if let Some(text) = &mut local.repr {
            *text = options.redaction.value(&local.name, text);
        }
    }
    Ok(view)
}

/// A read that meets a thread in the middle of a call may fail, or panic: the next one hardly does.
fn stacks(spy: &mut PythonSpy) -> Result<Vec<StackTrace>> {
    let mut read = || walk(|| spy.get_stack_traces(), Error::msg);
    for _ in 1..TRIES {
        if let Ok(stacks) = read() {
            return Ok(stacks);
        }
    }
    read()
}

/// Leaves out the variables of threads whose frames were others when they were read again: values
/// that were read while a thread ran may be of different moments.
fn keep_steady(threads: &mut [StackTrace], again: &[StackTrace]) {
    for thread in threads {
        let is_same =
            |each: &StackTrace| each.thread_id == thread.thread_id && each.frames == thread.frames;
        if again.iter().any(is_same) {
            continue;
        }
        for frame in &mut thread.frames {
            frame.locals = None;
        }
    }
}
