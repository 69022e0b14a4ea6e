//! What NCCL's RAS subsystem reports: how many collectives each rank of each communicator has
//! launched, and which ranks are missing.

/// An answer of one RAS socket, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RasAnswer {
    /// Where it was asked: `localhost:28028`.
    pub address: String,
    /// A reason in a few words, where it did not answer.
    pub ras: Result<Ras, String>,
}

/// A job, as its NCCL sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ras {
    pub nccl_version: String,
    pub communicators: Vec<Communicator>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Communicator {
    /// NCCL's hash of it: `0xae94423cfbb2ef4a`.
    pub hash: String,
    /// Number of its ranks.
    pub size: u32,
    pub ranks: Vec<RasRank>,
    /// Ranks of which RAS has no data.
    pub missing: Vec<MissingRank>,
}

/// Whose rank it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Member {
    /// The rank in the communicator.
    pub rank: u32,
    /// Address of NCCL's network interface there, not a name.
    pub host: String,
    /// As its process sees it, which in a container is another one than outside; as torchspy sees
    /// it where `is_here`.
    pub pid: i32,
    /// Whether it is a process of the machine that was asked, and of its dump.
    pub is_here: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RasRank {
    pub member: Member,
    /// What `ncclCommGetAsyncError` would return; 0 is success.
    pub async_error: i32,
    /// Collectives that were launched, by kind: `AllReduce`.
    pub counts: Vec<(String, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingRank {
    pub member: Member,
    /// RAS did not reach it.
    pub unresponsive: bool,
    /// RAS has given it up.
    pub dead: bool,
}
