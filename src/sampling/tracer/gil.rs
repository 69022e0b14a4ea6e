//! Which threads hold a process's GILs.

use super::process::TracedProcess;
use crate::memory::Memory;
use crate::model::ids::ThreadId;
use crate::model::sample::{Gil, Sample};
use crate::python::threads::{GilState, read_gil};
use crate::sampling::capture::ReadPlan;

/// A thread state that holds a GIL, and its thread.
#[derive(Debug)]
struct GilHolder {
    state: u64,
    thread: Option<ThreadId>,
    /// Address of the GIL: a subinterpreter may have its own (3.12 on).
    gil: u64,
}

/// Who holds the GILs of a process.
#[derive(Debug, Default)]
pub(super) struct Gils {
    holders: Vec<GilHolder>,
    /// It runs without: a free-threaded build.
    disabled: bool,
}

/// Of a process that was not asked.
pub(super) const NOT_ASKED: &Gils = &Gils {
    holders: Vec::new(),
    disabled: false,
};

/// Who holds the GILs of the process right now.
pub(super) fn gils_of(process: &TracedProcess) -> Gils {
    gils_in(process, &process.memory)
}

/// Who held the GILs of the process when `memory` was copied.
pub(super) fn gils_in(process: &TracedProcess, memory: &dyn Memory) -> Gils {
    let mut gils = Gils::default();
    let Some(interpreter) = &process.interpreter else {
        return gils;
    };
    for &(_, range) in &process.gils {
        let is_known = |known: &GilHolder| known.gil == range.address;
        if gils.holders.iter().any(is_known) {
            continue;
        }
        match read_gil(interpreter, range, memory) {
            GilState::HeldBy(state) => gils.holders.push(GilHolder {
                state,
                thread: process.thread_of_state(state),
                gil: range.address,
            }),
            GilState::Disabled => gils.disabled = true,
            GilState::Free | GilState::Unknown => {}
        }
    }
    gils
}

impl Gils {
    /// Whether a thread has what it needs to run Python code: a GIL, where there is one.
    pub(super) fn lets_run(&self, plan: &ReadPlan) -> bool {
        match self.disabled {
            true => plan.state_address.is_some(),
            false => self.is_held_by(plan),
        }
    }

    fn is_held_by(&self, plan: &ReadPlan) -> bool {
        let holders = self.holders.iter();
        plan.state_address.is_some()
            && holders
                .into_iter()
                .any(|holder| plan.has_state(holder.state))
    }

    /// A thread's relation to them.
    pub(super) fn of(&self, plan: &ReadPlan) -> Gil {
        match (self.disabled, self.is_held_by(plan)) {
            (true, _) => Gil::Unknown,
            (false, true) => Gil::Held,
            (false, false) => Gil::NotHeld,
        }
    }

    /// The other thread that holds the one that this Python thread needs while it sleeps, if any.
    pub(super) fn other_holder(&self, plan: &ReadPlan, thread: ThreadId) -> Option<ThreadId> {
        plan.state_address?;
        let is_needed =
            |holder: &&GilHolder| plan.gil_address.is_none_or(|needed| holder.gil == needed);
        let mut holders = self.holders.iter().filter(is_needed);
        let holder = holders.find_map(|holder| holder.thread);
        holder.filter(|&holder| holder != thread)
    }

    /// Sets whether the sample's thread holds a GIL, or else which thread does. A thread without a
    /// Python thread state is left unchanged.
    pub(super) fn set(&self, sample: &mut Sample, plan: &ReadPlan) {
        if plan.state_address.is_none() {
            return;
        }
        sample.gil = self.of(plan);
        sample.gil_holder = match sample.gil {
            Gil::NotHeld => self.other_holder(plan, sample.thread),
            Gil::Held | Gil::Unknown => None,
        };
    }
}
