//! Tables in which each value occurs once, with ids for the values.

use super::ids::Id;
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::ops::Deref;

/// Values by id; dereferences to a slice of them.
///
/// The index for look-ups is built when the first value is interned: a table that was read from a
/// file and is not changed needs none.
#[derive(Clone, Debug)]
pub struct Interner<K, V> {
    values: Vec<V>,
    ids: HashTable<K>,
    /// Number of first values that are in `ids`.
    indexed: usize,
}

impl<K, V> Default for Interner<K, V> {
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

/// Ids are positions. Equal values keep an id each; interning finds the first.
impl<K, V> From<Vec<V>> for Interner<K, V> {
    fn from(values: Vec<V>) -> Self {
        Self {
            values,
            ids: HashTable::new(),
            indexed: 0,
        }
    }
}

impl<K: Id, V: Clone + Eq + Hash> Interner<K, V> {
    /// The id of `value`, new or known.
    pub fn intern<Q>(&mut self, value: &Q) -> K
    where
        V: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = V> + ?Sized,
    {
        self.complete_index();
        let hash = hash_of(value);
        let known = self.find(hash, value);
        known.unwrap_or_else(|| self.append(hash, value.to_owned()))
    }

    /// Adds `value` with the next id even if an equal one is known. Returns the id that represents
    /// both: the first one's.
    pub fn push(&mut self, value: V) -> K {
        self.complete_index();
        let hash = hash_of(&value);
        let Some(first) = self.find(hash, &value) else {
            return self.append(hash, value);
        };
        self.values.push(value);
        self.indexed += 1;
        first
    }

    fn append(&mut self, hash: u64, value: V) -> K {
        let id = K::from_index(self.values.len());
        self.values.push(value);
        self.add_to_index(hash, id);
        id
    }

    /// The same, for a table with at most `most` values: `None` for a new one above that.
    pub fn intern_below(&mut self, most: usize, value: &V) -> Option<K> {
        self.complete_index();
        let has_room = self.values.len() < most;
        (has_room || self.find(hash_of(value), value).is_some()).then(|| self.intern(value))
    }

    fn find<Q: Eq + ?Sized>(&self, hash: u64, value: &Q) -> Option<K>
    where
        V: Borrow<Q>,
    {
        let is_same = |id: &K| self.values.get(id.index()).map(V::borrow) == Some(value);
        self.ids.find(hash, is_same).copied()
    }

    fn add_to_index(&mut self, hash: u64, id: K) {
        let values = &self.values;
        let hash_again = |id: &K| values.get(id.index()).map_or(0, hash_of);
        self.ids.insert_unique(hash, id, hash_again);
        self.indexed = id.index() + 1;
    }

    fn complete_index(&mut self) {
        while let Some(value) = self.values.get(self.indexed) {
            let hash = hash_of(value);
            match self.find(hash, value) {
                Some(_) => self.indexed += 1,
                None => self.add_to_index(hash, K::from_index(self.indexed)),
            }
        }
    }

    /// The values, to be changed in place; ids stay.
    pub fn values_mut(&mut self) -> &mut Vec<V> {
        self.ids.clear();
        self.indexed = 0;
        &mut self.values
    }
}

fn hash_of<V: Hash + ?Sized>(value: &V) -> u64 {
    FxBuildHasher.hash_one(value)
}

impl<K, V> Deref for Interner<K, V> {
    type Target = [V];

    fn deref(&self) -> &[V] {
        &self.values
    }
}

impl<K, V: PartialEq> PartialEq for Interner<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl<'a, K, V> IntoIterator for &'a Interner<K, V> {
    type Item = &'a V;
    type IntoIter = std::slice::Iter<'a, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::CodeId;

    #[test]
    fn a_table_that_came_from_a_file_goes_on() {
        let mut table: Interner<CodeId, &str> = vec!["a", "b", "a"].into();
        assert_eq!(table.intern(&"b"), CodeId(1));
        assert_eq!(table.intern(&"a"), CodeId(0));
        assert_eq!(table.intern(&"c"), CodeId(3));
        table.values_mut()[1] = "d";
        assert_eq!(table.intern(&"d"), CodeId(1));
        assert_eq!(table.intern(&"b"), CodeId(4));
        assert_eq!(table.push("c"), CodeId(3));
        assert_eq!(table.push("e"), CodeId(6));
        assert_eq!(*table, ["a", "d", "a", "c", "b", "c", "e"]);
    }
}
