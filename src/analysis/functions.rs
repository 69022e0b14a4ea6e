//! Time by function and line.

use super::intervals::{Share, Shares};
use crate::model::category::FrameKind;
use crate::model::facts::Line;
use crate::model::ids::{FunctionId, StackId};
use crate::model::profile::{Profile, ProfileFrame, ProfileSample};
use rustc_hash::FxHashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionTime {
    pub function: FunctionId,
    /// Time in which it was the function of its language nearest to the leaf.
    pub self_ns: u64,
    /// Time in which it was on the stack; recursion counts once.
    pub total_ns: u64,
}

/// Time of one source line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineTime {
    /// The function that the line is in.
    pub function: FunctionId,
    pub line: u32,
    /// As in [`FunctionTime`].
    pub self_ns: u64,
    /// As in [`FunctionTime`].
    pub total_ns: u64,
}

/// Functions and lines of a set of samples, by descending own time.
#[derive(Clone, Debug, Default)]
pub struct Hot {
    /// Python functions, including the native code that they call.
    pub python: Vec<FunctionTime>,
    /// Python lines, including the native code that they call.
    pub lines: Vec<LineTime>,
    /// Native functions. Own time goes to the nearest named function that is not internal plumbing.
    pub native: Vec<FunctionTime>,
}

/// Lines whose shares have intervals.
pub const MOST_SHARES: usize = 100;

/// Sums of one key over stacks, where a key counts once per stack.
struct Sums<K> {
    times: FxHashMap<K, (u64, u64, usize)>,
}

impl<K: Eq + std::hash::Hash + Copy + Ord> Sums<K> {
    fn new() -> Self {
        Self {
            times: FxHashMap::default(),
        }
    }

    fn add(&mut self, key: K, stack: usize, weight_ns: u64, own: bool) {
        let (self_ns, total_ns, last) = self.times.entry(key).or_insert((0, 0, usize::MAX));
        if *last != stack {
            *total_ns = total_ns.saturating_add(weight_ns);
            *last = stack;
        }
        if own {
            *self_ns = self_ns.saturating_add(weight_ns);
        }
    }

    fn sorted(self) -> Vec<(K, u64, u64)> {
        let mut rows: Vec<(K, u64, u64)> = self
            .times
            .into_iter()
            .map(|(key, (self_ns, total_ns, _))| (key, self_ns, total_ns))
            .collect();
        rows.sort_by_key(|&(key, self_ns, total_ns)| (std::cmp::Reverse((self_ns, total_ns)), key));
        rows
    }
}

/// The functions and lines of `samples`. Every function of a stack has a row, so stacks are walked
/// here, each once.
pub fn hot<'a>(profile: &Profile, samples: impl Iterator<Item = &'a ProfileSample>) -> Hot {
    let mut weights: FxHashMap<StackId, u64> = FxHashMap::default();
    for sample in samples {
        if let Some(stack) = sample.stack {
            let weight = weights.entry(stack).or_default();
            *weight = weight.saturating_add(sample.weight_ns);
        }
    }
    let mut python = Sums::new();
    let mut lines = Sums::new();
    let mut native = Sums::new();
    for (stamp, (&stack, &weight_ns)) in weights.iter().enumerate() {
        let mut python_found = false;
        let own_native = profile.facts.of(Some(stack)).native_leaf;
        for frame in profile.stacks.leaf_to_root(Some(stack)) {
            let &ProfileFrame { function, line, .. } = profile.stacks.frame(frame);
            let Some(info) = profile.function(function) else {
                continue;
            };
            if info.is_python {
                python.add(function, stamp, weight_ns, !python_found);
                lines.add((function, line), stamp, weight_ns, !python_found);
                python_found = true;
            } else if info.kind != FrameKind::Marker && !info.plumbing {
                native.add(function, stamp, weight_ns, false);
            }
        }
        if let Some(function) = own_native {
            native.add(function, stamp, weight_ns, true);
        }
    }
    let function_time = |(function, self_ns, total_ns)| FunctionTime {
        function,
        self_ns,
        total_ns,
    };
    Hot {
        python: python.sorted().into_iter().map(function_time).collect(),
        lines: lines
            .sorted()
            .into_iter()
            .map(|((function, line), self_ns, total_ns)| LineTime {
                function,
                line,
                self_ns,
                total_ns,
            })
            .collect(),
        native: native.sorted().into_iter().map(function_time).collect(),
    }
}

/// Own time of the first [`MOST_SHARES`] of `lines`, in their order, as shares of the time of
/// `samples`. A sample's time is that of `line_of` its stack.
pub fn line_shares(
    samples: &[&ProfileSample],
    lines: &[LineTime],
    line_of: impl Fn(Option<StackId>) -> Option<Line>,
) -> Vec<Share> {
    let lines = lines.get(..MOST_SHARES).unwrap_or(lines);
    let places: FxHashMap<Line, usize> = lines
        .iter()
        .enumerate()
        .map(|(at, line)| ((line.function, line.line), at))
        .collect();
    let wall_ns = samples.iter().map(|sample| sample.weight_ns).sum();
    let ticks = samples.iter().map(|sample| u64::from(sample.ticks)).sum();
    let mut shares = Shares::new(wall_ns, ticks, lines.len());
    for sample in samples {
        let at = line_of(sample.stack).and_then(|line| places.get(&line).copied());
        let part = at.map(|at| (at, sample.weight_ns));
        shares.add(sample.weight_ns, sample.ticks, part.as_slice());
    }
    (0..lines.len()).map(|at| shares.share(at)).collect()
}

/// The lines of the user's own code nearest to the leaf, by descending time.
pub fn user_lines<'a>(
    profile: &Profile,
    samples: impl Iterator<Item = &'a ProfileSample>,
) -> Vec<LineTime> {
    user_lines_by(profile, samples.map(|sample| (sample, sample.weight_ns)))
}

/// The same, with the part of each sample's time that counts, ns.
pub fn user_lines_by<'a>(
    profile: &Profile,
    samples: impl Iterator<Item = (&'a ProfileSample, u64)>,
) -> Vec<LineTime> {
    let mut lines: FxHashMap<Line, u64> = FxHashMap::default();
    for (sample, ns) in samples {
        if let Some(line) = profile.facts.of(sample.stack).user_line {
            let sum = lines.entry(line).or_default();
            *sum = sum.saturating_add(ns);
        }
    }
    let mut lines: Vec<LineTime> = lines
        .into_iter()
        .map(|((function, line), ns)| LineTime {
            function,
            line,
            self_ns: ns,
            total_ns: ns,
        })
        .collect();
    lines.sort_by_key(|each| (std::cmp::Reverse(each.self_ns), each.function, each.line));
    lines
}
