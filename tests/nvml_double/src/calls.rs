//! The C functions of nvml.h that torchspy uses.

use crate::scenario::{Gpu, Instance, Process};
use crate::state::{Handle, state};
use gpu_node::{monotonic_ns, node::Busy};
use nvml_wrapper_sys::bindings::*;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

const OK: nvmlReturn_t = nvmlReturn_enum_NVML_SUCCESS;
const TOO_SMALL: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
const UNSUPPORTED: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
/// Clocks are lower for the temperature, as the hardware says.
const THERMAL: u64 = 0x40;

/// The GPU of a call, or its error as the call's result.
macro_rules! gpu {
    ($name:ident, $device:expr) => {
        match state().gpu(stringify!($name), $device) {
            Ok(found) => found,
            Err(code) => return code,
        }
    };
}

/// A call that puts one value of a whole device.
macro_rules! put {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $out:ty = $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, $($argument: $kind,)* out: *mut $out) -> nvmlReturn_t {
            let (gpu, instance) = gpu!($name, device);
            let value: fn(&Gpu, Option<&Instance>, $($kind),*) -> Result<$out, nvmlReturn_t> = $value;
            match value(gpu, instance, $($argument),*) {
                // SAFETY: the caller gives a place for the value.
                Ok(value) => { unsafe { out.write(value) }; OK }
                Err(code) => code,
            }
        }
    )*};
}

fn whole<T>(instance: Option<&Instance>, value: T) -> Result<T, nvmlReturn_t> {
    match instance {
        None => Ok(value),
        Some(_) => Err(UNSUPPORTED),
    }
}

put! {
    nvmlDeviceGetPowerUsage() -> c_uint = |gpu, instance| whole(instance, state().power_mw(gpu));
    nvmlDeviceGetPowerManagementLimit() -> c_uint = |gpu, instance| whole(instance, gpu.power_limit_mw);
    nvmlDeviceGetCurrentClocksThrottleReasons() -> c_ulonglong = |gpu, instance| {
        let busy = state().power_mw(gpu) > gpu.power_idle_mw;
        let slower = if gpu.slowdown() > 1.0 { THERMAL } else { 0 };
        whole(instance, if busy { gpu.throttle_busy | slower } else { 1 })
    };
    nvmlDeviceGetClockInfo(which: nvmlClockType_t) -> c_uint = |gpu, instance, which| {
        whole(instance, if which == nvmlClockType_enum_NVML_CLOCK_MEM {
            gpu.memory_clock
        } else {
            (f64::from(gpu.sm_clock) / gpu.slowdown()) as u32
        })
    };
    nvmlDeviceGetTemperature(_sensor: nvmlTemperatureSensors_t) -> c_uint = |gpu, instance, _| whole(instance, gpu.temperature);
    nvmlDeviceGetPcieThroughput(_counter: nvmlPcieUtilCounter_t) -> c_uint = |gpu, instance, _| {
        whole(instance, gpu.pcie_kb)?.ok_or(UNSUPPORTED)
    };
    nvmlDeviceGetMaxMigDeviceCount() -> c_uint = |_, _| Ok(7);
    nvmlDeviceGetGpuInstanceId() -> c_uint = |_, instance| instance.map(|instance| instance.instance).ok_or(UNSUPPORTED);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: nvmlDevice_t,
    out: *mut c_ulonglong,
) -> nvmlReturn_t {
    let (gpu, instance) = gpu!(nvmlDeviceGetTotalEnergyConsumption, device);
    if instance.is_some() {
        return UNSUPPORTED;
    }
    // SAFETY: the caller gives a place for the value.
    unsafe { out.write(state().energy_mj(device, gpu)) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    let fault = state().fault("nvmlInit_v2", None);
    fault.unwrap_or(state().scenario.init)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    OK
}

/// Copies `text` with its NUL, where there is room.
unsafe fn put_text(text: &str, out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    if text.len() >= length as usize {
        return TOO_SMALL;
    }
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the caller gives `length` bytes, and that is more than the text has.
        unsafe { out.add(at).write(byte as c_char) };
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(
    out: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: as the caller promises.
    unsafe { put_text(&state().scenario.driver, out, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> nvmlReturn_t {
    if let Some(code) = state().fault("nvmlDeviceGetCount_v2", None) {
        return code;
    }
    // SAFETY: the caller gives a place for the count.
    unsafe { out.write(state().scenario.gpus.len() as c_uint) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let handle = Handle {
        gpu: index as usize,
        instance: None,
    };
    gpu!(nvmlDeviceGetHandleByIndex_v2, handle.raw());
    // SAFETY: the caller gives a place for the handle.
    unsafe { out.write(handle.raw()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    out: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    let (gpu, _) = gpu!(nvmlDeviceGetName, device);
    // SAFETY: as the caller promises.
    unsafe { put_text(&gpu.name, out, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    out: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    let (gpu, instance) = gpu!(nvmlDeviceGetUUID, device);
    let uuid = instance.map_or(&gpu.uuid, |instance| &instance.uuid);
    // SAFETY: as the caller promises.
    unsafe { put_text(uuid, out, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(
    device: nvmlDevice_t,
    out: *mut nvmlPciInfo_t,
) -> nvmlReturn_t {
    gpu!(nvmlDeviceGetPciInfo_v3, device);
    let bus = Handle::of(device).map_or(0, |handle| handle.gpu as c_uint + 1);
    let mut info = nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain: 0,
        bus,
        device: 0,
        pciDeviceId: 0,
        pciSubSystemId: 0,
        busId: [0; 32],
    };
    let text = format!("00000000:{bus:02X}:00.0");
    // SAFETY: the fields are of these lengths, and the caller gives a place for the structure.
    unsafe {
        put_text(&text, info.busId.as_mut_ptr(), 32);
        put_text(&text[4..], info.busIdLegacy.as_mut_ptr(), 16);
        out.write(info);
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> nvmlReturn_t {
    let (gpu, _) = gpu!(nvmlDeviceGetCudaComputeCapability, device);
    // SAFETY: the caller gives places for both.
    unsafe {
        major.write(gpu.compute.0);
        minor.write(gpu.compute.1);
    }
    OK
}

fn memory(gpu: &Gpu, instance: Option<&Instance>) -> (u64, u64) {
    match instance {
        Some(instance) => (instance.memory_used, instance.memory_total),
        None => (gpu.memory_used(), gpu.memory_total),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    out: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    let (gpu, instance) = gpu!(nvmlDeviceGetMemoryInfo, device);
    let (used, total) = memory(gpu, instance);
    // SAFETY: the caller gives a place for the structure.
    unsafe {
        out.write(nvmlMemory_t {
            total,
            free: total - used,
            used,
        });
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    out: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    let (gpu, instance) = gpu!(nvmlDeviceGetMemoryInfo_v2, device);
    let (used, total) = memory(gpu, instance);
    // SAFETY: the caller gives a structure whose version is set.
    unsafe {
        let version = (*out).version;
        out.write(nvmlMemory_v2_t {
            version,
            total,
            reserved: 0,
            free: total - used,
            used,
        });
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSamples(
    device: nvmlDevice_t,
    which: nvmlSamplingType_t,
    since_us: c_ulonglong,
    kind: *mut nvmlValueType_t,
    count: *mut c_uint,
    out: *mut nvmlSample_t,
) -> nvmlReturn_t {
    let (gpu, instance) = gpu!(nvmlDeviceGetSamples, device);
    let of: fn(Busy) -> f64 = match which {
        nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES => |busy| busy.ns,
        nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES => |busy| busy.memory_ns,
        _ => return UNSUPPORTED,
    };
    if instance.is_some() || gpu.mig.is_some() {
        return UNSUPPORTED;
    }
    let samples = state().samples(gpu, since_us, of);
    // SAFETY: the caller gives places for kind and count, and `count` places for samples, or null
    // for how many there may be.
    unsafe {
        kind.write(nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG);
        if out.is_null() {
            count.write(120);
            return OK;
        }
        if samples.is_empty() {
            count.write(0);
            return nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
        }
        let room = count.read() as usize;
        for (at, sample) in samples.iter().take(room).enumerate() {
            out.add(at).write(*sample);
        }
        count.write(samples.len().min(room) as c_uint);
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    out: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let (gpu, _) = gpu!(nvmlDeviceGetComputeRunningProcesses_v3, device);
    // SAFETY: as the caller promises.
    unsafe { put_processes(&gpu.processes(), count, out) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: nvmlDevice_t,
    count: *mut c_uint,
    out: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let (gpu, _) = gpu!(nvmlDeviceGetComputeRunningProcesses_v2, device);
    // SAFETY: as the caller promises.
    unsafe { put_processes(&gpu.processes(), count, out) }
}

unsafe fn put_processes(
    processes: &[Process],
    count: *mut c_uint,
    out: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    // SAFETY: the caller gives a count, and as many places behind `out`.
    unsafe {
        let room = count.read() as usize;
        count.write(processes.len() as c_uint);
        if room < processes.len() {
            return TOO_SMALL;
        }
        for (at, process) in processes.iter().enumerate() {
            out.add(at).write(nvmlProcessInfo_t {
                pid: process.pid,
                usedGpuMemory: process.memory,
                gpuInstanceId: process.instance.unwrap_or(c_uint::MAX),
                computeInstanceId: process.instance.map_or(c_uint::MAX, |_| 0),
            });
        }
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    let (gpu, instance) = gpu!(nvmlDeviceGetMigMode, device);
    if instance.is_some() {
        return UNSUPPORTED;
    }
    // SAFETY: the caller gives places for both.
    unsafe {
        current.write(gpu.mig.is_some().into());
        pending.write(gpu.mig.is_some().into());
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let (gpu, _) = gpu!(nvmlDeviceGetMigDeviceHandleByIndex, device);
    let count = gpu.mig.as_ref().map_or(0, Vec::len);
    let Some(handle) = Handle::of(device).filter(|_| (index as usize) < count) else {
        return nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
    };
    let handle = Handle {
        instance: Some(index as usize),
        ..handle
    };
    // SAFETY: the caller gives a place for the handle.
    unsafe { out.write(handle.raw()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmQueryDeviceSupport(
    device: nvmlDevice_t,
    out: *mut nvmlGpmSupport_t,
) -> nvmlReturn_t {
    let (gpu, _) = gpu!(nvmlGpmQueryDeviceSupport, device);
    // SAFETY: the caller gives the structure.
    unsafe { (*out).isSupportedDevice = gpu.gpm.into() };
    OK
}

/// A GPM sample: when it was taken, and of which device.
#[derive(Clone, Copy, Default)]
struct Sample {
    time_ns: u64,
    device: usize,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleAlloc(out: *mut nvmlGpmSample_t) -> nvmlReturn_t {
    // SAFETY: the caller gives a place for the handle.
    unsafe { out.write(Box::into_raw(Box::<Sample>::default()).cast()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) -> nvmlReturn_t {
    // SAFETY: the handle came from nvmlGpmSampleAlloc, and is freed once.
    drop(unsafe { Box::from_raw(sample.cast::<Sample>()) });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleGet(
    device: nvmlDevice_t,
    sample: nvmlGpmSample_t,
) -> nvmlReturn_t {
    let (gpu, _) = gpu!(nvmlGpmSampleGet, device);
    if !gpu.gpm {
        return UNSUPPORTED;
    }
    let taken = Sample {
        time_ns: monotonic_ns(),
        device: device as usize,
    };
    // SAFETY: the handle came from nvmlGpmSampleAlloc.
    unsafe { sample.cast::<Sample>().write(taken) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMigSampleGet(
    device: nvmlDevice_t,
    _instance: c_uint,
    sample: nvmlGpmSample_t,
) -> nvmlReturn_t {
    // SAFETY: as the caller promises.
    unsafe { nvmlGpmSampleGet(device, sample) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMetricsGet(request: *mut nvmlGpmMetricsGet_t) -> nvmlReturn_t {
    // SAFETY: the caller gives the structure, with two samples of ours in it.
    let (request, first, second) = unsafe {
        let request = &mut *request;
        let of = |sample: nvmlGpmSample_t| *sample.cast::<Sample>();
        let (first, second) = (of(request.sample1), of(request.sample2));
        (request, first, second)
    };
    let (gpu, _) = gpu!(nvmlGpmMetricsGet, second.device as nvmlDevice_t);
    let length = second.time_ns.saturating_sub(first.time_ns);
    if length == 0 {
        return nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
    }
    let busy = gpu.busy(first.time_ns, second.time_ns);
    let share = |ns: f64| ns / length as f64;
    // Of the time in which multiprocessors are active.
    let active = share(busy.multiprocessors_ns) / gpu.sm;
    let (sm, dram) = (share(busy.multiprocessors_ns), share(busy.memory_ns));
    let busy = share(busy.ns);
    for metric in request.metrics.iter_mut().take(request.numMetrics as usize) {
        metric.metricInfo.shortName = c"double".as_ptr().cast_mut();
        metric.metricInfo.longName = c"double".as_ptr().cast_mut();
        metric.metricInfo.unit = c"%".as_ptr().cast_mut();
        metric.nvmlReturn = OK;
        metric.value = match metric.metricId {
            nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL => 100.0 * sm,
            nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY => 100.0 * active * gpu.occupancy,
            nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL => 100.0 * active * gpu.tensor,
            nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL => 100.0 * dram,
            nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_TX_PER_SEC
            | nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_RX_PER_SEC
                if gpu.pcie_kb.is_some() =>
            {
                f64::from(gpu.pcie_kb.unwrap_or(0)) * 1000.0 / 1_048_576.0 * busy
            }
            nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC
            | nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC => gpu.nvlink_mib * busy,
            _ => {
                metric.nvmlReturn = UNSUPPORTED;
                0.0
            }
        };
    }
    OK
}
