//! Sleeps of a thread that need no capture: the one before was at the same place, and had the same
//! stack.

use crate::model::sample::ThreadState;
use crate::os::threads::Whereabouts;

/// A place where so many sleeps in a row had different stacks is not compared any more.
const MAX_DIFFERED: u8 = 4;

/// A sleep in which a thread was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptSleep {
    place: Whereabouts,
    state: ThreadState,
    number: u64,
    /// How often in a row a later sleep at the same place had another stack.
    differed: u8,
}

impl KeptSleep {
    /// Counts the sleeps of a thread.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether another sleep is at the same place, and may have the same stack.
    fn is_alike(&self, other: &Self) -> bool {
        self.state == other.state && self.place.is_at_same_place(other.place)
    }
}

/// The last sleep of a thread whose stack was captured, as long as that is the last stack that was
/// recorded of the thread.
#[derive(Debug, Default)]
pub(super) struct KeptSleeps {
    last: Option<KeptSleep>,
    /// How many sleeps were found.
    found: u64,
}

impl KeptSleeps {
    /// A sleep in which the thread was found.
    pub(super) fn begin(&mut self, place: Whereabouts, state: ThreadState) -> KeptSleep {
        self.found += 1;
        KeptSleep {
            place,
            state,
            number: self.found,
            differed: 0,
        }
    }

    /// Whether this sleep has the stack of the last one: that was at the same place, and by
    /// `is_unchanged`, which takes its number, all that its stack was found in is the same.
    pub(super) fn has_last_stack(
        &mut self,
        now: &KeptSleep,
        is_unchanged: impl FnOnce(u64) -> Option<bool>,
    ) -> bool {
        self.last.take_if(|last| !last.is_alike(now));
        let Some(last) = &mut self.last else {
            return false;
        };
        let found = is_unchanged(last.number);
        match found {
            Some(true) => last.differed = 0,
            Some(false) => last.differed = last.differed.saturating_add(1),
            None => {}
        }
        found == Some(true)
    }

    /// Where the last sleep was at the same place, this one, which is captured anew, counts on how
    /// often they differed. Returns whether the worker is to say what its stack was found in.
    pub(super) fn continue_in(&self, now: &mut KeptSleep) -> bool {
        let Some(last) = self.last.filter(|last| last.is_alike(now)) else {
            return false;
        };
        now.differed = last.differed;
        last.differed < MAX_DIFFERED
    }

    /// The stack of this sleep was captured, and recorded.
    pub(super) fn keep(&mut self, sleep: KeptSleep) {
        self.last = Some(sleep);
    }

    /// The stack of the last sleep is not known, or another one was recorded since.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEP: Whereabouts = Whereabouts::InSyscall {
        number: 7,
        arguments: [0; 6],
        stack_pointer: 1,
        instruction_pointer: 2,
    };

    #[test]
    fn a_place_whose_stacks_keep_changing_is_given_up() {
        let mut sleeps = KeptSleeps::default();
        let state = ThreadState::Sleeping;
        let first = sleeps.begin(SLEEP, state);
        assert!(!sleeps.has_last_stack(&first, |_| unreachable!()));
        sleeps.keep(first);
        for round in 0..MAX_DIFFERED {
            let mut now = sleeps.begin(SLEEP, state);
            assert!(!sleeps.has_last_stack(&now, |number| Some(number == 0)));
            assert_eq!(sleeps.continue_in(&mut now), round + 1 < MAX_DIFFERED);
            sleeps.keep(now);
        }
    }

    #[test]
    fn one_that_is_the_same_begins_to_count_anew() {
        let mut sleeps = KeptSleeps::default();
        let state = ThreadState::Sleeping;
        let first = sleeps.begin(SLEEP, state);
        sleeps.keep(first);
        for found in [Some(false), Some(false), Some(true), None] {
            let now = sleeps.begin(SLEEP, state);
            let number = first.number();
            let is_same = sleeps.has_last_stack(&now, |asked| {
                assert_eq!(asked, number);
                found
            });
            assert_eq!(is_same, found == Some(true));
        }
        let mut now = sleeps.begin(SLEEP, state);
        assert!(sleeps.continue_in(&mut now));
        assert_eq!(now.differed, 0);
        // Elsewhere, and in another state.
        let mut other = sleeps.begin(Whereabouts::Running, state);
        assert!(!sleeps.continue_in(&mut other));
        let now = sleeps.begin(SLEEP, ThreadState::Stopped);
        assert!(!sleeps.has_last_stack(&now, |_| unreachable!()));
        assert!(!sleeps.continue_in(&mut other));
    }
}
