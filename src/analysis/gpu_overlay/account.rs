//! The share of one subject in the amounts of windows: hard bounds, and an estimate within them.
//!
//! A window has one amount (ns in which the device was idle, or J) for all of its time. For a
//! subject that covers part of that time only this is known: the rest of the window had no less
//! than the lowest rate and no more than the highest, and neither had the subject. Summed over
//! windows this gives bounds that hold whatever happened inside of them (Fréchet's argument for a
//! joint distribution with known margins). The subject's edges are known to a tick and to the error
//! of the driver's clock, which widens the bounds.

use super::windows::{Window, Windows};

/// A window counts as the subject's alone from this part on.
const WHOLE: f64 = 0.98;
/// Visits that are this many ticks apart are merged: the sampler briefly saw something else. Such
/// gaps may be only a small part of a visit; two subjects that alternate quickly are not merged.
const TICKS_APART: u64 = 2;
const LEAST_OWN: f64 = 0.8;
/// A subject is resolved if at least this share of its time is in visits of at least two windows,
/// and covered by windows at all.
const LONG_ENOUGH: f64 = 0.5;
const COVERED_ENOUGH: f64 = 0.8;
/// Windows that a visit must last for.
const WINDOWS_A_VISIT: u64 = 2;

/// The part of the windows' amounts that belongs to one subject.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// The subject's time on the host, ns.
    pub host_ns: u64,
    /// The part of it that windows cover.
    pub covered_ns: u64,
    /// The estimate for the covered time, in the unit of the windows' amounts.
    pub amount: f64,
    /// Bounds for all of its time; time without a window may have any rate.
    pub low: f64,
    pub high: f64,
    /// Whether its visits are long enough. If not, the figures mean nothing.
    pub resolved: bool,
}

impl Part {
    /// The estimate as a share of the covered time; `None` if it is not resolved.
    pub fn share(&self) -> Option<f64> {
        (self.resolved && self.covered_ns > 0)
            .then(|| (self.amount / self.covered_ns as f64).clamp(0.0, 1.0))
    }
}

/// The window that is being filled.
#[derive(Clone, Copy, Debug)]
struct Open {
    window: usize,
    ns: u64,
    edges: u32,
}

/// Intervals that follow each other closely.
#[derive(Clone, Copy, Debug)]
struct Visit {
    start_ns: u64,
    end_ns: u64,
    own_ns: u64,
}

/// Collects the intervals of one subject, in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Account {
    open: Option<Open>,
    visit: Option<Visit>,
    host_ns: u64,
    covered_ns: u64,
    long_ns: u64,
    low: f64,
    high: f64,
    /// Time of windows that belong to the subject alone, and their amounts.
    whole_ns: f64,
    whole: f64,
    /// Amounts of all windows, in proportion to its part of their time.
    even: f64,
}

impl Account {
    /// Adds an interval that begins no earlier than the last one ended.
    pub fn add(&mut self, windows: &Windows, from_ns: u64, to_ns: u64) {
        if from_ns >= to_ns {
            return;
        }
        let joins = self.visit.is_some_and(|visit| visit.end_ns == from_ns);
        if !joins && let Some(open) = &mut self.open {
            open.edges += 1;
        }
        self.extend_visit(windows, from_ns, to_ns);
        self.host_ns = self.host_ns.saturating_add(to_ns - from_ns);
        let mut is_edge = !joins;
        for (index, window) in windows.from(self.open.map_or(0, |open| open.window), from_ns) {
            if window.start_ns >= to_ns {
                break;
            }
            let part_ns = window.end_ns.min(to_ns) - window.start_ns.max(from_ns);
            if self.open.is_none_or(|open| open.window != index) {
                self.close(windows);
                self.open = Some(Open {
                    window: index,
                    ns: 0,
                    edges: 0,
                });
            }
            if let Some(open) = &mut self.open {
                open.ns += part_ns;
                open.edges += u32::from(is_edge && window.start_ns <= from_ns);
            }
            is_edge = false;
        }
    }

    fn extend_visit(&mut self, windows: &Windows, from_ns: u64, to_ns: u64) {
        let apart_ns = windows.tick_ns().saturating_mul(TICKS_APART);
        let one = |visit: &Visit| {
            let own_ns = visit.own_ns.saturating_add(to_ns - from_ns);
            from_ns.saturating_sub(visit.end_ns) <= apart_ns
                && own_ns as f64 >= LEAST_OWN * to_ns.saturating_sub(visit.start_ns) as f64
        };
        match &mut self.visit {
            Some(visit) if one(visit) => {
                visit.end_ns = visit.end_ns.max(to_ns);
                visit.own_ns = visit.own_ns.saturating_add(to_ns - from_ns);
            }
            _ => {
                self.end_visit(windows);
                self.visit = Some(Visit {
                    start_ns: from_ns,
                    end_ns: to_ns,
                    own_ns: to_ns - from_ns,
                });
            }
        }
    }

    fn end_visit(&mut self, windows: &Windows) {
        if let Some(visit) = self.visit.take()
            && visit.end_ns.saturating_sub(visit.start_ns)
                >= windows.typical_ns().saturating_mul(WINDOWS_A_VISIT)
        {
            self.long_ns = self.long_ns.saturating_add(visit.own_ns);
        }
    }

    fn close(&mut self, windows: &Windows) {
        let Some(open) = self.open.take() else {
            return;
        };
        let Some(window) = windows.get(open.window) else {
            return;
        };
        let length = window.length_ns() as f64;
        let own = (open.ns as f64).min(length);
        self.covered_ns = self.covered_ns.saturating_add(open.ns);
        let (low, high) = bounds(windows, window, own, open.edges);
        self.low += low;
        self.high += high;
        self.even += window.amount * own / length;
        if open.edges == 0 && own >= WHOLE * length {
            self.whole_ns += length;
            self.whole += window.amount;
        }
    }

    /// The result of all intervals.
    pub fn finish(mut self, windows: &Windows) -> Part {
        if let Some(open) = &mut self.open {
            open.edges += 1;
        }
        self.close(windows);
        self.end_visit(windows);
        let covered = self.covered_ns as f64;
        let estimate = if self.whole_ns > 0.0 {
            self.whole / self.whole_ns * covered
        } else {
            self.even
        };
        let bare = self.host_ns.saturating_sub(self.covered_ns) as f64;
        let (least, most) = windows.rates();
        Part {
            host_ns: self.host_ns,
            covered_ns: self.covered_ns,
            amount: estimate.max(self.low).min(self.high),
            low: self.low + least * bare,
            high: self.high + most * bare,
            resolved: self.long_ns as f64 >= LONG_ENOUGH * self.host_ns as f64
                && covered >= COVERED_ENOUGH * self.host_ns as f64
                && self.covered_ns > 0,
        }
    }
}

/// The minimum and the maximum that a subject can have of a window of which it covers `own` ns.
fn bounds(windows: &Windows, window: &Window, own: f64, edges: u32) -> (f64, f64) {
    let length = window.length_ns() as f64;
    let slack = f64::from(edges) * windows.tick_ns() as f64 + windows.clock_ns() as f64;
    let (shortest, longest) = ((own - slack).max(0.0), (own + slack).min(length));
    let (least, most) = windows.rates();
    let low = (window.amount - window.error - most * (length - shortest)).max(least * shortest);
    let high = (window.amount + window.error - least * (length - longest)).min(most * longest);
    (low, high.max(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Windows of 100 ms with these shares of idle time.
    fn windows(idle: &[f64]) -> Windows {
        let windows = idle.iter().enumerate().map(|(at, idle)| Window {
            start_ns: at as u64 * 100 * MS,
            end_ns: (at as u64 + 1) * 100 * MS,
            amount: idle * 100e6,
            error: 0.0,
        });
        Windows::new(windows.collect(), (0.0, 1.0), 10 * MS, 0).unwrap()
    }

    fn part(windows: &Windows, intervals: &[(u64, u64)]) -> Part {
        let mut account = Account::default();
        for &(from, to) in intervals {
            account.add(windows, from * MS, to * MS);
        }
        account.finish(windows)
    }

    #[test]
    fn windows_of_its_own_are_told_exactly() {
        let windows = windows(&[0.0, 1.0, 1.0, 1.0, 0.5, 0.0]);
        let own = part(&windows, &[(100, 400)]);
        assert!(own.resolved, "{own:?}");
        assert!((own.amount - 300e6).abs() < 1e6, "{own:?}");
        assert!(own.low <= 300e6 && own.low > 250e6, "{own:?}");
        assert_eq!(own.share(), Some(1.0));
    }

    #[test]
    fn a_window_that_is_shared_bounds_both() {
        // Half of the second window is idle, and half of it is ours.
        let windows = windows(&[1.0, 1.0, 0.5, 0.0, 0.0]);
        let own = part(&windows, &[(0, 250)]);
        assert!(own.resolved);
        assert!(own.low <= 200e6 && own.high >= 250e6, "{own:?}");
        assert!(own.high <= 261e6, "{own:?}");
    }

    #[test]
    fn what_is_shorter_than_two_windows_is_not_resolved() {
        let windows = windows(&[0.5; 10]);
        let turns: Vec<(u64, u64)> = (0..10).map(|at| (at * 100, at * 100 + 50)).collect();
        let own = part(&windows, &turns);
        assert!(!own.resolved && own.share().is_none(), "{own:?}");
        // Alternations that are as short as the gaps that merge visits are not resolved either.
        let turns: Vec<(u64, u64)> = (0..25).map(|turn| (turn * 40, turn * 40 + 20)).collect();
        assert!(!part(&windows, &turns).resolved);
        // Of its windows nothing is known but that it may have all of the idle time, or none.
        assert!(own.low < 1.0 && own.high >= 499e6, "{own:?}");
    }

    #[test]
    fn a_moment_of_something_else_does_not_end_a_visit() {
        let windows = windows(&[1.0; 10]);
        let intervals: Vec<(u64, u64)> = (0..10).map(|at| (at * 100, at * 100 + 90)).collect();
        let own = part(&windows, &intervals);
        assert!(own.resolved);
        assert!((own.amount - 900e6).abs() < 1.0, "{own:?}");
    }

    #[test]
    fn what_no_window_covers_widens_the_bounds() {
        let windows = windows(&[1.0, 1.0, 1.0, 1.0]);
        let own = part(&windows, &[(0, 480)]);
        assert_eq!((own.host_ns, own.covered_ns), (480 * MS, 400 * MS));
        assert!(own.high - own.low >= 80e6, "{own:?}");
        let bare = part(&windows, &[(500, 900)]);
        assert!(!bare.resolved && bare.covered_ns == 0, "{bare:?}");
    }
}
