//! What devices did, and which calls of the host made them do it.

use super::host::Idle;
use super::intervals::{clip, common_ns, length_ns, merge};
use super::steps::Steps;
use super::{DeviceEvent, DeviceKind, Trace};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// No key.
pub(super) const NONE: u32 = u32::MAX;

/// The call of the host that made a device do something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// `start_ns` is `u64::MAX` where no call is known.
    start_ns: u64,
    end_ns: u64,
    thread: u32,
    /// Key of the innermost operator around the call.
    pub(super) caller: u32,
    /// Index into [`Trace::collectives`], from an operator around the call.
    collective: u32,
    /// The call made nothing else: it is not the launch of a graph.
    is_alone: bool,
}

const UNKNOWN: Call = Call {
    start_ns: u64::MAX,
    end_ns: u64::MAX,
    thread: NONE,
    caller: NONE,
    collective: NONE,
    is_alone: false,
};

impl Call {
    fn is_known(&self) -> bool {
        self.start_ns != u64::MAX
    }
}

/// The calls of all device events, in their order.
pub(super) struct Calls {
    calls: Vec<Call>,
    /// Correlation id and device event, sorted.
    by_correlation: Vec<(u32, u32)>,
}

impl Calls {
    /// Sorts the device events by device and start, and finds their calls.
    pub(super) fn new(trace: &mut Trace) -> Self {
        let keys = &trace.device_keys;
        let device = |event: &DeviceEvent| keys.get(event.key as usize).map(|key| key.device);
        trace
            .device_events
            .sort_unstable_by_key(|event| (device(event), event.start_ns, event.length_ns));
        let with_id = trace.device_events.iter().enumerate();
        let mut by_correlation: Vec<(u32, u32)> = with_id
            .filter(|(_, event)| event.correlation != 0)
            .map(|(index, event)| (event.correlation, index as u32))
            .collect();
        by_correlation.sort_unstable();
        let mut calls = Self {
            calls: vec![UNKNOWN; trace.device_events.len()],
            by_correlation,
        };
        for events in calls.by_correlation.chunk_by(|a, b| a.0 == b.0) {
            if let [(_, event)] = events
                && let Some(call) = calls.calls.get_mut(*event as usize)
            {
                call.is_alone = true;
            }
        }
        for span in trace.spans.iter().filter(|span| span.correlation != 0) {
            calls.of(span.correlation, |call| {
                call.start_ns = span.start_ns;
                call.end_ns = span.start_ns + span.length_ns;
                call.thread = span.thread;
            });
        }
        calls
    }

    /// The calls of a correlation id; a launched graph has many.
    fn of(&mut self, correlation: u32, mut change: impl FnMut(&mut Call)) {
        let first = self
            .by_correlation
            .partition_point(|&(id, _)| id < correlation);
        let rest = self.by_correlation.get(first..).unwrap_or_default();
        for &(_, event) in rest.iter().take_while(|&&(id, _)| id == correlation) {
            if let Some(call) = self.calls.get_mut(event as usize) {
                change(call);
            }
        }
    }

    pub(super) fn set_caller(&mut self, correlation: u32, caller: u32, collective: u32) {
        self.of(correlation, |call| {
            call.caller = caller;
            call.collective = collective;
        });
    }
}

/// A device's time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceTime {
    pub device: u64,
    /// What the shares are of: whole steps; without them, from its first event to its last.
    pub window: (u64, u64),
    /// Kernels other than collectives.
    pub compute_ns: u64,
    /// Kernels of collectives.
    pub communication_ns: u64,
    /// Both at the same time.
    pub overlap_ns: u64,
    /// Copies and memsets while no kernel ran.
    pub copies_ns: u64,
    /// Nothing of these.
    pub idle_ns: u64,
    /// Of `idle_ns`, what came before the end of the call that launched what ended it.
    pub not_launched_ns: u64,
    /// Of `idle_ns`, what came after that call.
    pub launched_ns: u64,
    /// Kernels in the window.
    pub kernels: u64,
    /// Of `kernels`, those that took less time than the call that launched them.
    pub short_kernels: u64,
    /// Of `kernels`, those whose call is known and launched nothing else.
    pub known_calls: u64,
    /// From the start of the call to the start of the kernel, where the device was idle: ns,
    /// sorted. All of them, or quantiles.
    pub launch_ns: Vec<u64>,
    /// How many there are.
    #[serde(default)]
    pub launches: u64,
}

/// Kernels of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelTimes {
    /// Index into [`Trace::device_keys`], of the one with the most calls.
    pub key: u32,
    /// Number of different pairs of grid and block.
    pub grids: u64,
    /// Sorted.
    pub streams: Vec<u64>,
    pub calls: u64,
    pub calls_in_steps: u64,
    pub total_ns: u64,
    /// The time of `calls_in_steps`; see [`super::TraceSummary::has_step_times`].
    #[serde(default)]
    pub total_in_steps_ns: u64,
    /// Of copies and memsets; 0 where unknown.
    pub bytes: u64,
    /// The bytes of `calls_in_steps`.
    #[serde(default)]
    pub bytes_in_steps: u64,
    /// Time of those with known bytes.
    pub bytes_ns: u64,
    /// The operator that launched the most, as an index into [`Trace::host_keys`], and how many.
    pub caller: Option<(u32, u64)>,
    /// Number of operators that launched it.
    pub callers: u64,
}

/// A collective with the same arguments, on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveTimes {
    /// Index into [`Trace::collectives`].
    pub collective: u32,
    pub calls: u64,
    pub calls_in_steps: u64,
    pub total_ns: u64,
    /// The time of `calls_in_steps`; see [`super::TraceSummary::has_step_times`].
    #[serde(default)]
    pub total_in_steps_ns: u64,
    /// The fastest call, which waited least for other ranks.
    pub least_ns: u64,
}

/// Whether a kernel is of NCCL (or RCCL, which has the same names): `ncclKernel_…` before NCCL
/// 2.19, `ncclDevKernel_…` since.
fn is_nccl(name: &str) -> bool {
    name.starts_with("nccl")
}

/// Parts of the names of kernels that communicate by other means than NCCL.
const COMMUNICATION: [&str; 14] = [
    // torch's symmetric memory: torch/csrc/distributed/c10d/symm_mem of pytorch,
    // CUDASymmetricMemory.cu and CUDASymmetricMemoryOps.cu. Kernels in Triton and helion have the
    // same names.
    "all_reduce_kernel",
    "multimem_",
    "barrier_kernel",
    "put_signal_kernel",
    "wait_signal_kernel",
    // nvshmem_extension.cu there.
    "allToAllV",
    "exchangeSplitAndOffset",
    "nvshmem",
    "rocshmem",
    // DeepEP: csrc/kernels.
    "deep_ep::",
    // MSCCL++.
    "mscclpp",
    // vLLM and SGLang: csrc/custom_all_reduce.cuh.
    "cross_device_reduce_",
    // TensorRT-LLM: customAllReduceKernels.cu.
    "oneShotAllReduceKernel",
    "twoShotAllReduceKernel",
];

/// Whether a kernel communicates, by its name.
pub(super) fn is_communication(name: &str) -> bool {
    // What follows are arguments of a template: they may name what the kernel only works beside.
    let (own, _) = name.split_once('<').unwrap_or((name, ""));
    is_nccl(name) || COMMUNICATION.iter().any(|part| own.contains(part))
}

/// What is asked of each device event.
struct Asked {
    device: u64,
    kind: DeviceKind,
    is_communication: bool,
}

/// Time of each device.
pub(super) fn devices(
    trace: &Trace,
    calls: &Calls,
    steps: &Steps,
    idle: &mut Idle,
) -> Vec<DeviceTime> {
    let asked: Vec<Asked> = trace
        .device_keys
        .iter()
        .map(|key| Asked {
            device: key.device,
            kind: key.kind,
            is_communication: key.collective.is_some() || is_communication(&key.name),
        })
        .collect();
    let of = |event: &DeviceEvent| &asked[event.key as usize];
    let mut first = 0;
    let mut found = Vec::new();
    for events in trace
        .device_events
        .chunk_by(|a, b| of(a).device == of(b).device)
    {
        let range = first..first + events.len();
        first = range.end;
        let calls = calls.calls.get(range).unwrap_or_default();
        found.push(device(events, calls, &asked, steps, idle));
    }
    for gaps in idle.by_thread.values_mut() {
        gaps.sort_unstable();
        *gaps = merge(gaps.iter().copied());
    }
    found
}

fn device(
    events: &[DeviceEvent],
    calls: &[Call],
    asked: &[Asked],
    steps: &Steps,
    idle: &mut Idle,
) -> DeviceTime {
    let end = |event: &DeviceEvent| event.start_ns + event.length_ns;
    let all = (
        events.first().map_or(0, |event| event.start_ns),
        events.iter().map(end).max().unwrap_or(0),
    );
    let window = steps.window().unwrap_or(all);
    let of = |event: &DeviceEvent| &asked[event.key as usize];
    let intervals = |is_asked: &dyn Fn(&Asked) -> bool| {
        let chosen = events.iter().filter(|event| is_asked(of(event)));
        merge(chosen.filter_map(|event| clip((event.start_ns, end(event)), window)))
    };
    let kernel = |asked: &Asked| asked.kind == DeviceKind::Kernel;
    let compute = intervals(&|asked| kernel(asked) && !asked.is_communication);
    let communication = intervals(&|asked| kernel(asked) && asked.is_communication);
    let kernels = intervals(&kernel);
    let busy = intervals(&|_| true);
    let mut time = DeviceTime {
        device: events.first().map_or(0, |event| of(event).device),
        window,
        compute_ns: length_ns(&compute),
        communication_ns: length_ns(&communication),
        overlap_ns: common_ns(&compute, &communication),
        copies_ns: length_ns(&busy) - length_ns(&kernels),
        idle_ns: (window.1 - window.0) - length_ns(&busy),
        ..DeviceTime::default()
    };
    let mut busy_until = window.0;
    for (event, call) in events.iter().zip(calls) {
        let is_counted = (window.0..window.1).contains(&event.start_ns);
        if is_counted && of(event).kind == DeviceKind::Kernel {
            time.kernels += 1;
            // The launch of a graph is for all of its kernels.
            let is_comparable = call.is_known() && call.is_alone;
            time.known_calls += u64::from(is_comparable);
            let call_ns = call.end_ns - call.start_ns;
            time.short_kernels += u64::from(is_comparable && event.length_ns < call_ns);
            if call.is_known() && busy_until <= call.start_ns {
                time.launch_ns
                    .push(event.start_ns.saturating_sub(call.start_ns));
            }
        }
        if let (Some(gap), true) = (clip((busy_until, event.start_ns), window), call.is_known()) {
            let launched = call.end_ns.clamp(gap.0, gap.1);
            time.not_launched_ns += launched - gap.0;
            time.launched_ns += gap.1 - launched;
            if launched > gap.0 {
                let gaps = idle.by_thread.entry(call.thread).or_default();
                gaps.push((gap.0, launched));
            }
        }
        busy_until = busy_until.max(end(event));
    }
    time.launch_ns.sort_unstable();
    time.launches = time.launch_ns.len() as u64;
    time
}

/// Kernels, or copies and memsets, by name and device, by descending time.
pub(super) fn kernels(
    trace: &Trace,
    calls: &Calls,
    steps: &Steps,
    is_copy: bool,
) -> Vec<KernelTimes> {
    let mut rows: FxHashMap<(&str, u64), KernelTimes> = FxHashMap::default();
    let mut by_key: FxHashMap<u32, u64> = FxHashMap::default();
    let mut by_caller: FxHashMap<(&str, u64, u32), u64> = FxHashMap::default();
    for (event, call) in trace.device_events.iter().zip(&calls.calls) {
        let key = &trace.device_keys[event.key as usize];
        if (key.kind != DeviceKind::Kernel) != is_copy {
            continue;
        }
        let name = (key.name.as_str(), key.device);
        let row = rows.entry(name).or_default();
        let in_step = steps.has(launched_at(event, call));
        row.calls += 1;
        row.total_ns = row.total_ns.saturating_add(event.length_ns);
        if in_step {
            row.calls_in_steps += 1;
            row.total_in_steps_ns = row.total_in_steps_ns.saturating_add(event.length_ns);
            row.bytes_in_steps = row.bytes_in_steps.saturating_add(event.bytes);
        }
        if event.bytes > 0 {
            row.bytes = row.bytes.saturating_add(event.bytes);
            row.bytes_ns = row.bytes_ns.saturating_add(event.length_ns);
        }
        *by_key.entry(event.key).or_default() += 1;
        if call.caller != NONE {
            *by_caller.entry((name.0, name.1, call.caller)).or_default() += 1;
        }
    }
    let mut most: FxHashMap<(&str, u64), u64> = FxHashMap::default();
    let mut shapes: Vec<((&str, u64), &str, &str)> = Vec::new();
    let mut keys: Vec<(u32, u64)> = by_key.into_iter().collect();
    keys.sort_unstable();
    for (id, calls) in keys {
        let key = &trace.device_keys[id as usize];
        let name = (key.name.as_str(), key.device);
        let Some(row) = rows.get_mut(&name) else {
            continue;
        };
        row.streams.push(key.stream);
        shapes.push((name, key.grid.as_str(), key.block.as_str()));
        let most = most.entry(name).or_default();
        if calls > *most {
            (*most, row.key) = (calls, id);
        }
    }
    shapes.sort_unstable();
    shapes.dedup();
    for (name, ..) in shapes {
        rows.entry(name).and_modify(|row| row.grids += 1);
    }
    let mut callers: Vec<_> = by_caller.into_iter().collect();
    callers.sort_unstable();
    for ((name, device, caller), calls) in callers {
        let Some(row) = rows.get_mut(&(name, device)) else {
            continue;
        };
        row.callers += 1;
        if row.caller.is_none_or(|(_, most)| calls > most) {
            row.caller = Some((caller, calls));
        }
    }
    let mut rows: Vec<KernelTimes> = rows.into_values().collect();
    for row in &mut rows {
        row.streams.sort_unstable();
        row.streams.dedup();
    }
    rows.sort_unstable_by_key(|row| {
        let times = (row.total_in_steps_ns, row.total_ns);
        (std::cmp::Reverse(times), row.key)
    });
    rows
}

/// When a device event was asked for, or began.
fn launched_at(event: &DeviceEvent, call: &Call) -> u64 {
    match call.is_known() {
        true => call.start_ns,
        false => event.start_ns,
    }
}

/// Device time by the operator that launched it, as pairs of a host key and ns: of what `is_asked`
/// picks by the time of its launch.
pub(super) fn by_caller(
    trace: &Trace,
    calls: &Calls,
    is_asked: impl Fn(u64) -> bool,
) -> FxHashMap<u32, u64> {
    let mut times: FxHashMap<u32, u64> = FxHashMap::default();
    for (event, call) in trace.device_events.iter().zip(&calls.calls) {
        if call.caller != NONE && is_asked(launched_at(event, call)) {
            let time = times.entry(call.caller).or_default();
            *time = time.saturating_add(event.length_ns);
        }
    }
    times
}

/// Collectives whose arguments are known, by descending time.
pub(super) fn collectives(trace: &Trace, calls: &Calls, steps: &Steps) -> Vec<CollectiveTimes> {
    let mut rows: FxHashMap<u32, CollectiveTimes> = FxHashMap::default();
    for (event, call) in trace.device_events.iter().zip(&calls.calls) {
        let key = &trace.device_keys[event.key as usize];
        let around = Some(call.collective).filter(|&id| id != NONE && is_nccl(&key.name));
        let (DeviceKind::Kernel, Some(collective)) = (key.kind, key.collective.or(around)) else {
            continue;
        };
        let row = rows.entry(collective).or_insert(CollectiveTimes {
            collective,
            least_ns: u64::MAX,
            ..CollectiveTimes::default()
        });
        row.calls += 1;
        row.total_ns = row.total_ns.saturating_add(event.length_ns);
        if steps.has(launched_at(event, call)) {
            row.calls_in_steps += 1;
            row.total_in_steps_ns = row.total_in_steps_ns.saturating_add(event.length_ns);
        }
        row.least_ns = row.least_ns.min(event.length_ns);
    }
    let mut rows: Vec<CollectiveTimes> = rows.into_values().collect();
    rows.sort_unstable_by_key(|row| (std::cmp::Reverse(row.total_ns), row.collective));
    rows
}
