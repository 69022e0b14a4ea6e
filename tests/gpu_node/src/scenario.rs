//! What the node is like. Everything has a default: a scenario says what is special about it.

use serde::{Deserialize, Serialize};
use std::path::Path;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    pub gpus: Vec<Gpu>,
    /// What kernels cost whose name has a part; the first that fits. Others cost by their threads.
    pub kernels: Vec<Cost>,
    /// All costs of devices, times this.
    pub slow: f64,
    /// Kernels and copies that may wait in a stream until a launch waits for room.
    pub queue: usize,
    /// From a launch to the earliest start on an idle device, us.
    pub latency_us: f64,
    /// What a thread does that waits for a device.
    pub wait: Wait,
    /// What the first use of a kernel costs the thread that launches it (lazy loading), us.
    pub load_us: f64,
    /// What the first use of a device costs the thread that uses it, ms.
    pub context_ms: f64,
    /// What an allocation of device or pinned memory costs the thread, us.
    pub allocation_us: f64,
    /// What setting up a communicator costs each rank after all have come, ms.
    pub communicator_ms: f64,
    /// Rate of collectives between devices, GB/s, and what each costs besides, us.
    pub link_gb_s: f64,
    pub link_us: f64,
}

/// As `cudaDeviceScheduleSpin`, `…Yield` and `…BlockingSync` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    Spin,
    Yield,
    Block,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    pub name: String,
    pub uuid: String,
    pub compute: (i32, i32),
    pub memory_total: u64,
    pub multiprocessors: u32,
    /// GEMMs cost by this, other kernels by `gb_s`, copies from and to the host by `pcie_gb_s`.
    pub tflops: f64,
    pub gb_s: f64,
    pub pcie_gb_s: f64,
    /// From when on, in seconds since processes use it, and by what factor it is slower.
    pub throttle: Option<Throttle>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Throttle {
    pub from_s: f64,
    pub factor: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Part of the kernel's name as the compiler mangles it, or of `gemm`, `memset`, `h2d`, `d2h`,
    /// `d2d`, `graph`.
    pub name: String,
    pub us: f64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            gpus: vec![Gpu::default()],
            kernels: Vec::new(),
            slow: 1.0,
            queue: 1024,
            latency_us: 4.0,
            wait: Wait::Spin,
            load_us: 0.0,
            context_ms: 0.0,
            allocation_us: 0.0,
            communicator_ms: 0.0,
            link_gb_s: 100.0,
            link_us: 10.0,
        }
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            name: "Simulated GPU".to_owned(),
            uuid: uuid(0),
            compute: (8, 0),
            memory_total: 40 << 30,
            multiprocessors: 108,
            tflops: 100.0,
            gb_s: 1500.0,
            pcie_gb_s: 20.0,
            throttle: None,
        }
    }
}

/// The UUID of a device by its number.
pub fn uuid(number: usize) -> String {
    format!("GPU-51700000-0000-0000-0000-{number:012x}")
}

impl Scenario {
    /// This many devices of one kind.
    pub fn of_gpus(count: usize) -> Self {
        let gpu = |number| Gpu {
            uuid: uuid(number),
            ..Gpu::default()
        };
        Self {
            gpus: (0..count).map(gpu).collect(),
            ..Self::default()
        }
    }

    /// The scenario of a node's folder; the default one where it has none.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let path = folder.join("scenario.json");
        match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| format!("cannot read {}: {error}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        }
    }
}
