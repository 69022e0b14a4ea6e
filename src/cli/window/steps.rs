//! When a window is asked for: once the program trains, and nothing is compiled.

use crate::model::category::Phase;
use crate::model::segment::Segment;

use crate::torch::rules::{PhaseMark, RuleSet, last_part};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// How long steps are seen before: what ends soon after its start is left alone, because the end of
/// a process in its window may be a crash.
const SETTLED_NS: u64 = 10_000_000_000;
/// Steps that are seen before.
const SETTLED_STEPS: u64 = 3;
/// How long nothing was compiled, and how late a step may be at least.
const QUIET_NS: u64 = 3_000_000_000;
/// How long those that train wait for others that began later.
const OTHERS_NS: u64 = 20_000_000_000;
const COMPILES: Option<PhaseMark> = Some(PhaseMark::Whole(Phase::Compile));
/// Functions of torch.profiler, and of the profiler below it, that run while it is used, and not
/// when it is imported or `record_function` is used (torch 2.15).
const PROFILER: &str = "torch/profiler/profiler.py";
const AUTOGRAD_PROFILER: &str = "torch/autograd/profiler.py";
const PROFILES_AUTOGRAD: [&str; 4] = [
    "profile.__enter__",
    "profile.__exit__",
    "profile._prepare_trace",
    "profile._start_trace",
];
const PROFILES: [&str; 8] = [
    "__enter__",
    "start",
    "step",
    "prepare_trace",
    "start_trace",
    "stop_trace",
    "_transit_action",
    "export_chrome_trace",
];
/// Maximum number of counters that are followed.
const MOST_COUNTERS: usize = 4096;

/// What the segments show of it.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// By pid and number.
    counters: FxHashMap<(i32, u32), Counter>,
    /// When something was compiled last, CLOCK_MONOTONIC.
    compiled_ns: Option<u64>,
    /// Since when a process may be given a window, CLOCK_MONOTONIC.
    ready_ns: Option<u64>,
    /// The program uses torch.profiler itself.
    profiles: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    /// Whether it counts an optimizer's steps, not batches.
    counts_steps: bool,
    value: Option<u64>,
    /// Of its changes, CLOCK_MONOTONIC.
    first_ns: u64,
    last_ns: u64,
    changes: u64,
    /// How far it went after its first change.
    counted: u64,
    /// The greatest common divisor of its changes: a step may count more than one.
    unit: u64,
}

impl Counter {
    /// Mean time of a step; `None` before the second.
    fn step_ns(&self) -> Option<u64> {
        let steps = self.counted.checked_div(self.unit)?;
        (self.last_ns - self.first_ns).checked_div(steps)
    }

    fn reads(&mut self, value: u64, time_ns: u64) {
        let before = self.value.replace(value);
        let Some(change) = before
            .map(|before| before.abs_diff(value))
            .filter(|&by| by > 0)
        else {
            return;
        };
        match self.changes {
            0 => self.first_ns = time_ns,
            _ => self.counted = self.counted.saturating_add(change),
        }
        self.unit = greatest_common_divisor(self.unit, change);
        self.last_ns = time_ns.max(self.first_ns);
        self.changes += 1;
    }

    fn is_settled(&self, now_ns: u64) -> bool {
        let late_ns = self
            .step_ns()
            .map_or(0, |ns| ns.saturating_mul(3).max(QUIET_NS));
        self.changes >= SETTLED_STEPS
            && now_ns.saturating_sub(self.first_ns) >= SETTLED_NS
            && now_ns.saturating_sub(self.last_ns) <= late_ns
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    NotYet,
    /// It would disturb the program's own use of the profiler.
    Never,
    /// Processes that train, and the mean length of their steps, ns.
    Now(Vec<i32>, u64),
}

impl Steps {
    /// Takes the next segment.
    pub(super) fn take(&mut self, segment: &Segment, rules: &RuleSet) {
        let tables = &segment.tables;
        for code in tables.codes.iter() {
            let name = code.name.as_str();
            if code.file.ends_with(PROFILER) && PROFILES.contains(&last_part(name))
                || code.file.ends_with(AUTOGRAD_PROFILER) && PROFILES_AUTOGRAD.contains(&name)
            {
                self.profiles = true;
            } else if rules.python(&code.file, &code.name).class.mark == COMPILES {
                self.compiled_ns = Some(segment.end_ns);
            }
        }
        for point in &segment.sideband.points {
            let Some(info) = tables.counters.get(point.counter.index()) else {
                continue;
            };
            let Some(process) = tables.processes.get(info.process.index()) else {
                continue;
            };
            if self.counters.len() >= MOST_COUNTERS {
                return;
            }
            let counter = self.counters.entry((process.pid, info.number)).or_default();
            counter.counts_steps = info.kind.counts_steps();
            counter.reads(point.value, point.time_ns);
        }
    }

    /// What is to be done at this time, CLOCK_MONOTONIC.
    pub(super) fn due(&mut self, now_ns: u64) -> Due {
        if self.profiles {
            return Due::Never;
        }
        // The counter of each process that changes: of steps, if there is one.
        let mut trainers: BTreeMap<i32, Counter> = BTreeMap::new();
        for (&(pid, _), counter) in self.counters.iter().filter(|(_, each)| each.changes > 0) {
            let best = trainers.entry(pid).or_default();
            let rank = |counter: &Counter| (counter.counts_steps, counter.changes);
            if rank(counter) > rank(best) {
                *best = *counter;
            }
        }
        let is_quiet = |ns: u64| now_ns.saturating_sub(ns) >= QUIET_NS;
        if !self.compiled_ns.is_none_or(is_quiet) {
            return Due::NotYet;
        }
        let all = trainers.len();
        trainers.retain(|_, counter| counter.is_settled(now_ns));
        if trainers.is_empty() {
            return Due::NotYet;
        }
        let waits_ns = now_ns.saturating_sub(*self.ready_ns.get_or_insert(now_ns));
        if trainers.len() < all && waits_ns < OTHERS_NS {
            return Due::NotYet;
        }
        let lengths = trainers.values().filter_map(Counter::step_ns);
        Due::Now(
            trainers.keys().copied().collect(),
            lengths.max().unwrap_or(0),
        )
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::code::{CodeInfo, PythonVersion};
    use crate::model::ids::{ProcessId, ThreadId};
    use crate::model::process::ProcessInfo;
    use crate::model::progress::{CounterInfo, CounterKind, ProgressPoint};

    const SECOND: u64 = 1_000_000_000;

    /// The second before `at`, in which each of the processes has ended a step.
    fn second(at: u64, pids: &[i32]) -> Segment {
        let mut segment = Segment {
            end_ns: at * SECOND,
            ..Segment::default()
        };
        for (index, &pid) in pids.iter().enumerate() {
            segment.tables.processes.push(ProcessInfo {
                pid,
                ..ProcessInfo::default()
            });
            let counter = segment.tables.counters.intern(&CounterInfo {
                process: ProcessId::from_index(index),
                number: 0,
                kind: CounterKind::OptimizerState,
                class: String::new(),
                file: String::new(),
                line: 0,
                facts: Vec::new(),
            });
            segment.sideband.points.push(ProgressPoint {
                counter,
                thread: ThreadId(0),
                before_ns: at * SECOND,
                time_ns: at * SECOND,
                value: at,
            });
        }
        segment
    }

    fn with_code(mut segment: Segment, file: &str, name: &str) -> Segment {
        segment.tables.codes.intern(&CodeInfo {
            name: name.to_owned(),
            file: file.to_owned(),
            first_line: 1,
            version: PythonVersion::new(3, 12),
            content_hash: 0,
        });
        segment
    }

    /// When it is due, in seconds, and for what.
    fn due(steps: &mut Steps, segments: impl Iterator<Item = Segment>) -> Option<(u64, Due)> {
        let mut segments = segments;
        segments.find_map(|segment| {
            steps.take(&segment, RuleSet::built_in());
            let due = steps.due(segment.end_ns);
            (due != Due::NotYet).then_some((segment.end_ns / SECOND, due))
        })
    }

    #[test]
    fn it_is_due_after_ten_seconds_of_steps() {
        let found = due(&mut Steps::default(), (1..30).map(|at| second(at, &[7])));
        assert_eq!(found, Some((12, Due::Now(vec![7], SECOND))));
        let found = due(&mut Steps::default(), (1..30).map(|at| second(at, &[])));
        assert_eq!(found, None);
    }

    #[test]
    fn ranks_wait_for_each_other_but_not_for_ever() {
        let begin = |at| second(at, if at < 9 { &[7] } else { &[7, 8] });
        let found = due(&mut Steps::default(), (1..30).map(begin));
        assert_eq!(found, Some((20, Due::Now(vec![7, 8], SECOND))));
        // One that stands still.
        let begin = |at| second(at, if at < 5 { &[7, 8] } else { &[7] });
        let found = due(&mut Steps::default(), (1..60).map(begin));
        assert_eq!(found, Some((32, Due::Now(vec![7], SECOND))));
    }

    #[test]
    fn steps_between_two_readings_count() {
        // Two changes for each step, and 3 to 5 steps for each reading.
        let mut counter = Counter::default();
        let mut value = 0;
        for (at, steps) in (1..9).zip([3, 5, 4, 3, 5, 4, 3, 5]) {
            value += 2 * steps;
            counter.reads(value, at * SECOND);
        }
        // The first reading is no change, and the first change begins the time: 24 steps in 6 s.
        assert_eq!(counter.step_ns(), Some(SECOND / 4));
    }

    #[test]
    fn it_waits_while_something_is_compiled() {
        let compiles = |at| match at < 20 {
            true => with_code(
                second(at, &[7]),
                "/x/torch/_dynamo/convert_frame.py",
                "_compile",
            ),
            false => second(at, &[7]),
        };
        let found = due(&mut Steps::default(), (1..30).map(compiles));
        assert_eq!(found, Some((22, Due::Now(vec![7], SECOND))));
    }

    #[test]
    fn the_programs_own_profiler_has_precedence() {
        let file = "/x/torch/profiler/profiler.py";
        let uses = |name| move |at| with_code(second(at, &[7]), file, name);
        let mut steps = Steps::default();
        let found = due(&mut steps, (1..30).map(uses("_KinetoProfile.start_trace")));
        assert_eq!(found, Some((1, Due::Never)));
        let mut steps = Steps::default();
        let found = due(&mut steps, (1..30).map(uses("<module>")));
        assert_eq!(found.map(|(at, _)| at), Some(12));
    }
}
