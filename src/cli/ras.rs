//! Asks NCCL how far each rank is when nothing has moved for long.
//!
//! It is asked on a thread of its own: neither the sampler nor the writer waits for the answer,
//! but for that at the end of a recording.

use super::nccl::{ask_sockets, has_threads_of_nccl};
use crate::analysis::dump::ras::summary;
use crate::analysis::progress::standstill::is_long;
use crate::model::frame::Frame;
use crate::model::ids::{ProcessId, StackId};
use crate::model::nccl_ras::{KeptRas, RasAnswer};
use crate::model::process::ProcessInfo;
use crate::model::progress::{CounterKind, facts};
use crate::model::segment::Segment;
use crate::model::tables::Tables;
use crate::os::nccl_ras::Claim;
use crate::sampling::session::SegmentSink;
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use rustc_hash::{FxHashMap, FxHasher};
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::io;
use std::thread::Builder;
use std::time::Duration;

/// Least time between two questions, ns.
const EVERY_NS: u64 = 30_000_000_000;
/// How long the end of a recording waits for an answer: those of all sockets of a machine.
const LONGEST: Duration = Duration::from_secs(20);

/// A sink, to which answers are added.
pub(crate) struct RasSink<S> {
    sink: S,
    asking: Asking,
    unwritten: Option<KeptRas>,
    /// One in which nothing moves: a segment without its samples does not have it.
    process: Option<ProcessInfo>,
}

impl<S> RasSink<S> {
    /// The sink of one recording, in which an answer is once.
    pub(crate) fn new(sink: S) -> Self {
        Self {
            sink,
            asking: Asking::default(),
            unwritten: None,
            process: None,
        }
    }

    /// The sink of recordings of which the earlier ones are removed: each answer is written, also
    /// where it is that before.
    pub(crate) fn of_ring(sink: S) -> Self {
        let mut new = Self::new(sink);
        new.asking.repeats = true;
        new
    }

    /// The segment with the answer, if there is one.
    fn with_answer(&mut self, segment: &Segment) -> Option<Segment> {
        let is_still = |process: &&ProcessInfo| self.asking.still.contains(&process.pid);
        let here = segment.tables.processes.iter().find(is_still);
        if let Some(here) = here.filter(|here| self.process.as_ref() != Some(here)) {
            self.process = Some(here.clone());
        }
        let process = self.process.as_ref()?;
        let kept = self.unwritten.take()?;
        let mut with = segment.clone();
        with.add_condition(process, facts::NCCL_RAS, kept.text());
        Some(with)
    }
}

impl<S: SegmentSink> SegmentSink for RasSink<S> {
    fn write(&mut self, segment: &Segment) -> io::Result<()> {
        let answer = self.asking.take(segment);
        self.unwritten = answer.or(self.unwritten.take());
        match self.with_answer(segment) {
            Some(with) => self.sink.write(&with),
            None => self.sink.write(segment),
        }
    }
}

/// The answer that was added to a segment.
pub(crate) fn answered(segment: &Segment) -> Option<KeptRas> {
    let mut conditions = segment.sideband.conditions.iter().rev();
    let answer = conditions.find(|each| each.name == facts::NCCL_RAS)?;
    KeptRas::parse(&answer.value)
}

/// Decides when NCCL is asked, and keeps what it answered.
pub(crate) struct Asking {
    ask: Ask,
    moves: Moves,
    /// Processes in which nothing has moved for long.
    still: BTreeSet<i32>,
    /// While an answer is under way.
    under_way: Option<Receiver<(KeptRas, Vec<Claim>)>>,
    /// When it was asked last, CLOCK_MONOTONIC.
    asked_ns: Option<u64>,
    /// While nothing moves.
    kept: Option<KeptRas>,
    claims: Vec<Claim>,
    /// An answer that is the last one's counts as another.
    repeats: bool,
}

/// Asks for these processes. Other recorders of the machine do not ask as long as a claim lasts.
type Ask = fn(&[i32], &mut Vec<Claim>) -> Vec<RasAnswer>;

impl Default for Asking {
    fn default() -> Self {
        Self::new(|pids, claims| {
            let users = pids.iter().copied();
            let users: Vec<i32> = users.filter(|&pid| has_threads_of_nccl(pid)).collect();
            ask_sockets(&users, |address| Claim::add(claims, address))
        })
    }
}

impl Asking {
    fn new(ask: Ask) -> Self {
        Self {
            ask,
            moves: Moves::default(),
            still: BTreeSet::new(),
            under_way: None,
            asked_ns: None,
            kept: None,
            claims: Vec::new(),
            repeats: false,
        }
    }

    /// What was answered last, as long as nothing has moved since.
    pub(crate) fn kept(&self) -> Option<&KeptRas> {
        self.kept.as_ref()
    }

    /// Takes the next segment. Returns an answer that is another one than the last.
    pub(crate) fn take(&mut self, segment: &Segment) -> Option<KeptRas> {
        self.moves.take(segment);
        let now_ns = segment.end_ns;
        self.still = self.moves.still(now_ns);
        if self.still.is_empty() {
            (self.under_way, self.kept, self.claims) = (None, None, Vec::new());
            return None;
        }
        let since_ns = |asked_ns| now_ns.saturating_sub(asked_ns);
        let is_due = self.asked_ns.is_none_or(|ns| since_ns(ns) >= EVERY_NS);
        if self.under_way.is_none() && is_due {
            self.asked_ns = Some(now_ns);
            self.under_way = self.begin(now_ns);
        }
        let answer = self.under_way.as_ref()?;
        let (kept, claims) = match segment.last {
            true => answer.recv_timeout(LONGEST).ok()?,
            false => match answer.try_recv() {
                Ok(answer) => answer,
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => {
                    self.under_way = None;
                    return None;
                }
            },
        };
        (self.under_way, self.claims) = (None, claims);
        let before = self.kept.replace(kept.clone());
        let answers = before.map_or(Vec::new(), |before| before.answers);
        (self.repeats || answers != kept.answers).then_some(kept)
    }

    fn begin(&mut self, time_ns: u64) -> Option<Receiver<(KeptRas, Vec<Claim>)>> {
        let (send, answer) = bounded(1);
        let (ask, mut claims) = (self.ask, std::mem::take(&mut self.claims));
        let pids: Vec<i32> = self.still.iter().copied().collect();
        let thread = Builder::new().name("nccl-ras".to_owned()).spawn(move || {
            let answers = ask(&pids, &mut claims).iter().map(summary).collect();
            // Nobody waits for it any more if something has moved.
            let _ = send.send((KeptRas { time_ns, answers }, claims));
        });
        thread.is_ok().then_some(answer)
    }
}

/// What moves in a recording: counters of steps, or main threads where no counter was read. One
/// that is first seen in a process that hangs is not found.
#[derive(Debug, Default)]
struct Moves {
    /// The start of the recording and the first reading, CLOCK_MONOTONIC.
    start_ns: Option<u64>,
    first_ns: u64,
    step_ns: u64,
    /// By pid, number and kind of a counter: its value, and how often it changed.
    counters: FxHashMap<(i32, u32, CounterKind), (u64, u64)>,
    /// By pid: the lines of the main thread's stack, hashed, and since when it has been there.
    lines: FxHashMap<i32, (u64, u64)>,
}

impl Moves {
    fn take(&mut self, segment: &Segment) {
        self.start_ns.get_or_insert(segment.start_ns);
        let tables = &segment.tables;
        let process = |id: ProcessId| tables.processes.get(id.index());
        for point in &segment.sideband.points {
            let info = tables.counters.get(point.counter.index());
            let Some(info) = info.filter(|info| info.kind.counts_steps()) else {
                continue;
            };
            let Some(process) = process(info.process) else {
                continue;
            };
            if self.counters.is_empty() {
                (self.first_ns, self.step_ns) = (point.time_ns, point.time_ns);
            }
            let key = (process.pid, info.number, info.kind);
            let (value, changes) = self.counters.entry(key).or_insert((point.value, 0));
            if *value != point.value {
                (*value, *changes) = (point.value, *changes + 1);
                self.step_ns = self.step_ns.max(point.time_ns);
            }
        }
        if !self.counters.is_empty() {
            return;
        }
        for sample in &segment.samples {
            let thread = tables.threads.get(&sample.thread);
            let Some(process) = thread.and_then(|thread| process(thread.process)) else {
                continue;
            };
            let is_main = thread.is_some_and(|thread| thread.tid == process.pid);
            if let Some(lines) = sample
                .stack
                .filter(|_| is_main)
                .and_then(|stack| lines(tables, stack))
            {
                let known = self
                    .lines
                    .entry(process.pid)
                    .or_insert((lines, sample.start_ns));
                if known.0 != lines {
                    *known = (lines, sample.start_ns);
                }
            }
        }
    }

    /// The processes in which nothing has moved for long.
    fn still(&self, now_ns: u64) -> BTreeSet<i32> {
        let start_ns = self.start_ns.unwrap_or(now_ns);
        let is_long = |since_ns: u64, step_ns| {
            let wall_ns = now_ns.saturating_sub(start_ns);
            is_long(now_ns.saturating_sub(since_ns), step_ns, wall_ns)
        };
        if self.counters.is_empty() {
            let lines = self.lines.iter();
            let still = lines.filter(|(_, (_, since_ns))| is_long(*since_ns, 0));
            return still.map(|(pid, _)| *pid).collect();
        }
        let steps = self.counters.values().map(|(_, changes)| *changes).max();
        let step_ns = self.step_ns.saturating_sub(self.first_ns) / steps.unwrap_or(0).max(1);
        match is_long(self.step_ns, step_ns) {
            true => self.counters.keys().map(|(pid, ..)| *pid).collect(),
            false => BTreeSet::new(),
        }
    }
}

/// The lines of a stack's Python functions, hashed; `None` without any.
fn lines(tables: &Tables, stack: StackId) -> Option<u64> {
    let mut hasher = FxHasher::default();
    let mut is_python = false;
    for frame in tables.stacks.leaf_to_root(Some(stack)) {
        if let Frame::Python { code, line, .. } = tables.stacks.frame(frame) {
            is_python = true;
            (tables.codes.get(code.index()), line).hash(&mut hasher);
        }
    }
    is_python.then(|| hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::{CodeId, ThreadId};
    use crate::model::process::ThreadInfo;
    use crate::model::progress::{CounterInfo, ProgressPoint};
    use crate::model::sample::Sample;

    const SECOND: u64 = 1_000_000_000;

    /// One that ends at this second.
    fn segment(at: u64) -> Segment {
        let mut segment = Segment {
            start_ns: (at - 1) * SECOND,
            end_ns: at * SECOND,
            // Answers are waited for.
            last: true,
            ..Segment::default()
        };
        segment.tables.processes.push(ProcessInfo {
            pid: 7,
            ..ProcessInfo::default()
        });
        segment
    }

    fn counted(at: u64, value: u64) -> Segment {
        let mut segment = segment(at);
        let counter = segment.tables.counters.intern(&CounterInfo {
            process: ProcessId::from_index(0),
            number: 0,
            kind: CounterKind::TrainerSteps,
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
            value,
        });
        segment
    }

    fn at_line(at: u64, line: u32) -> Segment {
        let mut segment = segment(at);
        let tables = &mut segment.tables;
        let thread = ThreadInfo {
            tid: 7,
            ..ThreadInfo::default()
        };
        tables.threads.insert(ThreadId(0), thread);
        let code = CodeId::from_index(0);
        let instruction = 0;
        let stack = tables.stacks.intern([Frame::Python {
            code,
            instruction,
            line,
        }]);
        segment.samples.push(Sample {
            stack,
            start_ns: segment.start_ns,
            ..Sample::default()
        });
        segment
    }

    fn off(pids: &[i32], _: &mut Vec<Claim>) -> Vec<RasAnswer> {
        vec![RasAnswer {
            address: "localhost:28028".to_owned(),
            ras: Err(format!("it is off in {pids:?}")),
        }]
    }

    fn time(kept: Option<&KeptRas>) -> Option<u64> {
        kept.map(|kept| kept.time_ns / SECOND)
    }

    #[test]
    fn nccl_is_asked_when_no_step_ends_for_long_and_not_often() {
        let mut asking = Asking::new(off);
        assert_eq!(asking.take(&counted(1, 5)), None);
        assert_eq!(asking.take(&segment(10)), None);
        let kept = asking.take(&segment(11)).unwrap();
        assert_eq!(kept.answers[0].error.as_deref(), Some("it is off in [7]"));
        assert_eq!(time(Some(&kept)), Some(11));
        assert_eq!(asking.take(&segment(40)), None);
        assert_eq!(time(asking.kept()), Some(11));
        // What is answered twice is recorded once.
        assert_eq!(asking.take(&segment(41)), None);
        assert_eq!(time(asking.kept()), Some(41));
        // The last reading is no step.
        asking.take(&counted(42, 5));
        assert_eq!(time(asking.kept()), Some(41));
        asking.take(&counted(43, 6));
        assert_eq!(asking.kept(), None);
    }

    #[test]
    fn without_steps_it_is_asked_when_a_main_thread_stays_at_its_line() {
        let mut asking = Asking::new(off);
        for at in 1..11 {
            assert_eq!(asking.take(&at_line(at, at as u32 / 3)), None);
        }
        assert_eq!(asking.take(&at_line(17, 3)), None);
        assert_eq!(time(asking.take(&at_line(18, 3)).as_ref()), Some(18));
    }
}
