//! When the tracer runs before all other threads: as long as a thread is stopped for it, or may be any time since it was asked to
//! stop. Else a stop would last for as long as the tracer waits for a CPU. Afterwards it steps back, since a thread that runs before
//! all others takes the CPU of whoever computes.
//!
//! The priority is one for the whole thread, so one value alone may take and return it, whatever it is taken for.

/// What the tracer does that bears on its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It is about to ask threads to stop.
    Asking,
    /// It has asked all that it wanted to; whether requests are outstanding.
    Asked { outstanding: bool },
    /// It took those that stopped late; whether requests are outstanding still.
    Collected { outstanding: bool },
    /// It will wake on the CPU of a thread that trains.
    WillWakeOnTrainer,
    /// It woke, and has read the threads that train.
    HasWoken,
    /// It awaits nothing any more: what was asked to stop and has not is in the kernel for good, or sampling pauses or ends.
    LetGo,
}

/// Why the tracer runs before all others, and the priority itself while it does: a `Held` gives it back when it is dropped.
#[derive(Debug)]
pub(super) struct Precedence<Held> {
    asking: bool,
    outstanding: bool,
    wakes: bool,
    held: Option<Held>,
}

impl<Held> Default for Precedence<Held> {
    fn default() -> Self {
        Self {
            asking: false,
            outstanding: false,
            wakes: false,
            held: None,
        }
    }
}

impl<Held> Precedence<Held> {
    /// Takes in what happens; takes the priority with `take`, or gives it back, as that requires.
    pub(super) fn on(&mut self, event: Event, take: impl FnOnce() -> Held) {
        match event {
            Event::Asking => self.asking = true,
            Event::Asked { outstanding } => {
                self.asking = false;
                self.outstanding = outstanding;
            }
            // More may be about to be asked.
            Event::Collected { outstanding } => self.outstanding = outstanding,
            Event::WillWakeOnTrainer => self.wakes = true,
            Event::HasWoken => self.wakes = false,
            Event::LetGo => (self.asking, self.outstanding, self.wakes) = (false, false, false),
        }
        if !(self.asking || self.outstanding || self.wakes) {
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

    const EVENTS: [Event; 8] = [
        Event::Asking,
        Event::Asked { outstanding: false },
        Event::Asked { outstanding: true },
        Event::Collected { outstanding: false },
        Event::Collected { outstanding: true },
        Event::WillWakeOnTrainer,
        Event::HasWoken,
        Event::LetGo,
    ];
    /// Long enough for each order of taking, asking, waking and giving back.
    const LONGEST: u32 = 5;

    /// The scheduling of one thread, as the kernel keeps it: the last call counts, whoever makes it.
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

    /// Whoever decides on the priority.
    trait Decides: Default {
        fn on(&mut self, event: Event, kernel: &Kernel);
    }

    impl Decides for Precedence<Raised> {
        fn on(&mut self, event: Event, kernel: &Kernel) {
            Precedence::on(self, event, || kernel.raise());
        }
    }

    /// As it once was: each reason had a hold on the priority of its own.
    #[derive(Default)]
    struct TwoOwners {
        stops: Option<Raised>,
        wakes: Option<Raised>,
    }

    impl Decides for TwoOwners {
        fn on(&mut self, event: Event, kernel: &Kernel) {
            match event {
                Event::Asking
                | Event::Asked { outstanding: true }
                | Event::Collected { outstanding: true } => {
                    self.stops.get_or_insert_with(|| kernel.raise());
                }
                Event::Asked { outstanding: false } | Event::Collected { outstanding: false } => {
                    self.stops = None;
                }
                Event::WillWakeOnTrainer => {
                    self.wakes.get_or_insert_with(|| kernel.raise());
                }
                Event::HasWoken => self.wakes = None,
                Event::LetGo => (self.stops, self.wakes) = (None, None),
            }
        }
    }

    /// What the target sees of the events: may a thread of it be stopped, and is the tracer to be in front for that or else.
    #[derive(Default)]
    struct Target {
        asking: bool,
        outstanding: bool,
        woken_for: bool,
    }

    impl Target {
        fn on(&mut self, event: Event) {
            match event {
                Event::Asking => self.asking = true,
                Event::Asked { outstanding } => {
                    (self.asking, self.outstanding) = (false, outstanding);
                }
                Event::Collected { outstanding } => self.outstanding = outstanding,
                Event::WillWakeOnTrainer => self.woken_for = true,
                Event::HasWoken => self.woken_for = false,
                Event::LetGo => *self = Self::default(),
            }
        }
    }

    /// The first series of events after which the rule is broken.
    fn broken_by<D: Decides>() -> Option<Vec<Event>> {
        let count = EVENTS.len();
        (1..=LONGEST).find_map(|length| {
            (0..count.pow(length)).find_map(|number| {
                let digits = (0..length).map(|at| number / count.pow(at) % count);
                let events: Vec<Event> = digits.map(|digit| EVENTS[digit]).collect();
                let (mut decides, mut target) = (D::default(), Target::default());
                let kernel = Kernel::default();
                for &event in &events {
                    decides.on(event, &kernel);
                    target.on(event);
                }
                let must = target.asking || target.outstanding || target.woken_for;
                (kernel.0.get() != must).then_some(events)
            })
        })
    }

    #[test]
    fn the_tracer_is_in_front_as_long_as_a_thread_may_be_stopped_and_no_longer() {
        assert_eq!(broken_by::<Precedence<Raised>>(), None);
    }

    /// A thread that was late stood until torchspy got a CPU, once the wake-up on a trainer's CPU was over.
    #[test]
    fn two_owners_of_the_priority_take_it_from_each_other() {
        assert!(broken_by::<TwoOwners>().is_some());
        let kernel = Kernel::default();
        let (mut two, mut one) = (TwoOwners::default(), Precedence::default());
        for event in [
            Event::WillWakeOnTrainer,
            Event::Asking,
            Event::Asked { outstanding: true },
            Event::HasWoken,
        ] {
            two.on(event, &kernel);
        }
        assert!(!kernel.0.get());
        let kernel = Kernel::default();
        for event in [
            Event::WillWakeOnTrainer,
            Event::Asking,
            Event::Asked { outstanding: true },
            Event::HasWoken,
        ] {
            Decides::on(&mut one, event, &kernel);
        }
        assert!(kernel.0.get());
        Decides::on(&mut one, Event::Collected { outstanding: false }, &kernel);
        assert!(!kernel.0.get());
    }

    /// Of one snapshot threads are asked one by one, and late ones are taken in between.
    #[test]
    fn a_late_thread_that_is_taken_ends_no_round_of_stops() {
        let kernel = Kernel::default();
        let mut precedence = Precedence::default();
        Decides::on(&mut precedence, Event::Asking, &kernel);
        Decides::on(
            &mut precedence,
            Event::Collected { outstanding: false },
            &kernel,
        );
        assert!(kernel.0.get());
        Decides::on(
            &mut precedence,
            Event::Asked { outstanding: false },
            &kernel,
        );
        assert!(!kernel.0.get());
    }
}
