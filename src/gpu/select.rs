//! Which devices are recorded: `--gpu`.

use crate::model::gpu_name::{GpuName, MAX_NAMES, NoGpuName};
use crate::model::track::GpuInfo;

/// The value of `--gpu`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuChoice {
    /// Devices that the sampled processes use.
    #[default]
    Used,
    All,
    None,
    List(Vec<GpuName>),
}

impl GpuChoice {
    /// Parses `all`, `none`, `used`, or a comma-separated list.
    ///
    /// # Errors
    /// The first item that is not a device name.
    pub fn parse(text: &str) -> Result<Self, NoGpuName> {
        match text.trim() {
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            "used" => Ok(Self::Used),
            list => {
                let names: Result<Vec<_>, _> = list.split(',').map(GpuName::parse).collect();
                let names = names?;
                if names.len() > MAX_NAMES {
                    return Err(NoGpuName(list.to_owned()));
                }
                Ok(Self::List(names))
            }
        }
    }

    /// Whether this selects a device regardless of which processes use it.
    pub fn takes(&self, gpu: &GpuInfo) -> bool {
        match self {
            Self::All => true,
            Self::List(names) => names.iter().any(|name| name.is_of(gpu)),
            Self::Used | Self::None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, mig: Option<u32>, uuid: &str) -> GpuInfo {
        GpuInfo {
            index,
            mig,
            uuid: uuid.to_owned(),
            ..GpuInfo::default()
        }
    }

    #[test]
    fn devices_go_by_number_and_by_uuid() {
        let whole = gpu(1, None, "GPU-8d2c-aa");
        let instance = gpu(0, Some(2), "MIG-77-bb");
        let takes = |text: &str, gpu: &GpuInfo| GpuChoice::parse(text).unwrap().takes(gpu);
        assert!(takes("all", &whole) && takes("all", &instance));
        assert!(!takes("none", &whole) && !takes("used", &whole));
        assert!(takes("0,1", &whole) && takes("0", &instance));
        assert!(takes("0:2", &instance) && !takes("0:1", &instance));
        assert!(takes("GPU-8d2c", &whole) && !takes("GPU-8d3", &whole));
        assert!(takes(" MIG-77-bb ", &instance));
        // Every GPU begins like this: it names none.
        assert!(!takes("GPU-", &whole));
        for wrong in ["", "x", "1,", "1.5", "-1", "0:", "cuda:0"] {
            assert!(GpuChoice::parse(wrong).is_err(), "{wrong}");
        }
    }
}
