//! Samples by time: what other threads did at the same time.

use crate::model::profile::ProfileSample;

/// Samples of one or several threads, by start.
#[derive(Clone, Debug, Default)]
pub struct Timeline<'p> {
    samples: Vec<&'p ProfileSample>,
    /// For each sample the latest end of all samples up to and including it.
    ends_ns: Vec<u64>,
}

/// A sample, and its part in the requested interval.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'p> {
    pub sample: &'p ProfileSample,
    /// Start of the part.
    pub from_ns: u64,
    /// End of the part; greater than `from_ns`.
    pub to_ns: u64,
}

impl Piece<'_> {
    pub fn length_ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }

    /// The share of the sample's ticks in the part, rounded.
    pub fn ticks(&self) -> u32 {
        let weight = self.sample.weight_ns.max(1);
        let scaled = (u128::from(self.sample.ticks) * u128::from(self.length_ns())
            + u128::from(weight / 2))
            / u128::from(weight);
        u32::try_from(scaled).unwrap_or(self.sample.ticks)
    }

    /// The share of the sample's time in the run queue in the part.
    pub fn queue_ns(&self) -> u64 {
        let weight = u128::from(self.sample.weight_ns.max(1));
        let part = u128::from(self.sample.queue_ns) * u128::from(self.length_ns()) / weight;
        u64::try_from(part).unwrap_or(0).min(self.length_ns())
    }
}

impl<'p> Timeline<'p> {
    /// From samples in any order.
    pub fn new(samples: impl Iterator<Item = &'p ProfileSample>) -> Self {
        // With the keys in the list itself, comparing does not load samples.
        let mut keyed: Vec<_> = samples
            .map(|sample| ((sample.start_ns, sample.thread), sample))
            .collect();
        keyed.sort_by_key(|&(key, _)| key);
        let samples: Vec<&ProfileSample> = keyed.into_iter().map(|(_, sample)| sample).collect();
        let mut latest_ns = 0;
        let ends = samples.iter().map(|sample| {
            latest_ns = sample
                .start_ns
                .saturating_add(sample.weight_ns)
                .max(latest_ns);
            latest_ns
        });
        let ends_ns = ends.collect();
        Self { samples, ends_ns }
    }

    /// The parts of samples that lie in `from_ns..to_ns`, by start.
    pub fn within(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = Piece<'p>> + '_ {
        let first = self.ends_ns.partition_point(|&end_ns| end_ns <= from_ns);
        self.samples
            .get(first..)
            .unwrap_or_default()
            .iter()
            .take_while(move |sample| sample.start_ns < to_ns)
            .filter_map(move |&sample| {
                let end = sample.start_ns.saturating_add(sample.weight_ns);
                let (from_ns, to_ns) = (sample.start_ns.max(from_ns), end.min(to_ns));
                (from_ns < to_ns).then_some(Piece {
                    sample,
                    from_ns,
                    to_ns,
                })
            })
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }
}
