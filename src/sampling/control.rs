//! Lock-free requests of the session to the other threads, and the figures that they publish.

use crate::os::bell::Bell;
use crate::os::clock::monotonic_ns;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Flags and figures shared by the threads of a session.
#[derive(Debug)]
pub(super) struct Control {
    /// Wakes the keeper.
    keeper: Bell,
    stop: AtomicBool,
    /// The tracer no longer answers: the worker must not wait for it.
    abandoned: AtomicBool,
    /// The worker no longer answers: the tracer must not wait for it.
    worker_abandoned: AtomicBool,
    pause: AtomicBool,
    paused: AtomicBool,
    tree_gone: AtomicBool,
    finished: AtomicBool,
    ticks: AtomicU64,
    samples: AtomicU64,
    threads: AtomicUsize,
    processes: AtomicUsize,
    stopped_ns: AtomicU64,
    run_ns: AtomicU64,
    limiting: AtomicBool,
    ended_by: Mutex<Vec<EndedBy>>,
}

/// A process that a signal ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedBy {
    pub(super) pid: i32,
    /// When its end was seen, CLOCK_MONOTONIC.
    pub(super) time_ns: u64,
    pub(super) signal: i32,
}

/// The figures at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) ticks: u64,
    pub(super) samples: u64,
    pub(super) threads: usize,
    pub(super) processes: usize,
    pub(super) stopped_share: f64,
    pub(super) limiting: bool,
}

impl Control {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            keeper: Bell::new()?,
            stop: AtomicBool::default(),
            abandoned: AtomicBool::default(),
            worker_abandoned: AtomicBool::default(),
            pause: AtomicBool::default(),
            paused: AtomicBool::default(),
            tree_gone: AtomicBool::default(),
            finished: AtomicBool::default(),
            ticks: AtomicU64::default(),
            samples: AtomicU64::default(),
            threads: AtomicUsize::default(),
            processes: AtomicUsize::default(),
            stopped_ns: AtomicU64::default(),
            run_ns: AtomicU64::default(),
            limiting: AtomicBool::default(),
            ended_by: Mutex::default(),
        })
    }

    /// A process of the tree was ended by a signal.
    pub(super) fn ended_by(&self, pid: i32, signal: i32) {
        let mut ended = self.ended_by.lock().unwrap_or_else(PoisonError::into_inner);
        ended.push(EndedBy {
            pid,
            time_ns: monotonic_ns(),
            signal,
        });
    }

    /// Those since the last call.
    pub(super) fn take_ended(&self) -> Vec<EndedBy> {
        let mut ended = self.ended_by.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut ended)
    }

    pub(super) fn request_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.keeper.ring();
    }

    /// Wakes the keeper.
    pub(super) fn keeper_bell(&self) -> &Bell {
        &self.keeper
    }

    pub(super) fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn abandon_tracer(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    pub(super) fn tracer_is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub(super) fn abandon_worker(&self) {
        self.worker_abandoned.store(true, Ordering::SeqCst);
    }

    pub(super) fn worker_is_abandoned(&self) -> bool {
        self.worker_abandoned.load(Ordering::Relaxed)
    }

    pub(super) fn set_pause(&self, pause: bool) {
        self.paused.store(false, Ordering::SeqCst);
        self.pause.store(pause, Ordering::SeqCst);
    }

    pub(super) fn pause_requested(&self) -> bool {
        self.pause.load(Ordering::SeqCst)
    }

    pub(super) fn confirm_pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    pub(super) fn set_tree_gone(&self) {
        self.tree_gone.store(true, Ordering::SeqCst);
    }

    pub(super) fn tree_is_gone(&self) -> bool {
        self.tree_gone.load(Ordering::SeqCst)
    }

    pub(super) fn set_finished(&self) {
        self.finished.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst)
    }

    pub(super) fn show_tick(&self, processes: usize, threads: usize, limiting: bool) {
        self.ticks.fetch_add(1, Ordering::Relaxed);
        // The last progress line reports the processes before the end, not zero.
        if processes > 0 {
            self.processes.store(processes, Ordering::Relaxed);
            self.threads.store(threads, Ordering::Relaxed);
        }
        self.limiting.store(limiting, Ordering::Relaxed);
    }

    pub(super) fn show_sample(&self) {
        self.samples.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn show_stops(&self, stopped_ns: u64, run_ns: u64) {
        self.stopped_ns.fetch_add(stopped_ns, Ordering::Relaxed);
        self.run_ns.fetch_add(run_ns, Ordering::Relaxed);
    }

    pub(super) fn figures(&self) -> Figures {
        let run_ns = self.run_ns.load(Ordering::Relaxed);
        let stopped_ns = self.stopped_ns.load(Ordering::Relaxed);
        Figures {
            ticks: self.ticks.load(Ordering::Relaxed),
            samples: self.samples.load(Ordering::Relaxed),
            threads: self.threads.load(Ordering::Relaxed),
            processes: self.processes.load(Ordering::Relaxed),
            stopped_share: if run_ns == 0 {
                0.0
            } else {
                stopped_ns as f64 / run_ns as f64
            },
            limiting: self.limiting.load(Ordering::Relaxed),
        }
    }
}
