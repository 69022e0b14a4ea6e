//! Windows of a device in the order of time, each with its amount.

use crate::analysis::tracks::{Device, points};
use crate::model::ids::{GpuId, TrackId};
use crate::model::profile::Profile;
use crate::model::track::{SHARE_ONE, TrackKind};

/// NVML rounds utilization to whole percents; timestamps and windows agree to within microseconds.
const ROUNDING: f64 = 0.006;
/// Windows whose gap or overlap is below this are adjacent.
const MEET_NS: u64 = 2_000_000;
/// A window is not used if the clock's error exceeds this part of it.
const WORST_CLOCK: u64 = 4;

/// A window, and an amount for all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Start, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// End; later than the start.
    pub end_ns: u64,
    /// The amount: ns in which the device was idle, or J.
    pub amount: f64,
    /// Maximum error of the amount.
    pub error: f64,
}

impl Window {
    pub fn length_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// Windows that do not overlap, by time.
#[derive(Clone, Debug)]
pub struct Windows {
    windows: Vec<Window>,
    rates: (f64, f64),
    tick_ns: u64,
    clock_ns: u64,
    typical_ns: u64,
}

/// Why there are no windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWindows {
    /// The figure was not measured.
    #[error("its utilization was not measured")]
    NotMeasured,
    /// The driver's clock is not known well enough.
    #[error("the driver's clock is not known well enough")]
    Clock,
}

impl Windows {
    /// From windows in any order; `None` without any. `rates` are the minimum and maximum amount
    /// per ns; a tick is the precision of edges on the host, `clock_ns` that of windows.
    pub fn new(
        mut windows: Vec<Window>,
        rates: (f64, f64),
        tick_ns: u64,
        clock_ns: u64,
    ) -> Option<Self> {
        windows.retain(|window| window.start_ns < window.end_ns && window.amount.is_finite());
        windows.sort_by_key(|window| (window.start_ns, window.end_ns));
        // Of two that overlap the first counts. Their edges are the same timestamp, converted to
        // our clock twice.
        let mut until_ns = 0;
        windows.retain_mut(|window| {
            if window.start_ns.abs_diff(until_ns) <= MEET_NS.min(window.length_ns() / 10) {
                window.start_ns = until_ns;
            }
            let follows = window.start_ns >= until_ns && window.start_ns < window.end_ns;
            if follows {
                until_ns = window.end_ns;
            }
            follows
        });
        let mut lengths: Vec<u64> = windows.iter().map(Window::length_ns).collect();
        lengths.sort_unstable();
        let typical_ns = *lengths.get(lengths.len() / 2)?;
        Some(Self {
            windows,
            rates,
            tick_ns,
            clock_ns,
            typical_ns,
        })
    }

    /// Idle time of a device, from its utilization: the share of each window in which no process's
    /// kernel ran.
    ///
    /// # Errors
    /// [`NoWindows`].
    pub fn idle(profile: &Profile, device: &Device) -> Result<Self, NoWindows> {
        let figure = device.figure(TrackKind::Utilization);
        let track = figure.ok_or(NoWindows::NotMeasured)?.track;
        let windows = points(profile, track).iter().map(|point| {
            let length = point.end_ns.saturating_sub(point.start_ns) as f64;
            let busy = (point.value as f64 / SHARE_ONE as f64).clamp(0.0, 1.0);
            Window {
                start_ns: point.start_ns,
                end_ns: point.end_ns,
                amount: (1.0 - busy) * length,
                error: ROUNDING * length,
            }
        });
        let clock_ns = device.clock.as_ref().map_or(0, |clock| clock.error_ns);
        let windows = Self::new(windows.collect(), (0.0, 1.0), tick_ns(profile), clock_ns)
            .ok_or(NoWindows::NotMeasured)?;
        if clock_ns.saturating_mul(WORST_CLOCK) > windows.typical_ns {
            return Err(NoWindows::Clock);
        }
        Ok(windows)
    }

    /// Median length of the windows.
    pub fn typical_ns(&self) -> u64 {
        self.typical_ns
    }

    /// Precision of edges on the host.
    pub fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// Precision of the edges of windows.
    pub fn clock_ns(&self) -> u64 {
        self.clock_ns
    }

    /// Minimum and maximum amount per ns.
    pub fn rates(&self) -> (f64, f64) {
        self.rates
    }

    /// A window by its number.
    pub fn get(&self, index: usize) -> Option<&Window> {
        self.windows.get(index)
    }

    pub fn all(&self) -> &[Window] {
        &self.windows
    }

    /// The windows that end after `from_ns`, with their numbers, from number `hint` on at the
    /// earliest.
    pub fn from(&self, hint: usize, from_ns: u64) -> impl Iterator<Item = (usize, &Window)> {
        let later = self.windows.get(hint..).unwrap_or_default();
        // Usually the first or the second.
        let near = later
            .iter()
            .take(2)
            .position(|window| window.end_ns > from_ns);
        let first =
            near.unwrap_or_else(|| later.partition_point(|window| window.end_ns <= from_ns));
        (hint + first..).zip(&later[first..])
    }
}

/// Length of a tick: the precision of when something began.
pub fn tick_ns(profile: &Profile) -> u64 {
    (1e9 / profile.run.rate_hz.clamp(1.0, 1e6)) as u64
}

/// The counter track of a kind of a device.
pub fn track_of(profile: &Profile, gpu: GpuId, kind: TrackKind) -> Option<TrackId> {
    let of = |track: &crate::model::track::TrackInfo| track.gpu == Some(gpu) && track.kind == kind;
    profile
        .sideband
        .tracks
        .tracks
        .iter()
        .position(of)
        .map(TrackId::from_index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_whose_edges_were_read_twice_meet() {
        let window = |start_ns, end_ns| Window {
            start_ns,
            end_ns,
            amount: 1.0,
            error: 0.0,
        };
        const L: u64 = 167_000_000;
        let all = vec![
            window(5, L),
            window(L - 700, 2 * L),
            window(2 * L + 900, 3 * L),
            // Twice the same, and one inside of another.
            window(2 * L, 3 * L),
            window(2 * L + L / 2, 3 * L + 5),
            window(5 * L, 6 * L),
        ];
        let windows = Windows::new(all, (0.0, 1.0), 1, 0).unwrap();
        let edges: Vec<(u64, u64)> = windows
            .all()
            .iter()
            .map(|window| (window.start_ns, window.end_ns))
            .collect();
        assert_eq!(edges, [(0, L), (L, 2 * L), (2 * L, 3 * L), (5 * L, 6 * L)]);
        assert_eq!(windows.from(0, L).next().unwrap().0, 1);
        assert_eq!(windows.from(0, 4 * L).next().unwrap().0, 3);
        assert_eq!(windows.from(0, 7 * L).count(), 0);
        assert!(Windows::new(Vec::new(), (0.0, 1.0), 1, 0).is_none());
    }
}
