//! Which threads hold a process's GILs.

use super::process::TracedProcess;
use crate::memory::Memory;
use crate::model::ids::ThreadId;
use crate::model::sample::{Gil, Sample};
use crate::python::threads::{GilState, read_gil};
use crate::sampling::capture::ReadPlan;

/// A thread state that holds a GIL, and its thread.
type GilHolder = (u64, Option<ThreadId>);

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
    for &range in &process.gils {
        match read_gil(interpreter, range, memory) {
            GilState::HeldBy(holder) => {
                let thread = process.thread_of_state(holder);
                gils.holders.push((holder, thread));
            }
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
                .any(|(holder, _)| plan.has_state(*holder))
    }

    /// A thread's relation to them.
    pub(super) fn of(&self, plan: &ReadPlan) -> Gil {
        match (self.disabled, self.is_held_by(plan)) {
            (true, _) => Gil::Unknown,
            (false, true) => Gil::Held,
            (false, false) => Gil::NotHeld,
        }
    }

    /// The other thread that holds one while this Python thread sleeps, if any.
    pub(super) fn other_holder(&self, plan: &ReadPlan, thread: ThreadId) -> Option<ThreadId> {
        plan.state_address?;
        let mut holders = self.holders.iter();
        let holder = holders.find_map(|(_, holder)| *holder);
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
