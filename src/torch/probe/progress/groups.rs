//! Parallel groups of a trainer of Megatron Core, which keeps them in global variables.
//!
//! They are made once, one after the other, before training. So they are searched for at growing
//! intervals, that begin anew while they change.

use super::ProgressProbe;
use crate::memory::Memory;
use crate::model::parallel::{Dimension, text_of};
use crate::model::progress::facts;
use crate::python::modules::read_module;
use crate::python::objects::read_str;
use crate::torch::rules::groups::{PARALLEL_GROUPS, PARALLEL_STATE};

/// Pauses between two searches, ns: the first, and the longest before and after groups were found.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;
const LONGEST_PAUSE_NS: u64 = 8_000_000_000;
const FOUND_PAUSE_NS: u64 = 60_000_000_000;
/// Maximum length of a variable's name, bytes.
const MAX_NAME: usize = 64;

/// When the groups are searched for.
#[derive(Debug, Default)]
pub(super) struct GroupSearch {
    due_ns: u64,
    pause_ns: u64,
    /// What was found last.
    found: Option<String>,
}

impl ProgressProbe {
    /// This rank's groups, if there are any and a search is due.
    pub(super) fn groups(
        &mut self,
        now_ns: u64,
        live: &dyn Memory,
    ) -> Option<(&'static str, String)> {
        if now_ns < self.group_search.due_ns {
            return None;
        }
        let dimensions = self.dimensions(live).filter(|found| !found.is_empty());
        let found = dimensions.map(|dimensions| text_of(&dimensions));
        let search = &mut self.group_search;
        let longest_ns = match found {
            Some(_) => FOUND_PAUSE_NS,
            None => LONGEST_PAUSE_NS,
        };
        search.pause_ns = match found == search.found {
            true => (search.pause_ns * 2).clamp(FIRST_PAUSE_NS, longest_ns),
            false => FIRST_PAUSE_NS,
        };
        search.due_ns = now_ns.saturating_add(search.pause_ns);
        search.found.clone_from(&found);
        Some((facts::PARALLEL_GROUPS, found?))
    }

    /// The groups of more than one rank; `None` if they are not made yet, or one cannot be read.
    fn dimensions(&mut self, live: &dyn Memory) -> Option<Vec<Dimension>> {
        let variables = read_module(&self.interpreter, PARALLEL_STATE, live).ok()??;
        let layout = self.interpreter.layout;
        let mut lists = [None; PARALLEL_GROUPS.len()];
        for variable in variables {
            let name = read_str(&layout, variable.key, MAX_NAME, live).unwrap_or_default();
            let known = PARALLEL_GROUPS.iter().position(|(_, each)| *each == name);
            if let Some(list) = known.and_then(|at| lists.get_mut(at)) {
                *list = Some(variable.value);
            }
        }
        let mut found = Vec::new();
        for ((name, _), list) in PARALLEL_GROUPS.iter().zip(lists) {
            // Older versions lack some of them; what is not made yet is None.
            let Some(list) = list else { continue };
            let ranks = self.mesh_reader(live).ranks_of(list)?;
            if ranks.len() > 1 {
                found.push(Dimension::new(name, &ranks)?);
            }
        }
        Some(found)
    }
}
