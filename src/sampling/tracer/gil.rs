//! Which threads hold a process's GILs.

use super::process::TracedProcess;
use crate::model::ids::ThreadId;
use crate::model::sample::{Gil, Sample};
use crate::python::threads::{GilState, read_gil_holder};
use crate::sampling::capture::ReadPlan;

/// A thread state that holds a GIL, and its thread.
pub(super) type GilHolder = (u64, Option<ThreadId>);

/// Thread states that hold a GIL of the process right now, with their threads.
pub(super) fn gil_holders(process: &TracedProcess) -> Vec<GilHolder> {
    let Some(interpreter) = &process.interpreter else {
        return Vec::new();
    };
    process
        .interpreter_states
        .iter()
        .filter_map(
            |&state| match read_gil_holder(interpreter, state, &process.memory) {
                GilState::HeldBy(holder) => Some((holder, process.thread_of_state(holder))),
                GilState::Free | GilState::Unknown => None,
            },
        )
        .collect()
}

/// Whether a thread's state is one of `holders`.
pub(super) fn holds_any(plan: &ReadPlan, holders: &[GilHolder]) -> bool {
    holders.iter().any(|(holder, _)| plan.has_state(*holder))
}

/// The other thread that holds the GIL while this Python thread sleeps, if any.
pub(super) fn other_holder(process: &TracedProcess, at: usize) -> Option<ThreadId> {
    let thread = process.threads.get(at)?;
    thread.plan.state_address?;
    gil_holders(process)
        .into_iter()
        .find_map(|(_, holder)| holder)
        .filter(|&holder| holder != thread.id)
}

/// Whether a sleeping thread holds the GIL: it waits in a call that does not release it.
pub(super) fn holds_gil(process: &TracedProcess, at: usize) -> bool {
    let plan = &process.threads[at].plan;
    plan.state_address.is_some() && holds_any(plan, &gil_holders(process))
}

/// Sets whether the sample's thread holds a GIL, or else which thread does. A thread without a
/// Python thread state is left unchanged.
pub(super) fn set_gil(sample: &mut Sample, plan: &ReadPlan, holders: &[GilHolder]) {
    if plan.state_address.is_none() {
        return;
    }
    let holds = holds_any(plan, holders);
    sample.gil = if holds { Gil::Held } else { Gil::NotHeld };
    sample.gil_holder = holders
        .iter()
        .find_map(|(_, thread)| *thread)
        .filter(|&thread| !holds && thread != sample.thread);
}
