//! Which threads may end waits of others: for an event, a queue or a future it is not known who
//! will set it.
//!
//! A thread that sleeps for a time, or is woken from outside, may. Nearly every trainer has threads
//! that do so for ever, and end no wait of the program, but those of their own package: those of
//! progress bars, loggers and notebooks.

use crate::model::dump::{DumpedFrame, DumpedThread};
use crate::model::wait::WaitKind;

/// Packages whose threads end no waits but their own, by the file of the function that a thread was
/// started with.
const BACKGROUND: &[&str] = &[
    // CPython 3.10 to 3.15, Lib/multiprocessing: `_serve`, in accept().
    "/multiprocessing/resource_sharer.py",
    // torch 2.15: the pin-memory thread, which waits with a timeout.
    "/torch/utils/data/",
    // torch 2.15: reads the answers of the processes that compile, and checks that they live.
    "/torch/_inductor/",
    // torch 2.15: timers of torchrun.
    "/torch/distributed/elastic/",
    // tqdm 4.70: TMonitor.
    "/tqdm/",
    // rich 15.0: the refresh thread of live displays, and Lightning's, which is derived from it.
    "/rich/",
    "/rich_progress.py",
    // tensorboard 2.20: the thread that writes events.
    "/tensorboard/",
    // wandb 0.31: the status of the network, its event loop, the relay of the console.
    "/wandb/",
    // mlflow 3.17: asynchronous logging, telemetry.
    "/mlflow/",
    // ipykernel 7.4 and pyzmq 27.3: channels of a notebook's kernel.
    "/ipykernel/",
    "/zmq/",
    // prometheus_client 0.26: pushes of metrics.
    "/prometheus_client/",
];
/// fsspec 2026.9: the name of the thread of its event loop, which was started with asyncio's
/// function.
const FSSPEC: (&str, &str) = ("fsspecIO", "/fsspec/");
/// Where every thread of Python begins.
const BOOTSTRAP: &str = "/threading.py";

/// Whether a thread may end the wait of `waiter`: it runs Python code and goes on by itself, or may
/// be woken from outside. It sleeps for a time, computes, waits for a child, a socket or a file.
/// `is_timed` says whether its own wait has a timeout.
pub(super) fn may_end(waiter: &DumpedThread, thread: &DumpedThread, is_timed: bool) -> bool {
    use WaitKind::{Autograd, Barrier, Collective, GpuCopy, GpuSync, Input, Lock};
    let is_of = |package: &str| python(waiter).any(|frame| frame.file.contains(package));
    let is_background = background(thread).is_some_and(|package| !is_of(package));
    if python(thread).next().is_none() || is_background {
        return false;
    }
    match thread.wait.as_ref().map(|wait| wait.kind) {
        Some(Lock) => is_timed,
        Some(Autograd | Barrier | Collective | GpuCopy | GpuSync | Input) => false,
        Some(_) => true,
        // In native code, for another thread.
        None => thread.syscall.as_deref() != Some("futex"),
    }
}

fn python(thread: &DumpedThread) -> impl DoubleEndedIterator<Item = &DumpedFrame> {
    thread.frames.iter().filter(|frame| frame.is_python)
}

/// The package whose waits are all that a thread ends.
fn background(thread: &DumpedThread) -> Option<&'static str> {
    if thread.python_name.as_deref() == Some(FSSPEC.0) {
        return Some(FSSPEC.1);
    }
    let first = python(thread)
        .rev()
        .find(|frame| !frame.file.ends_with(BOOTSTRAP))?;
    let mut all = BACKGROUND.iter().copied();
    all.find(|file| first.file.contains(file))
}

#[cfg(test)]
mod tests {
    use super::super::built::{frame, waiting};
    use super::*;

    /// A thread that was started with a function of `file`.
    fn started(file: &str, kind: WaitKind) -> DumpedThread {
        let mut thread = waiting(2, &["wait:331", "run:69", "_bootstrap:1002"], kind, "");
        for (frame, file) in thread.frames.iter_mut().zip(["", file, ""]) {
            let own = if file.is_empty() {
                "/usr/lib/python3.11/threading.py"
            } else {
                file
            };
            own.clone_into(&mut frame.file);
        }
        thread
    }

    fn may_end_waits(thread: &DumpedThread, is_timed: bool) -> bool {
        let waiter = waiting(1, &["step:7"], WaitKind::Lock, "");
        may_end(&waiter, thread, is_timed)
    }

    #[test]
    fn threads_of_progress_bars_and_loggers_end_no_wait() {
        let site = "/usr/lib/python3.11/site-packages";
        for file in [
            "tqdm/_monitor.py",
            "wandb/sdk/wandb_run.py",
            "tensorboard/summary/writer/event_file_writer.py",
            "torch/utils/data/_utils/pin_memory.py",
        ] {
            let thread = started(&format!("{site}/{file}"), WaitKind::Sleep);
            assert!(!may_end_waits(&thread, true), "{file}");
            // A wait in the same package is one for it.
            let mut waiter = waiting(1, &["flush:7", "step:8"], WaitKind::Lock, "");
            let package = file.split('/').next().unwrap_or_default();
            waiter.frames[0].file = format!("{site}/{package}/utils/data/own.py");
            assert!(may_end(&waiter, &thread, true), "{file}");
        }
        for file in [
            "/home/me/feed.py",
            "/usr/lib/python3.11/concurrent/futures/thread.py",
        ] {
            for kind in [
                WaitKind::Sleep,
                WaitKind::Child,
                WaitKind::Socket,
                WaitKind::Events,
            ] {
                assert!(
                    may_end_waits(&started(file, kind), false),
                    "{file} {kind:?}"
                );
            }
            assert!(!may_end_waits(&started(file, WaitKind::Lock), false));
            assert!(!may_end_waits(&started(file, WaitKind::Collective), true));
        }
        let mut fsspec = started(
            "/usr/lib/python3.11/asyncio/base_events.py",
            WaitKind::Events,
        );
        assert!(may_end_waits(&fsspec, false));
        fsspec.python_name = Some(FSSPEC.0.to_owned());
        assert!(!may_end_waits(&fsspec, false));
    }

    #[test]
    fn a_timer_and_a_sleep_as_a_thread_may_end_a_wait() {
        let mut timer = started("", WaitKind::Lock);
        assert!(may_end_waits(&timer, true) && !may_end_waits(&timer, false));
        timer.wait = None;
        assert!(may_end_waits(&timer, false));
        timer.syscall = Some("futex".to_owned());
        assert!(!may_end_waits(&timer, false));
        // Native code alone, as of torch and of BLAS.
        timer.frames = vec![frame(".poll:0")];
        timer.wait = waiting(2, &[], WaitKind::Sleep, "").wait;
        assert!(!may_end_waits(&timer, true));
    }
}
