//! When torch.profiler ran, by what `record --trace` kept of it.

use crate::model::ids::ProcessId;
use crate::model::profile::Profile;
use crate::model::progress::facts;
use crate::trace::kept::wall_window;
use crate::trace::on_demand::WARM_UP;

/// From its preparations to its end, CLOCK_MONOTONIC, by process; none of windows that left no
/// trace.
pub(super) fn windows(profile: &Profile) -> Vec<(ProcessId, u64, u64)> {
    let conditions = profile.sideband.conditions.iter();
    let kept = conditions.filter(|condition| condition.name == facts::TORCH_TRACE);
    let window = kept.filter_map(|condition| {
        let (from, to) = wall_window(&condition.value)?;
        let [from, to] = [from, to].map(|wall_ns| profile.monotonic_ns(wall_ns));
        // Torch prepares in the process for so long before its window.
        let warm_up_ns = WARM_UP.as_nanos() as u64;
        Some((condition.process, from?.saturating_sub(warm_up_ns), to?))
    });
    window.collect()
}
