//! Groups modules that do the same thing at different positions of a model: `layers.*.attention`
//! for the attention of all layers.
//!
//! Parts of one module, or of one group, form a group if they have the same class and the same
//! name, or numbers as names, like the parts of a ModuleList or a Sequential. A container that was
//! never called and holds a single group is shown with it, in one line.

use rustc_hash::FxHashMap;

/// A module, with the facts that grouping needs. Parents come before their children.
#[derive(Clone, Debug)]
pub(super) struct Member<'p> {
    /// Index of the module that contains it.
    pub(super) parent: Option<usize>,
    /// The last part of its path; for a root the name of its tree.
    pub(super) name: &'p str,
    /// Its class; empty if it was never called.
    pub(super) class: &'p str,
}

/// Modules that are shown as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Index of the group that contains it.
    pub(super) parent: Option<usize>,
    /// Index of the first of its modules.
    pub(super) first: usize,
    /// Number of modules.
    pub(super) count: usize,
    /// Their common name; `*` if they are numbered.
    pub(super) name: String,
}

/// Groups, each before those inside it, and the group of each module.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    pub(super) groups: Vec<Group>,
    pub(super) of: Vec<usize>,
}

/// Groups the modules. Roots are never grouped.
pub(super) fn group(members: &[Member<'_>]) -> Groups {
    let mut made = Groups::default();
    let mut known: FxHashMap<(usize, &str, &str), usize> = FxHashMap::default();
    for (index, member) in members.iter().enumerate() {
        let parent = member
            .parent
            .and_then(|parent| made.of.get(parent))
            .copied();
        let is_number =
            !member.name.is_empty() && member.name.bytes().all(|byte| byte.is_ascii_digit());
        let key = match is_number {
            true => "*",
            false => member.name,
        };
        let existing = parent.and_then(|parent| known.get(&(parent, key, member.class)).copied());
        if let Some(at) = existing
            && let Some(group) = made.groups.get_mut(at)
        {
            group.count += 1;
            if group.name != member.name {
                "*".clone_into(&mut group.name);
            }
            made.of.push(at);
            continue;
        }
        let at = made.groups.len();
        made.groups.push(Group {
            parent,
            first: index,
            count: 1,
            name: member.name.to_owned(),
        });
        if let Some(parent) = parent {
            known.insert((parent, key, member.class), at);
        }
        made.of.push(at);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(members: &[(Option<usize>, &'static str, &'static str)]) -> Vec<(String, usize)> {
        let members: Vec<Member<'_>> = members
            .iter()
            .map(|&(parent, name, class)| Member {
                parent,
                name,
                class,
            })
            .collect();
        let made = group(&members);
        assert_eq!(made.of.len(), members.len());
        made.groups
            .into_iter()
            .map(|group| (group.name, group.count))
            .collect()
    }

    #[test]
    fn numbered_parts_of_one_class_are_one_with_all_below_them() {
        let found = groups(&[
            (None, "Net", "Net"),
            (Some(0), "layers", ""),
            (Some(1), "0", "Block"),
            (Some(2), "conv", "Conv2d"),
            (Some(1), "1", "Block"),
            (Some(4), "conv", "Conv2d"),
            (Some(1), "2", "Other"),
            (None, "Net", "Net"),
        ]);
        let row = |name: &str, count| (name.to_owned(), count);
        assert_eq!(
            found,
            [
                row("Net", 1),
                row("layers", 1),
                row("*", 2),
                row("conv", 2),
                row("2", 1),
                row("Net", 1),
            ]
        );
    }
}
