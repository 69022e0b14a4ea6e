//! Energy between two points in time, from the readings of a counter.
//!
//! The counter is exact but late: it is updated about every 100 ms (arXiv 2312.02741), so a reading
//! shows the energy at some time within the previous update interval. The energy of an interval
//! therefore has two bounds: the rise between readings that certainly lie within it, and that
//! between readings that certainly enclose it.

use crate::analysis::gpu_overlay::windows::tick_ns;
use crate::analysis::intervals::Bounds;
use crate::analysis::tracks::points;
use crate::model::ids::TrackId;
use crate::model::profile::Profile;
use schemars::JsonSchema;
use serde::Serialize;

/// Update interval of the counter, ns.
pub const STEP_NS: u64 = 100_000_000;

/// An estimate with its bounds.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "Amount")]
pub struct Joules {
    /// The estimate.
    #[serde(rename = "energy_j")]
    pub joules: f64,
    /// Its bounds.
    pub interval: Bounds,
}

/// A device's cumulative energy since the first reading, by time.
#[derive(Clone, Debug)]
pub struct Curve {
    /// CLOCK_MONOTONIC and J since the first reading; both increase.
    readings: Vec<(u64, f64)>,
    /// Time between successive readings without a gap.
    covered_ns: u64,
    period_ns: u64,
    tick_ns: u64,
    gaps: Vec<(u64, u64)>,
}

impl Curve {
    /// From a counter track of energy; `None` if it has no values.
    pub fn new(profile: &Profile, track: TrackId) -> Option<Self> {
        let mut curve = Self {
            readings: Vec::new(),
            covered_ns: 0,
            period_ns: 0,
            tick_ns: tick_ns(profile),
            gaps: Vec::new(),
        };
        let mut lengths = Vec::new();
        for point in points(profile, track) {
            let length_ns = point.end_ns.saturating_sub(point.start_ns);
            let last = curve.readings.last().copied();
            let (last_ns, joules) = last.unwrap_or((point.start_ns, 0.0));
            if length_ns == 0 || point.start_ns < last_ns {
                continue;
            }
            if last.is_none() || point.start_ns > last_ns {
                // The driver was loaded again, or values were lost.
                if last.is_some() {
                    curve.gaps.push((last_ns, point.start_ns));
                }
                curve.readings.push((point.start_ns, joules));
            }
            let rise = point.value as f64 / 1e3;
            curve.readings.push((point.end_ns, joules + rise));
            curve.covered_ns = curve.covered_ns.saturating_add(length_ns);
            lengths.push(length_ns);
        }
        lengths.sort_unstable();
        curve.period_ns = *lengths.get(lengths.len() / 2)?;
        Some(curve)
    }

    /// Time that it covers.
    pub fn covered_ns(&self) -> u64 {
        self.covered_ns
    }

    /// Total energy, J.
    pub fn total(&self) -> f64 {
        self.readings.last().map_or(0.0, |&(_, joules)| joules)
    }

    /// Shortest interval whose energy can be determined: two readings and updates of the counter,
    /// ns.
    pub fn shortest_ns(&self) -> u64 {
        2 * self.period_ns.max(STEP_NS).saturating_add(STEP_NS)
    }

    /// The energy of an interval; `None` if it is not fully covered.
    pub fn between(&self, from_ns: u64, to_ns: u64) -> Option<Joules> {
        let (first_ns, last_ns) = (self.readings.first()?.0, self.readings.last()?.0);
        let is_complete = from_ns <= to_ns
            && from_ns >= first_ns
            && to_ns <= last_ns
            && !self
                .gaps
                .iter()
                .any(|&(start_ns, end_ns)| start_ns < to_ns && end_ns > from_ns);
        if !is_complete {
            return None;
        }
        let (early, late) = (
            |ns: u64| self.before(ns.saturating_sub(self.tick_ns)),
            |ns: u64| {
                let around = ns.saturating_add(self.tick_ns);
                self.after(around.saturating_add(STEP_NS))
            },
        );
        let joules = (self.at(to_ns) - self.at(from_ns)).max(0.0);
        Some(Joules {
            joules,
            interval: Bounds {
                low: (early(to_ns) - late(from_ns)).clamp(0.0, joules),
                high: (late(to_ns) - early(from_ns)).max(joules),
            },
        })
    }

    /// By the last reading that is not after `ns`.
    fn before(&self, ns: u64) -> f64 {
        let until = self.readings.partition_point(|&(at, _)| at <= ns);
        let reading = until.checked_sub(1).and_then(|at| self.readings.get(at));
        reading.map_or(0.0, |&(_, joules)| joules)
    }

    /// By the first reading that is not before `ns`.
    fn after(&self, ns: u64) -> f64 {
        let from = self.readings.partition_point(|&(at, _)| at < ns);
        self.readings
            .get(from)
            .map_or_else(|| self.total(), |&(_, joules)| joules)
    }

    /// Between the readings around `ns`, evenly.
    fn at(&self, ns: u64) -> f64 {
        let next = self.readings.partition_point(|&(at, _)| at < ns);
        let (Some(&(after_ns, after)), Some(&(before_ns, before))) = (
            self.readings.get(next),
            next.checked_sub(1).and_then(|at| self.readings.get(at)),
        ) else {
            return self.before(ns);
        };
        let part = (ns - before_ns) as f64 / (after_ns - before_ns).max(1) as f64;
        before + (after - before) * part
    }
}
