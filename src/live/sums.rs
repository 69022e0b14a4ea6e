//! Sums over an interval of one thread's time. They add up: a run's are those of its parts.

use crate::model::category::{Activity, Phase};
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Maximum number of functions, lines or modules in a table. Above it the half with the least time
/// goes into [`Sums::rest`].
const MOST_KEYS: usize = 20_000;

/// Time of one key, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub self_ns: u64,
    pub total_ns: u64,
}

/// A function, or a line of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeKey {
    pub name: String,
    /// Its file; of native code the library.
    pub file: String,
    /// The line; for a function its first; 0 if unknown.
    pub line: u32,
}

/// An `nn.Module` by its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleKey {
    /// Class of the root module, and its number among the roots of that class.
    pub root: (String, u32),
    /// The path below the root, in its parts; empty for the root.
    pub path: Vec<String>,
}

/// Times by key.
#[derive(Clone, Debug)]
pub struct Sums<K> {
    pub times: FxHashMap<K, Times>,
    /// Own time of keys that were dropped, ns.
    pub rest_ns: u64,
}

impl<K> Default for Sums<K> {
    fn default() -> Self {
        Self {
            times: FxHashMap::default(),
            rest_ns: 0,
        }
    }
}

impl<K: Eq + Hash + Clone> Sums<K> {
    /// Adds time of a key.
    pub fn put(&mut self, key: K, self_ns: u64, total_ns: u64) {
        let times = self.times.entry(key).or_default();
        times.self_ns = times.self_ns.saturating_add(self_ns);
        times.total_ns = times.total_ns.saturating_add(total_ns);
    }

    fn add(&mut self, other: &Self) {
        for (key, more) in &other.times {
            match self.times.get_mut(key) {
                Some(times) => {
                    times.self_ns = times.self_ns.saturating_add(more.self_ns);
                    times.total_ns = times.total_ns.saturating_add(more.total_ns);
                }
                None => {
                    self.times.insert(key.clone(), *more);
                }
            }
        }
        self.rest_ns = self.rest_ns.saturating_add(other.rest_ns);
        self.bound();
    }

    fn take(&mut self, other: &Self) {
        for (key, less) in &other.times {
            if let Some(times) = self.times.get_mut(key) {
                times.self_ns = times.self_ns.saturating_sub(less.self_ns);
                times.total_ns = times.total_ns.saturating_sub(less.total_ns);
                if times.total_ns == 0 {
                    self.times.remove(key);
                }
            }
        }
        self.rest_ns = self.rest_ns.saturating_sub(other.rest_ns);
    }

    /// Drops the keys with the least time if there are too many.
    fn bound(&mut self) {
        if self.times.len() <= MOST_KEYS {
            return;
        }
        let mut totals: Vec<u64> = self.times.values().map(|times| times.total_ns).collect();
        let (_, &mut middle, _) = totals.select_nth_unstable(MOST_KEYS / 2);
        let mut rest_ns = 0_u64;
        self.times.retain(|_, times| {
            let stays = times.total_ns > middle;
            if !stays {
                rest_ns = rest_ns.saturating_add(times.self_ns);
            }
            stays
        });
        self.rest_ns = self.rest_ns.saturating_add(rest_ns);
    }
}

#[derive(Clone, Debug, Default)]
pub struct ThreadSums {
    pub wall_ns: u64,
    pub ticks: u64,
    pub functions: Sums<CodeKey>,
    pub lines: Sums<CodeKey>,
    pub native: Sums<CodeKey>,
    pub operators: Sums<String>,
    /// Modules of forward passes.
    pub modules: Sums<ModuleKey>,
    /// Classes of modules. They are never subtracted.
    pub classes: FxHashMap<ModuleKey, String>,
    /// Phase by activity, ns.
    pub matrix: FxHashMap<(Phase, Activity), u64>,
}

impl ThreadSums {
    pub fn add(&mut self, other: &ThreadSums) {
        self.wall_ns = self.wall_ns.saturating_add(other.wall_ns);
        self.ticks = self.ticks.saturating_add(other.ticks);
        self.functions.add(&other.functions);
        self.lines.add(&other.lines);
        self.native.add(&other.native);
        self.operators.add(&other.operators);
        self.modules.add(&other.modules);
        for (key, class) in &other.classes {
            if !self.classes.contains_key(key) && self.classes.len() < MOST_KEYS {
                self.classes.insert(key.clone(), class.clone());
            }
        }
        for (cell, ns) in &other.matrix {
            let sum = self.matrix.entry(*cell).or_default();
            *sum = sum.saturating_add(*ns);
        }
    }

    /// Subtracts an interval that was added before.
    pub fn take(&mut self, other: &ThreadSums) {
        self.wall_ns = self.wall_ns.saturating_sub(other.wall_ns);
        self.ticks = self.ticks.saturating_sub(other.ticks);
        self.functions.take(&other.functions);
        self.lines.take(&other.lines);
        self.native.take(&other.native);
        self.operators.take(&other.operators);
        self.modules.take(&other.modules);
        for (cell, ns) in &other.matrix {
            if let Some(sum) = self.matrix.get_mut(cell) {
                *sum = sum.saturating_sub(*ns);
            }
        }
        self.matrix.retain(|_, ns| *ns > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> CodeKey {
        CodeKey {
            name: name.to_owned(),
            file: "train.py".to_owned(),
            line: 1,
        }
    }

    #[test]
    fn what_is_added_can_be_taken_away() {
        let mut part = ThreadSums {
            wall_ns: 10,
            ticks: 1,
            ..ThreadSums::default()
        };
        part.functions.put(key("step"), 4, 10);
        part.matrix.insert((Phase::Forward, Activity::Gemm), 10);
        let mut sum = ThreadSums::default();
        sum.add(&part);
        sum.add(&part);
        assert_eq!(
            sum.functions.times[&key("step")],
            Times {
                self_ns: 8,
                total_ns: 20
            }
        );
        sum.take(&part);
        assert_eq!((sum.wall_ns, sum.ticks), (10, 1));
        sum.take(&part);
        assert!(sum.functions.times.is_empty() && sum.matrix.is_empty());
    }

    #[test]
    fn too_many_keys_lose_those_of_least_time_and_no_time() {
        let mut sum = Sums::default();
        for number in 0..MOST_KEYS as u64 {
            sum.put(number, number + 1, number + 1);
        }
        let mut more = Sums::default();
        more.put(u64::MAX, 7_000_000, 7_000_000);
        sum.add(&more);
        assert!(sum.times.len() <= MOST_KEYS / 2 + 1);
        assert!(sum.times.contains_key(&u64::MAX));
        let kept: u64 = sum.times.values().map(|times| times.self_ns).sum();
        let all = (1..=MOST_KEYS as u64).sum::<u64>() + 7_000_000;
        assert_eq!(kept + sum.rest_ns, all);
    }
}
