//! Collectives: what a function's rules define, and the collective of a stack.

use super::named::named;

named!(
    /// Who moves the data.
    Backend {
        /// NCCL: the host enqueues, the GPU waits.
        Nccl = "nccl",
        /// Gloo: threads of the host.
        Gloo = "gloo",
        Mpi = "mpi",
        Ucc = "ucc",
    }
);

named!(
    /// The wrapper that a collective runs for.
    Issuer {
        /// DDP's reduction of gradients by buckets.
        DdpBucket = "DDP bucket",
        /// DDP's own work around it: copies into buckets, hooks.
        DdpReducer = "DDP reducer",
        /// DDP's broadcast of buffers before forward.
        DdpBuffers = "DDP buffers",
        /// DDP's set-up: parameters are verified and broadcast.
        DdpStart = "DDP start",
        /// FSDP gathers the parameters of a module.
        FsdpUnshard = "FSDP unshard",
        /// FSDP frees them.
        FsdpReshard = "FSDP reshard",
        /// FSDP reduces gradients.
        FsdpReduce = "FSDP reduce",
        /// Statistics of SyncBatchNorm.
        SyncBatchNorm = "SyncBatchNorm",
        /// Ranks synchronize for a checkpoint.
        Checkpoint = "checkpoint",
    }
);

impl Issuer {
    /// The collective that it issues, if no frame names another; `None` if it issues none.
    pub fn collective(self) -> Option<&'static str> {
        match self {
            Issuer::DdpBucket => Some("all_reduce"),
            Issuer::DdpBuffers | Issuer::DdpStart => Some("broadcast"),
            Issuer::FsdpUnshard => Some("all_gather"),
            Issuer::FsdpReduce => Some("reduce_scatter"),
            Issuer::DdpReducer
            | Issuer::FsdpReshard
            | Issuer::SyncBatchNorm
            | Issuer::Checkpoint => None,
        }
    }
}

impl Issuer {
    /// Whether all of its work is communication; others also do other work, and only label the
    /// collectives in it.
    pub fn is_communication(self) -> bool {
        matches!(
            self,
            Issuer::DdpBucket
                | Issuer::DdpReducer
                | Issuer::FsdpUnshard
                | Issuer::FsdpReshard
                | Issuer::FsdpReduce
        )
    }
}

/// What a function's rules define for collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CollectivePart {
    pub name: Option<&'static str>,
    /// The library that moves the data.
    pub backend: Option<Backend>,
    /// The wrapper that it runs for.
    pub issuer: Option<Issuer>,
    /// It imports: its callers wait for no rank.
    pub imports: bool,
    /// It is the root of a thread that only watches collectives.
    pub watches: bool,
}

/// The name of NCCL's set-up of a communicator, which it does in the first collective unless the
/// process group was bound to a device.
pub const COMMUNICATOR_INIT: &str = "nccl_communicator_init";

/// The collective that a sample is in, or a wrapper's own work around one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CollectiveCall {
    /// The collective: `all_reduce`. `None` for a wrapper's own work around it. `wait` if the stack
    /// waits for one that was issued earlier and is not known.
    pub name: Option<&'static str>,
    pub backend: Option<Backend>,
    /// The wrapper that it runs for, if any.
    pub issuer: Option<Issuer>,
}

impl CollectiveCall {
    /// Whether the rank takes part in a collective at this time, or waits for one: it has arrived.
    pub fn has_arrived(self) -> bool {
        self.name.is_some()
    }

    /// Whether no rank can leave it before all have arrived. That is so where each needs what all
    /// others have; the root of a broadcast has sent, and goes on.
    pub fn ends_together(self) -> bool {
        matches!(
            self.name,
            Some(
                "all_reduce"
                    | "all_gather"
                    | "all_gather_object"
                    | "all_to_all"
                    | "reduce_scatter"
                    | "barrier"
                    | "monitored_barrier"
                    | "wait"
                    | "wait_tensor"
            )
        )
    }

    /// `all_reduce (DDP bucket)`.
    pub fn label(self) -> String {
        match (self.name, self.issuer) {
            (Some(name), Some(issuer)) => format!("{name} ({})", issuer.name()),
            (Some(name), None) => name.to_owned(),
            (None, Some(issuer)) => issuer.name().to_owned(),
            (None, None) => "collective".to_owned(),
        }
    }
}
