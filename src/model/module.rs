//! Native modules: what code was loaded, and the names that were found in it.

use super::ids::ModuleId;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ModuleKind {
    File,
    Vdso,
    /// Executable memory without a file: code made at run time.
    Anonymous,
}

/// A module with code that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModuleInfo {
    pub kind: ModuleKind,
    /// Its path in the target's root; `[vdso]` or `[anonymous]` without a file.
    pub path: String,
    /// The GNU build-id; empty where it has none.
    pub build_id: Vec<u8>,
}

/// A native symbol: the addresses `start..end` of `module` belong to `name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SymbolInfo {
    pub module: ModuleId,
    /// First address, in the file's own virtual addresses.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The name as in the symbol table, mangled.
    pub name: String,
}
