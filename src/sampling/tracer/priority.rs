//! When the tracer runs at raised priority: while a thread is stopped for it, or may stop at any
//! time because a request is outstanding. Otherwise a stop would last as long as the tracer waits
//! for a CPU. Afterwards it returns to its normal priority, since a raised thread preempts threads
//! that compute.
//!
//! A thread has one priority, so a single owner raises and restores it for all reasons.

/// Steps of the tracer that affect its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PriorityEvent {
    /// It is about to ask threads to stop.
    RequestingStops,
    /// It has made all its requests; whether some are outstanding.
    RequestedStops { outstanding: bool },
    /// It collected the late stops; whether requests are still outstanding.
    Collected { outstanding: bool },
    /// It will wake on the CPU of a training thread.
    WillWakeOnTrainer,
    /// It woke, and has read the training threads.
    TrainersRead,
    /// It waits for no stop any more: threads that have not stopped are blocked in the kernel, or
    /// sampling pauses or ends.
    Released,
}

/// The reasons for the raised priority, and its guard: dropping a `Held` restores the normal
/// priority.
#[derive(Debug)]
pub(super) struct TracerPriority<Held> {
    requesting: bool,
    outstanding: bool,
    wakes: bool,
    held: Option<Held>,
}

impl<Held> Default for TracerPriority<Held> {
    fn default() -> Self {
        Self {
            requesting: false,
            outstanding: false,
            wakes: false,
            held: None,
        }
    }
}

impl<Held> TracerPriority<Held> {
    /// Records `event`, then raises the priority with `take` or restores it, as the reasons
    /// require.
    pub(super) fn on(&mut self, event: PriorityEvent, take: impl FnOnce() -> Held) {
        match event {
            PriorityEvent::RequestingStops => self.requesting = true,
            PriorityEvent::RequestedStops { outstanding } => {
                self.requesting = false;
                self.outstanding = outstanding;
            }
            // More requests may follow.
            PriorityEvent::Collected { outstanding } => self.outstanding = outstanding,
            PriorityEvent::WillWakeOnTrainer => self.wakes = true,
            PriorityEvent::TrainersRead => self.wakes = false,
            PriorityEvent::Released => {
                (self.requesting, self.outstanding, self.wakes) = (false, false, false)
            }
        }
        if !(self.requesting || self.outstanding || self.wakes) {
            self.held = None;
        } else if self.held.is_none() {
            self.held = Some(take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    const EVENTS: [PriorityEvent; 8] = [
        PriorityEvent::RequestingStops,
        PriorityEvent::RequestedStops { outstanding: false },
        PriorityEvent::RequestedStops { outstanding: true },
        PriorityEvent::Collected { outstanding: false },
        PriorityEvent::Collected { outstanding: true },
        PriorityEvent::WillWakeOnTrainer,
        PriorityEvent::TrainersRead,
        PriorityEvent::Released,
    ];
    /// Long enough for every order of requesting, collecting, waking and releasing.
    const LONGEST: u32 = 5;

    /// The scheduling policy of one thread as the kernel keeps it: the last call wins.
    #[derive(Clone, Default)]
    struct Kernel(Rc<Cell<bool>>);

    struct Raised(Kernel);

    impl Kernel {
        fn raise(&self) -> Raised {
            self.0.set(true);
            Raised(self.clone())
        }
    }

    impl Drop for Raised {
        fn drop(&mut self) {
            self.0.0.set(false);
        }
    }

    /// An owner of the priority.
    trait Decides: Default {
        fn on(&mut self, event: PriorityEvent, kernel: &Kernel);
    }

    impl Decides for TracerPriority<Raised> {
        fn on(&mut self, event: PriorityEvent, kernel: &Kernel) {
            TracerPriority::on(self, event, || kernel.raise());
        }
    }

    /// An earlier design: each reason raised the priority on its own.
    #[derive(Default)]
    struct TwoOwners {
        stops: Option<Raised>,
        wakes: Option<Raised>,
    }

    impl Decides for TwoOwners {
        fn on(&mut self, event: PriorityEvent, kernel: &Kernel) {
            match event {
                PriorityEvent::RequestingStops
                | PriorityEvent::RequestedStops { outstanding: true }
                | PriorityEvent::Collected { outstanding: true } => {
                    self.stops.get_or_insert_with(|| kernel.raise());
                }
                PriorityEvent::RequestedStops { outstanding: false }
                | PriorityEvent::Collected { outstanding: false } => {
                    self.stops = None;
                }
                PriorityEvent::WillWakeOnTrainer => {
                    self.wakes.get_or_insert_with(|| kernel.raise());
                }
                PriorityEvent::TrainersRead => self.wakes = None,
                PriorityEvent::Released => (self.stops, self.wakes) = (None, None),
            }
        }
    }

    /// The rule that is tested: whether a thread may be stopped, or the tracer wakes for a trainer.
    #[derive(Default)]
    struct Target {
        requesting: bool,
        outstanding: bool,
        woken_for: bool,
    }

    impl Target {
        fn on(&mut self, event: PriorityEvent) {
            match event {
                PriorityEvent::RequestingStops => self.requesting = true,
                PriorityEvent::RequestedStops { outstanding } => {
                    (self.requesting, self.outstanding) = (false, outstanding);
                }
                PriorityEvent::Collected { outstanding } => self.outstanding = outstanding,
                PriorityEvent::WillWakeOnTrainer => self.woken_for = true,
                PriorityEvent::TrainersRead => self.woken_for = false,
                PriorityEvent::Released => *self = Self::default(),
            }
        }
    }

    /// The first series of events after which the rule is broken.
    fn broken_by<D: Decides>() -> Option<Vec<PriorityEvent>> {
        let count = EVENTS.len();
        (1..=LONGEST).find_map(|length| {
            (0..count.pow(length)).find_map(|number| {
                let digits = (0..length).map(|at| number / count.pow(at) % count);
                let events: Vec<PriorityEvent> = digits.map(|digit| EVENTS[digit]).collect();
                let (mut decides, mut target) = (D::default(), Target::default());
                let kernel = Kernel::default();
                for &event in &events {
                    decides.on(event, &kernel);
                    target.on(event);
                }
                let must = target.requesting || target.outstanding || target.woken_for;
                (kernel.0.get() != must).then_some(events)
            })
        })
    }

    #[test]
    fn the_tracer_is_in_front_as_long_as_a_thread_may_be_stopped_and_no_longer() {
        assert_eq!(broken_by::<TracerPriority<Raised>>(), None);
    }

    /// With two owners, a late thread stayed stopped until torchspy got a CPU, once the wake-up on
    /// a trainer's CPU was over.
    #[test]
    fn two_owners_of_the_priority_take_it_from_each_other() {
        assert!(broken_by::<TwoOwners>().is_some());
        let kernel = Kernel::default();
        let (mut two, mut one) = (TwoOwners::default(), TracerPriority::default());
        for event in [
            PriorityEvent::WillWakeOnTrainer,
            PriorityEvent::RequestingStops,
            PriorityEvent::RequestedStops { outstanding: true },
            PriorityEvent::TrainersRead,
        ] {
            two.on(event, &kernel);
        }
        assert!(!kernel.0.get());
        let kernel = Kernel::default();
        for event in [
            PriorityEvent::WillWakeOnTrainer,
            PriorityEvent::RequestingStops,
            PriorityEvent::RequestedStops { outstanding: true },
            PriorityEvent::TrainersRead,
        ] {
            Decides::on(&mut one, event, &kernel);
        }
        assert!(kernel.0.get());
        Decides::on(
            &mut one,
            PriorityEvent::Collected { outstanding: false },
            &kernel,
        );
        assert!(!kernel.0.get());
    }

    /// A snapshot stops threads one by one, and late ones are collected in between.
    #[test]
    fn a_late_thread_that_is_taken_ends_no_round_of_stops() {
        let kernel = Kernel::default();
        let mut priority = TracerPriority::default();
        Decides::on(&mut priority, PriorityEvent::RequestingStops, &kernel);
        Decides::on(
            &mut priority,
            PriorityEvent::Collected { outstanding: false },
            &kernel,
        );
        assert!(kernel.0.get());
        Decides::on(
            &mut priority,
            PriorityEvent::RequestedStops { outstanding: false },
            &kernel,
        );
        assert!(!kernel.0.get());
    }
}
