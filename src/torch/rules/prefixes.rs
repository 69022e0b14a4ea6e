//! Finds which of many prefixes a text has, without trying each.

/// A map from prefixes to values.
#[derive(Debug)]
pub(super) struct Prefixes<T> {
    /// Sorted, without duplicates.
    entries: Vec<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    text: String,
    values: Vec<T>,
    /// The longest other entry that is a prefix of this one.
    parent: Option<usize>,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
        }
    }
}

impl<T> FromIterator<(String, T)> for Prefixes<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(items: I) -> Self {
        let mut items: Vec<(String, T)> = items.into_iter().collect();
        items.sort_by(|(left, _), (right, _)| left.cmp(right));
        let mut found = Self::default();
        for (text, value) in items {
            match found.entries.last_mut() {
                Some(last) if last.text == text => last.values.push(value),
                _ => {
                    let parent = found.chain(&text).next();
                    found.entries.push(Entry {
                        text,
                        values: vec![value],
                        parent,
                    });
                }
            }
        }
        found
    }
}

impl<T> Prefixes<T> {
    /// Entries that are prefixes of `text`, the longest first. The last entry that is not greater
    /// than `text` has all of them as prefixes.
    fn chain(&self, text: &str) -> impl Iterator<Item = usize> + '_ {
        let end = self
            .entries
            .partition_point(|entry| entry.text.as_str() <= text);
        let mut at = end.checked_sub(1);
        while let Some(entry) = at.and_then(|index| self.entries.get(index)) {
            if text.starts_with(&entry.text) {
                break;
            }
            at = entry.parent;
        }
        std::iter::successors(at, move |&index| self.entries.get(index)?.parent)
    }

    /// The values of all prefixes of `text`.
    pub(super) fn of<'s>(&'s self, text: &str) -> impl Iterator<Item = &'s T> + use<'s, T> {
        let entries: Vec<&'s Entry<T>> = self
            .chain(text)
            .filter_map(|index| self.entries.get(index))
            .collect();
        entries.into_iter().flat_map(|entry| entry.values.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_beginnings_are_found(
            patterns in proptest::collection::vec("[ab]{0,5}", 0..20),
            text in "[ab]{0,8}",
        ) {
            let index: Prefixes<usize> = patterns.iter().cloned().zip(0..).collect();
            let mut found: Vec<usize> = index.of(&text).copied().collect();
            found.sort_unstable();
            let all = patterns.iter().enumerate();
            let wanted: Vec<usize> = all
                .filter(|(_, pattern)| text.starts_with(pattern.as_str()))
                .map(|(at, _)| at)
                .collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
