//! Whatever happens to a thread, its ticks, its time, and its CPU and run queue time are charged
//! exactly once.

use super::{Charge, Charged, Deferred, KeptState, Ledger, TimePoint};
use crate::model::sample::ThreadState;
use crate::sampling::schedule::Tick;
use proptest::collection::vec;
use proptest::prelude::*;

const PERIOD_NS: u64 = 1_000_000;
const THREADS: usize = 3;

/// What a tick does to one thread.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// Polled in a later tick: it has long been asleep, or other trainers have their turn.
    NotPolled,
    /// Not selected by `--thread-name`, or dead while others live.
    NotSelected,
    /// Dead for the first time.
    Discarded,
    /// Found without the GIL under `--gil`.
    PollDiscarded,
    Reused,
    /// Over the budget, or another stop is outstanding.
    Deferred,
    /// It woke during the read.
    Woken,
    /// A sleeper that was not stopped.
    SleepDeferred,
    /// Its stop was requested; it blocked before the stop landed, or has not stopped yet.
    DeferredAfterStop(u64),
    Stopped(u64),
    StoppedAsleep(u64),
    Asleep,
    Unstopped,
    NotCaptured,
    /// The poll failed, or nothing was recorded in the tick.
    Vanished,
}

#[derive(Clone, Copy, Debug)]
struct PerThread {
    outcome: Outcome,
    ran: (u64, u64),
    /// A stop requested in an earlier tick lands before this tick is charged, and finds the thread
    /// running or asleep.
    late: Option<Deferred>,
}

#[derive(Clone, Debug)]
struct Step {
    missed: u64,
    threads: Vec<PerThread>,
    /// A segment ends.
    flushes: bool,
    paused_ns: u64,
}

/// One thread: its ledger, and the expected sum of its charges.
struct Subject {
    ledger: Ledger,
    charged: Charge,
    discarded: Charge,
    /// All of its time so far, and the time up to its last poll.
    total: Charge,
    polled: Charge,
}

impl Charge {
    fn time(weight_ns: u64, ticks: u32) -> Self {
        Self {
            weight_ns,
            ticks,
            ..Self::default()
        }
    }
}

impl Ledger {
    fn pending(&self) -> Charge {
        let mut pending = self
            .reused
            .map_or(Charge::default(), |(_, reused)| reused.charge);
        for part in [self.open, self.unpolled, self.running, self.asleep] {
            pending += part;
        }
        pending
    }
}

const KEPT: KeptState = KeptState {
    state: ThreadState::Sleeping,
    syscall: None,
};

impl Subject {
    fn new(accounted_to: TimePoint) -> Self {
        Self {
            ledger: Ledger::new(accounted_to),
            charged: Charge::default(),
            discarded: Charge::default(),
            total: Charge::default(),
            polled: Charge::default(),
        }
    }

    fn discard_since_poll(&mut self) {
        self.discarded.weight_ns += self.total.weight_ns - self.polled.weight_ns;
        self.discarded.ticks += self.total.ticks - self.polled.ticks;
        self.polled = self.total;
    }

    fn emit(&mut self, charged: Charged) {
        self.charged += charged.charge;
    }

    fn flush(&mut self) {
        if let Some((_, reused)) = self.ledger.take_reused() {
            self.emit(reused);
        }
    }

    /// Returns how long the stop took, ns.
    fn tick(&mut self, from: TimePoint, tick: Tick, step: PerThread) -> u64 {
        let now = Charge::time(tick.weight_ns(), 1);
        self.total += now;
        match step.outcome {
            Outcome::NotPolled => return 0,
            Outcome::NotSelected => {
                self.ledger.discard_to(from.after(tick));
                self.discard_since_poll();
                return 0;
            }
            _ => {}
        }
        self.ledger.poll(from, tick);
        self.ledger.add_scheduled(step.ran);
        (self.total.run_ns, self.total.queue_ns) = (
            self.total.run_ns + step.ran.0,
            self.total.queue_ns + step.ran.1,
        );
        self.polled = self.total;
        if let Some(kind) = step.late.filter(|_| self.ledger.has_deferred()) {
            let charged = self.ledger.charge_late(kind, tick.end_ns);
            self.emit(charged);
        }
        let mut stop = |ns| {
            self.ledger.stopped_for(ns);
            self.total.weight_ns += ns;
            self.polled.weight_ns += ns;
            ns
        };
        let (running, asleep) = (Some(Deferred::Running), Some(Deferred::Asleep));
        let (took_ns, charged) = match step.outcome {
            Outcome::NotPolled | Outcome::NotSelected | Outcome::Vanished => (0, None),
            Outcome::Discarded => {
                self.ledger.discard();
                self.discarded += now;
                self.discarded.run_ns += step.ran.0;
                self.discarded.queue_ns += step.ran.1;
                (0, None)
            }
            Outcome::PollDiscarded => {
                for part in [self.ledger.open, self.ledger.unpolled] {
                    self.discarded += part;
                }
                self.ledger.discard_poll();
                (0, None)
            }
            Outcome::Reused => {
                self.ledger.reuse(KEPT);
                (0, None)
            }
            Outcome::Deferred => {
                self.ledger.defer(Deferred::Running);
                (0, None)
            }
            Outcome::Woken => {
                self.ledger.defer_tick(Deferred::Asleep);
                (0, None)
            }
            Outcome::SleepDeferred => {
                self.ledger.defer(Deferred::Asleep);
                (0, None)
            }
            Outcome::DeferredAfterStop(ns) => {
                let took_ns = stop(ns);
                self.ledger.defer(Deferred::Running);
                (took_ns, None)
            }
            Outcome::Stopped(ns) => (stop(ns), Some(self.ledger.charge(running))),
            Outcome::StoppedAsleep(ns) => (stop(ns), Some(self.ledger.charge(asleep))),
            Outcome::Asleep => (0, Some(self.ledger.charge(asleep))),
            Outcome::Unstopped => (0, Some(self.ledger.charge(running))),
            Outcome::NotCaptured => (0, Some(self.ledger.charge(None))),
        };
        if let Some(charged) = charged {
            self.emit(charged);
            self.flush();
        }
        took_ns
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut accounted = self.charged;
        accounted += self.discarded;
        accounted += self.ledger.pending();
        prop_assert_eq!(accounted, self.polled);
        Ok(())
    }

    /// It has exited, or sampling ends: nothing may stay pending.
    fn finish(&mut self, end: TimePoint) -> Result<(), TestCaseError> {
        self.ledger.finish(end, KEPT);
        self.polled = self.total;
        self.flush();
        self.charged += self.ledger.take_deferred();
        prop_assert_eq!(self.ledger.pending(), Charge::default());
        self.check()
    }
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let stop_ns = || 0..3 * PERIOD_NS;
    prop_oneof![
        2 => Just(Outcome::NotPolled),
        1 => Just(Outcome::NotSelected),
        1 => Just(Outcome::Discarded),
        1 => Just(Outcome::PollDiscarded),
        2 => Just(Outcome::Reused),
        2 => Just(Outcome::Deferred),
        1 => Just(Outcome::Woken),
        1 => Just(Outcome::SleepDeferred),
        1 => stop_ns().prop_map(Outcome::DeferredAfterStop),
        2 => stop_ns().prop_map(Outcome::Stopped),
        1 => stop_ns().prop_map(Outcome::StoppedAsleep),
        1 => Just(Outcome::Asleep),
        1 => Just(Outcome::Unstopped),
        1 => Just(Outcome::NotCaptured),
        1 => Just(Outcome::Vanished),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let late = prop_oneof![
        4 => Just(None),
        1 => Just(Some(Deferred::Running)),
        1 => Just(Some(Deferred::Asleep)),
    ];
    let ran = (0..PERIOD_NS, 0..PERIOD_NS);
    let thread =
        (outcomes(), ran, late).prop_map(|(outcome, ran, late)| PerThread { outcome, ran, late });
    let rarely = |range| prop_oneof![5 => Just(0), 1 => range];
    let step = (
        rarely(1..4u64),
        vec(thread, THREADS),
        any::<bool>(),
        rarely(1..9 * PERIOD_NS),
    );
    let step = step.prop_map(|(missed, threads, flushes, paused_ns)| Step {
        missed,
        threads,
        flushes,
        paused_ns,
    });
    vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    /// `gil_only`: the longest stop is charged to no other thread.
    #[test]
    fn every_tick_of_every_thread_is_charged_once(steps in steps(), gil_only: bool) {
        let mut accounted_to = TimePoint { ns: 7 * PERIOD_NS, ticks: 0 };
        let mut subjects: Vec<Subject> = (0..THREADS).map(|_| Subject::new(accounted_to)).collect();
        for step in steps {
            let tick = Tick {
                start_ns: accounted_to.ns,
                end_ns: accounted_to.ns + (1 + step.missed) * PERIOD_NS,
                late: step.missed > 0,
                missed: step.missed,
            };
            let mut took_ns = [0; THREADS];
            for ((subject, &thread), took_ns) in subjects.iter_mut().zip(&step.threads).zip(&mut took_ns) {
                *took_ns = subject.tick(accounted_to, tick, thread);
            }
            accounted_to = accounted_to.after(tick);
            let longest_ns = took_ns.iter().copied().max().unwrap_or(0);
            let before = accounted_to;
            accounted_to.ns += longest_ns;
            for (subject, took_ns) in subjects.iter_mut().zip(took_ns) {
                match gil_only {
                    true => subject.ledger.exclude(before, longest_ns),
                    false => subject.total.weight_ns += longest_ns - took_ns,
                }
                if step.flushes {
                    subject.flush();
                }
                subject.check()?;
            }
            if step.paused_ns > 0 {
                for subject in &mut subjects {
                    subject.ledger.exclude(accounted_to, step.paused_ns);
                    subject.check()?;
                }
                accounted_to.ns += step.paused_ns;
            }
        }
        for subject in &mut subjects {
            subject.finish(accounted_to)?;
        }
    }
}

/// Under `--gil`, where trainers take turns: each poll represents the ticks before it, whether it
/// finds the GIL held or not.
#[test]
fn the_share_of_the_gil_is_not_that_of_the_polls_that_were_left_out() {
    const TURNS: u64 = 4;
    let mut ledger = Ledger::new(TimePoint::default());
    let (mut now, mut held_ticks) = (TimePoint::default(), 0);
    for number in 0..TURNS * 100 {
        let tick = Tick {
            start_ns: now.ns,
            end_ns: now.ns + PERIOD_NS,
            late: false,
            missed: 0,
        };
        if number % TURNS == 0 {
            ledger.poll(now, tick);
            match number / TURNS % 2 {
                0 => ledger.discard_poll(),
                _ => held_ticks += ledger.charge(Some(Deferred::Running)).charge.ticks,
            }
        }
        now = now.after(tick);
    }
    assert_eq!(held_ticks, 200);
}
