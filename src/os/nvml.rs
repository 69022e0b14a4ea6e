//! NVML calls that nvml-wrapper has no safe form of: older forms, for drivers that lack the newer
//! ones.
#![allow(unsafe_code)]

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::nvmlMemory_t;

/// Used and total memory of a device, bytes, by `nvmlDeviceGetMemoryInfo`: drivers before R510 have
/// no other form.
///
/// # Errors
/// NVML's error.
pub fn memory_info_v1(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    // SAFETY: the handle is of a device that lives as long as its library; `memory` is a valid
    // place for the result.
    nvml_try(unsafe { call(device.handle(), &mut memory) })?;
    Ok((memory.used, memory.total))
}

/// The GPU instance of a MIG device.
///
/// # Errors
/// NVML's error.
pub fn gpu_instance(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: as above; `id` is a valid place for an unsigned int.
    nvml_try(unsafe { call(device.handle(), &mut id) })?;
    Ok(id)
}
