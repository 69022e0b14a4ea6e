//! NVML, the driver's management library, through nvml-wrapper.

mod device;

use super::{Found, GpuError, GpuErrorKind, GpuSource};
use crate::model::track::GpuInfo;
use crate::os::nvml::gpu_instance;
use device::{NvmlDevice, memory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::ffi::OsStr;
use std::path::Path;

/// Most devices that are recorded.
const MAX_DEVICES: u32 = 64;
/// Most MIG instances of a device: current devices have at most seven.
const MAX_INSTANCES: u32 = 64;
/// NVML, loaded and initialised.
#[derive(Debug)]
pub struct NvmlSource {
    /// Never unloaded: a call that hangs in the driver may never return.
    nvml: &'static Nvml,
    driver: String,
}

impl NvmlSource {
    /// Loads the library, from `library` or from the default path, and initialises it. This may
    /// take seconds where no other program keeps the driver loaded.
    ///
    /// # Errors
    /// The library cannot be loaded or initialised.
    pub fn open(library: Option<&Path>) -> Result<Self, GpuError> {
        let name = library.map_or(OsStr::new("libnvidia-ml.so.1"), Path::as_os_str);
        let nvml = Nvml::builder()
            .lib_path(name)
            .init()
            .map_err(|error| failed_to_open(name, &error))?;
        let driver = nvml.sys_driver_version().unwrap_or_default();
        Ok(Self {
            nvml: Box::leak(Box::new(nvml)),
            driver,
        })
    }
}

fn failed_to_open(name: &OsStr, error: &NvmlError) -> GpuError {
    let name = name.to_string_lossy();
    let reason = match error {
        NvmlError::LibloadingError(cause) => {
            let cause = cause.to_string();
            if cause.contains("No such file") {
                format!("{name} was not found: no NVIDIA driver here, or not in this container")
            } else {
                format!("{name} cannot be loaded: {cause}")
            }
        }
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded".to_owned(),
        NvmlError::LibRmVersionMismatch => {
            "driver mismatch: NVML's library and the kernel's driver are of different versions"
                .to_owned()
        }
        NvmlError::NoPermission | NvmlError::OperatingSystem => {
            format!("no permission to talk to the NVIDIA driver: {error}")
        }
        other => format!("NVML does not work: {other}"),
    };
    GpuError {
        kind: match error {
            NvmlError::LibloadingError(_) | NvmlError::FailedToLoadSymbol(_) => {
                GpuErrorKind::Unsupported
            }
            NvmlError::NoPermission | NvmlError::OperatingSystem => GpuErrorKind::Denied,
            _ => GpuErrorKind::Failed,
        },
        reason,
    }
}

impl From<NvmlError> for GpuError {
    fn from(error: NvmlError) -> Self {
        let (kind, reason) = match &error {
            NvmlError::NotSupported => (
                GpuErrorKind::Unsupported,
                "this GPU has no such figure".to_owned(),
            ),
            NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => (
                GpuErrorKind::Unsupported,
                "this driver is too old for it".to_owned(),
            ),
            NvmlError::GpuLost => (GpuErrorKind::Lost, "the GPU fell off the bus".to_owned()),
            NvmlError::NoPermission => (GpuErrorKind::Denied, "no permission".to_owned()),
            other => (GpuErrorKind::Failed, other.to_string()),
        };
        Self { kind, reason }
    }
}

impl GpuSource for NvmlSource {
    fn devices(&self) -> Result<Found, GpuError> {
        let count = self.nvml.device_count()?;
        let mut found = Found::default();
        if count > MAX_DEVICES {
            found.missing.push(format!(
                "{count} GPUs: only the first {MAX_DEVICES} are recorded"
            ));
        }
        for index in 0..count.min(MAX_DEVICES) {
            match self.nvml.device_by_index(index) {
                Ok(device) => self.with_instances(index, device, &mut found),
                Err(error) => found
                    .missing
                    .push(format!("GPU {index}: {}", GpuError::from(error))),
            }
        }
        Ok(found)
    }
}

impl NvmlSource {
    /// Adds a device and, in MIG mode, its instances.
    fn with_instances(&self, index: u32, device: Device<'static>, found: &mut Found) {
        // NVML_DEVICE_MIG_ENABLE is 1.
        let is_split = device.mig_mode().is_ok_and(|mode| mode.current == 1);
        if is_split {
            let count = device.mig_device_count().unwrap_or(0).min(MAX_INSTANCES);
            let mut instances = 0;
            for number in 0..count {
                // Unused indices return NOT_FOUND.
                if let Ok(instance) = device.mig_device_by_index(number) {
                    instances += 1;
                    let info = self.info(&instance, index, Some(number));
                    let instance_id = gpu_instance(&instance).ok();
                    let parent = self.nvml.device_by_index(index).ok();
                    let instance = NvmlDevice::new(self.nvml, instance, info);
                    found
                        .devices
                        .push(Box::new(instance.of(parent, instance_id)));
                }
            }
            if instances == 0 {
                found.missing.push(format!(
                    "GPU {index} is in MIG mode and has no instance: nothing can run on it"
                ));
            }
        }
        let info = self.info(&device, index, None);
        let whole = NvmlDevice::new(self.nvml, device, info);
        found.devices.push(Box::new(whole));
    }

    fn info(&self, device: &Device<'static>, index: u32, mig: Option<u32>) -> GpuInfo {
        let memory = memory(device).map(|(_, total)| total);
        GpuInfo {
            uuid: device.uuid().unwrap_or_default(),
            index,
            mig,
            name: device.name().unwrap_or_default(),
            driver: self.driver.clone(),
            pci: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
            memory_bytes: memory.unwrap_or(0),
            power_limit_mw: device.power_management_limit().unwrap_or(0).into(),
            recorded: false,
        }
    }
}
