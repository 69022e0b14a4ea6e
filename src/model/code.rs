//! Python code objects, by content.

use std::ops::RangeInclusive;

/// Major and minor version of CPython, which decide every layout and the form of line tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PythonVersion {
    pub major: u8,
    /// 10 for 3.10.
    pub minor: u8,
}

impl PythonVersion {
    /// Minor versions of Python 3 with known structures. Any other is refused: its objects are not
    /// read with the offsets of a neighbouring version.
    pub const SUPPORTED: RangeInclusive<u8> = 10..=15;

    /// `PythonVersion::new(3, 11)`.
    pub const fn new(major: u8, minor: u8) -> Self {
        Self { major, minor }
    }
}

impl std::fmt::Display for PythonVersion {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// The facts about a code object that name a frame later, on another machine. Lines are in the
/// frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeInfo {
    /// `co_qualname` where there is one (3.11 on), else `co_name`.
    pub name: String,
    /// `co_filename`.
    pub file: String,
    /// `co_firstlineno`.
    pub first_line: u32,
    pub version: PythonVersion,
    /// A hash of the bytecode's length and the line table: it distinguishes two lambdas on one
    /// line.
    pub content_hash: u64,
}

impl CodeInfo {
    /// What it stands for, if it is not a code object but a named block of one.
    pub fn region(&self) -> Option<RegionKind> {
        [RegionKind::Own, RegionKind::Torch]
            .into_iter()
            .find(|kind| *kind as u64 == self.content_hash)
    }
}

/// A named block of a function, which stacks show as a frame inside of the function's. Its
/// [`CodeInfo`] has this in place of the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum RegionKind {
    /// Named by `torchspy.region` or `torchspy.mark`.
    Own = 0x7265_6769_6f6e_2e01,
    /// Named by `torch.profiler.record_function` or NVTX.
    Torch = 0x7265_6769_6f6e_2e02,
}
