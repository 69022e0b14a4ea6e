//! Small integers for interned values. An id is meaningful only together with its table.

use serde::{Deserialize, Serialize};

/// An id that is an index into its table.
pub trait Id: Copy + Eq {
    /// The id as an index into its table.
    fn index(self) -> usize;

    /// The id of the element at `index`.
    fn from_index(index: usize) -> Self;
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index into its table.
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The id of the element at `index`.
            ///
            /// Saturates: no table here grows to 2^32 elements, and one that would is full long
            /// before.
            pub fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }
        }

        impl Id for $name {
            fn index(self) -> usize {
                Self::index(self)
            }

            fn from_index(index: usize) -> Self {
                Self::from_index(index)
            }
        }
    };
}

id!(
    /// A process of the recording (not a pid, which the kernel reuses).
    ProcessId
);
id!(
    /// A thread of the recording (not a tid, which the kernel reuses).
    ThreadId
);
id!(
    /// An ELF file, the vDSO, or memory without a file, of which code was seen.
    ModuleId
);
id!(
    /// A Python code object, by content.
    CodeId
);
id!(
    /// An `nn.Module` whose calls were seen.
    NnModuleId
);
id!(
    /// A counter of progress.
    CounterId
);
id!(
    /// A GPU, or an instance of one.
    GpuId
);
id!(
    /// A counter track: one figure of one device or process over time.
    TrackId
);
id!(
    /// A frame of a [`StackTable`](super::stack_table::StackTable).
    FrameId
);
id!(
    /// A stack of a [`StackTable`](super::stack_table::StackTable).
    StackId
);
id!(
    /// A chain of [`Facts`](super::facts::Facts): operators, nodes or modules from the innermost
    /// outward.
    ChainId
);
id!(
    /// A function of a [`Profile`](super::profile::Profile).
    FunctionId
);
id!(
    /// A string of [`Facts`](super::facts::Facts).
    NameId
);
id!(
    /// A collective of [`Facts`](super::facts::Facts).
    CollectiveId
);
