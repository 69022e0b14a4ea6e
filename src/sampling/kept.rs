//! Things that are kept for reuse.

/// What is free, the last that came back on top.
#[derive(Debug)]
pub(super) struct Kept<T> {
    free: Vec<T>,
    /// The fewest that were free since the last [`Self::drop_unneeded`].
    least: usize,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            free: Vec::new(),
            least: 0,
        }
    }
}

impl<T> Kept<T> {
    pub(super) fn len(&self) -> usize {
        self.free.len()
    }

    pub(super) fn push(&mut self, thing: T) {
        self.free.push(thing);
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let thing = self.free.pop();
        self.least = self.least.min(self.free.len());
        thing
    }

    /// Drops those that nobody needed since the last call, though all that were needed at a time
    /// were taken from the others.
    pub(super) fn drop_unneeded(&mut self) {
        let unneeded = self.least.min(self.free.len());
        self.free.drain(..unneeded);
        self.least = self.free.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_needed_since_the_last_call_is_dropped() {
        let mut kept = Kept::default();
        (0..10).for_each(|number| kept.push(number));
        kept.drop_unneeded();
        assert_eq!(kept.len(), 10, "all were needed to come here");
        let taken: Vec<i32> = (0..3).filter_map(|_| kept.pop()).collect();
        assert_eq!(taken, [9, 8, 7]);
        taken.into_iter().for_each(|number| kept.push(number));
        kept.drop_unneeded();
        assert_eq!(kept.len(), 3);
        assert_eq!(kept.pop(), Some(7));
        kept.push(7);
        kept.drop_unneeded();
        assert_eq!(kept.len(), 1);
        kept.drop_unneeded();
        assert_eq!((kept.len(), kept.pop()), (0, None));
    }
}
