//! Which functions and lines the time was spent in.

use super::intervals::{Share, Shares};
use crate::model::category::FrameKind;
use crate::model::ids::{FunctionId, StackId};
use crate::model::profile::{Function, Profile, ProfileFrame, ProfileSample};
use rustc_hash::FxHashMap;

/// Time of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionTime {
    /// The function.
    pub function: FunctionId,
    /// Time in which it was the nearest of its language to the leaf.
    pub self_ns: u64,
    /// Time in which it was on the stack; recursion counts once.
    pub total_ns: u64,
}

/// Time of one source line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineTime {
    /// The function that the line is in.
    pub function: FunctionId,
    /// The line.
    pub line: u32,
    /// As of [`FunctionTime`].
    pub self_ns: u64,
    /// As of [`FunctionTime`].
    pub total_ns: u64,
}

/// Functions and lines of a set of samples, those with the most own time first.
#[derive(Clone, Debug, Default)]
pub struct Hot {
    /// Python functions. The time of native code that they call is their own.
    pub python: Vec<FunctionTime>,
    /// Python lines, likewise.
    pub lines: Vec<LineTime>,
    /// Native functions. Own time goes to the nearest function with a name that is no plumbing.
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

/// Whether a native function has a name, and not only an address.
fn has_name(function: &Function) -> bool {
    !function.name.contains("+0x") && !function.name.starts_with('[')
}

/// The functions and lines of `samples`.
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
        let own_native = own_native(profile, stack);
        for frame in profile.stacks.leaf_to_root(Some(stack)) {
            let &ProfileFrame { function, line, .. } = profile.stacks.frame(frame);
            let Some(info) = profile.functions.get(function.index()) else {
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

/// The line of the function nearest to the leaf that `is_meant`.
fn nearest_line(
    profile: &Profile,
    stack: StackId,
    is_meant: impl Fn(&Function) -> bool,
) -> Option<(FunctionId, u32)> {
    profile.stacks.leaf_to_root(Some(stack)).find_map(|frame| {
        let frame = profile.stacks.frame(frame);
        let function = profile.functions.get(frame.function.index())?;
        is_meant(function).then_some((frame.function, frame.line))
    })
}

/// Own time of the first [`MOST_SHARES`] of `lines`, in their order, as shares of the time of `samples`. A sample's time is its
/// line's nearest to the leaf of the functions that `are_meant`.
pub fn line_shares(
    profile: &Profile,
    samples: &[&ProfileSample],
    lines: &[LineTime],
    are_meant: impl Fn(&Function) -> bool,
) -> Vec<Share> {
    let lines = lines.get(..MOST_SHARES).unwrap_or(lines);
    let places: FxHashMap<(FunctionId, u32), usize> = lines
        .iter()
        .enumerate()
        .map(|(at, line)| ((line.function, line.line), at))
        .collect();
    let mut of_stack: FxHashMap<StackId, Option<usize>> = FxHashMap::default();
    let wall_ns = samples.iter().map(|sample| sample.weight_ns).sum();
    let ticks = samples.iter().map(|sample| u64::from(sample.ticks)).sum();
    let mut shares = Shares::new(wall_ns, ticks, lines.len());
    for sample in samples {
        let at = sample.stack.and_then(|stack| {
            *of_stack.entry(stack).or_insert_with(|| {
                let nearest = nearest_line(profile, stack, &are_meant)?;
                places.get(&nearest).copied()
            })
        });
        let part = at.map(|at| (at, sample.weight_ns));
        shares.add(sample.weight_ns, sample.ticks, part.as_slice());
    }
    (0..lines.len()).map(|at| shares.share(at)).collect()
}

/// Whether it is the user's own code.
pub fn is_users(function: &Function) -> bool {
    function.kind == FrameKind::PythonUser
}

/// The lines of the user's own code nearest to the leaf, those with the most time first: where to look for what `samples` did.
pub fn user_lines<'a>(
    profile: &Profile,
    samples: impl Iterator<Item = &'a ProfileSample>,
) -> Vec<LineTime> {
    let mut weights: FxHashMap<StackId, u64> = FxHashMap::default();
    for sample in samples {
        if let Some(stack) = sample.stack {
            let weight = weights.entry(stack).or_default();
            *weight = weight.saturating_add(sample.weight_ns);
        }
    }
    let mut lines: FxHashMap<(FunctionId, u32), u64> = FxHashMap::default();
    for (&stack, &weight_ns) in &weights {
        if let Some(key) = nearest_line(profile, stack, is_users) {
            let sum = lines.entry(key).or_default();
            *sum = sum.saturating_add(weight_ns);
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

/// The native function that a stack's own time goes to; `None` where the leaf is Python.
pub(super) fn own_native(profile: &Profile, stack: StackId) -> Option<FunctionId> {
    let mut first = None;
    for frame in profile.stacks.leaf_to_root(Some(stack)) {
        let function = profile.stacks.frame(frame).function;
        let info = profile.functions.get(function.index())?;
        if info.is_python || info.kind == FrameKind::Marker {
            break;
        }
        if has_name(info) && !info.plumbing {
            return Some(function);
        }
        first = first.or(Some(function));
    }
    first
}
