//! Waits between two looks at a target, which a signal ends.

use super::failure::Failure;
use crate::os::signals::{Signals, wait_readable};
use nix::sys::signal::Signal;
use std::time::Instant;

/// Signals as a queue: an interrupt between two looks loses none of what was found.
pub(super) fn interruptible() -> Result<Signals, Failure> {
    let mut signals = Signals::install().map_err(Failure::new)?;
    signals.listen().map_err(Failure::new)?;
    Ok(signals)
}

/// Waits until `due`, or for a signal that ends torchspy: whether one came.
pub(super) fn is_interrupted(signals: &Signals, due: Instant) -> bool {
    loop {
        while let Some(received) = signals.next() {
            match received.signal {
                // No thread of the target is stopped between two looks.
                Signal::SIGTSTP => drop(signals.stop_self()),
                Signal::SIGUSR1 | Signal::SIGUSR2 => {}
                _ => return true,
            }
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        wait_readable(signals, None, left);
    }
}
