//! Fault injection for tests: events between two steps of a stop. Debug builds only.
//!
//! `TORCHSPY_FAULT=POINT:FIRST:TIMES:ACTION` acts on visits number FIRST to FIRST + TIMES - 1 of a
//! point. Actions: `die` (torchspy is killed), `signal-N` (the thread's process is sent signal N),
//! `sleep-N` (for N microseconds), `panic`.
#![allow(unsafe_code)]

/// A step of a stop, named after what has just happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// The thread was chosen; it may end before it is seized.
    Chosen,
    /// It was seized, and not interrupted yet.
    Seized,
    /// A stop was requested.
    Interrupted,
    /// It is stopped, and nothing was read yet.
    Held,
    /// It was read, and is about to be detached.
    Read,
    /// Not a step of a stop: all reads of a tick are done.
    Ticked,
    /// Not a step of a stop: the view of `top` was drawn.
    Drawn,
}

/// Acts if the environment selects this visit.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn reach(_: Point, _: i32) {}

/// Acts if the environment selects this visit.
#[cfg(debug_assertions)]
pub(crate) fn reach(point: Point, tid: i32) {
    if let Some(fault) = active::FAULT.as_ref() {
        fault.visit(point, tid);
    }
}

#[cfg(debug_assertions)]
mod active {
    use super::Point;
    use nix::libc;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    pub(super) static FAULT: LazyLock<Option<Fault>> =
        LazyLock::new(|| parse(&std::env::var("TORCHSPY_FAULT").ok()?));

    #[derive(Debug)]
    pub(super) struct Fault {
        point: Point,
        first: u64,
        times: u64,
        action: Action,
        visits: AtomicU64,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Action {
        Die,
        Signal(i32),
        Sleep(Duration),
        Panic,
    }

    impl Fault {
        pub(super) fn visit(&self, point: Point, tid: i32) {
            if point != self.point {
                return;
            }
            let visit = self.visits.fetch_add(1, Ordering::Relaxed);
            if visit < self.first || visit - self.first >= self.times {
                return;
            }
            match self.action {
                // SAFETY: integers only. A tid names its whole process here (kill(2), Linux).
                Action::Die => unsafe {
                    libc::kill(libc::getpid(), libc::SIGKILL);
                },
                // SAFETY: as above.
                Action::Signal(number) => unsafe {
                    libc::kill(tid, number);
                },
                Action::Sleep(time) => std::thread::sleep(time),
                Action::Panic => panic!("a fault that was asked for"),
            }
        }
    }

    fn parse(text: &str) -> Option<Fault> {
        let mut parts = text.split(':');
        let point = match parts.next()? {
            "chosen" => Point::Chosen,
            "seized" => Point::Seized,
            "interrupted" => Point::Interrupted,
            "held" => Point::Held,
            "read" => Point::Read,
            "ticked" => Point::Ticked,
            "drawn" => Point::Drawn,
            _ => return None,
        };
        let first = parts.next()?.parse().ok()?;
        let times = parts.next()?.parse().ok()?;
        let action = parts.next()?;
        let action = match action.split_once('-') {
            None if action == "panic" => Action::Panic,
            None => Action::Die,
            Some(("signal", number)) => Action::Signal(number.parse().ok()?),
            Some((_, time)) => Action::Sleep(Duration::from_micros(time.parse().ok()?)),
        };
        Some(Fault {
            point,
            first,
            times,
            action,
            visits: AtomicU64::new(0),
        })
    }
}
