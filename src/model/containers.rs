//! Containers of a process that grow.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of the text of [`KeptContainers`].
const VERSION: u32 = 1;

/// A list, a dictionary, a set or a deque that was longer at each reading, or as long.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub struct GrowingContainer {
    /// The expression that leads to it: `self.history`.
    pub name: String,
    /// Its class: `list`.
    pub class: String,
    /// The file of the variable; empty for the program's script, where it is not known.
    pub file: String,
    /// The function whose local variable it is; empty for global variables.
    pub function: String,
    /// The function's first line; 0 for global variables.
    pub line: u32,
    /// First reading, CLOCK_MONOTONIC.
    pub first_ns: u64,
    pub first_length: u64,
    /// Last reading.
    pub last_ns: u64,
    pub last_length: u64,
    /// Class of its last item.
    pub item_class: String,
    /// Mean size of its last items with their arrays, and with their tensors on the host; null if
    /// it was not read.
    pub item_bytes: Option<u64>,
    /// Mean size of the tensors of its last items on other devices.
    #[serde(default)]
    pub item_device_bytes: Option<u64>,
    /// Whether tensors among its last items keep their graphs, whose size is not read: they were
    /// not detached.
    #[serde(default)]
    pub items_keep_graphs: bool,
}

impl GrowingContainer {
    /// Items that were added, each second.
    pub fn items_per_s(&self) -> f64 {
        let added = self.last_length.saturating_sub(self.first_length) as f64;
        added / (self.last_ns.saturating_sub(self.first_ns).max(1) as f64 / 1e9)
    }

    /// Bytes of an item, on the host or on other devices.
    pub fn bytes_of_item(&self, on_devices: bool) -> u64 {
        let bytes = match on_devices {
            true => self.item_device_bytes,
            false => self.item_bytes,
        };
        bytes.unwrap_or(0)
    }

    /// Bytes that the items have that are added each second.
    pub fn bytes_per_s(&self, on_devices: bool) -> f64 {
        self.items_per_s() * self.bytes_of_item(on_devices) as f64
    }
}

/// What a recording keeps of them; the last one counts.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct KeptContainers {
    version: u32,
    pub growing: Vec<GrowingContainer>,
}

impl KeptContainers {
    pub fn text(growing: Vec<GrowingContainer>) -> String {
        let kept = Self {
            version: VERSION,
            growing,
        };
        serde_json::to_string(&kept).unwrap_or_default()
    }

    /// `None` for what is damaged, or of another version.
    pub fn parse(text: &str) -> Option<Self> {
        let kept: Self = serde_json::from_str(text).ok()?;
        (kept.version == VERSION).then_some(kept)
    }
}
