//! GPUs by the names that users and CUDA_VISIBLE_DEVICES give them.

use super::track::GpuInfo;

/// Maximum number of named devices.
pub const MAX_NAMES: usize = 256;

/// A device by one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuName {
    /// By the driver's number, optionally with a MIG instance's number (`0:1`).
    Index(u32, Option<u32>),
    /// By its UUID or a prefix of it: `GPU-…`, `MIG-…`.
    Uuid(String),
}

/// A word that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no GPU")]
pub struct NoGpuName(pub String);

impl GpuName {
    /// Reads a number (`0`, `0:1` for a MIG instance) or a UUID.
    ///
    /// # Errors
    /// Where the text can name no device.
    pub fn parse(text: &str) -> Result<Self, NoGpuName> {
        let text = text.trim();
        let no = || NoGpuName(text.to_owned());
        if text.starts_with("GPU-") || text.starts_with("MIG-") {
            return Ok(Self::Uuid(text.to_owned()));
        }
        let (index, mig) = match text.split_once(':') {
            Some((index, mig)) => (index, Some(mig.parse().map_err(|_| no())?)),
            None => (text, None),
        };
        Ok(Self::Index(index.parse().map_err(|_| no())?, mig))
    }

    /// Whether it names this device. The number of a device names its MIG instances, too.
    pub fn is_of(&self, gpu: &GpuInfo) -> bool {
        match self {
            Self::Index(index, mig) => *index == gpu.index && (mig.is_none() || *mig == gpu.mig),
            Self::Uuid(uuid) => uuid.len() > "GPU-".len() && gpu.uuid.starts_with(uuid.as_str()),
        }
    }
}

impl std::fmt::Display for GpuName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(index, None) => write!(formatter, "{index}"),
            Self::Index(index, Some(mig)) => write!(formatter, "{index}:{mig}"),
            Self::Uuid(uuid) => write!(formatter, "{uuid}"),
        }
    }
}

/// The devices that a process may see, from its CUDA_VISIBLE_DEVICES; `None` if it is not set, and
/// all are visible.
///
/// An invalid name ends the list, as for CUDA (CUDA C++ Programming Guide, "CUDA Environment
/// Variables"). An index counts devices in CUDA's order, which is the driver's only with
/// CUDA_DEVICE_ORDER=PCI_BUS_ID, or if all devices are alike: so this is a hint, and the driver's
/// own list of processes takes precedence.
pub fn visible_devices(value: Option<&str>) -> Option<Vec<GpuName>> {
    let value = value?;
    let names = value.split(',').map(|word| GpuName::parse(word).ok());
    Some(names.take(MAX_NAMES).map_while(|name| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_visible_devices_in_all_its_forms() {
        let names = |value: &str| -> Vec<String> {
            let names = visible_devices(Some(value)).unwrap();
            names.iter().map(ToString::to_string).collect()
        };
        assert_eq!(visible_devices(None), None);
        assert_eq!(names(""), [""; 0]);
        assert_eq!(names("-1"), [""; 0]);
        assert_eq!(names("NoDevFiles"), [""; 0]);
        assert_eq!(names("2,0"), ["2", "0"]);
        assert_eq!(names("0,-1,1"), ["0"]);
        assert_eq!(names("GPU-8d2c, MIG-77-bb"), ["GPU-8d2c", "MIG-77-bb"]);
        let old = "MIG-GPU-8d2c/1/0";
        assert_eq!(names(old), [old]);
    }
}
