//! A part of a process's address space.

/// One mapping of a process's address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    pub offset: u64,
    /// The file's inode number; 0 where there is no file.
    pub inode: u64,
    /// The file's device, major and minor number.
    pub device: (u32, u32),
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    /// `s`: writes are seen by others.
    pub shared: bool,
    /// The path as displayed, without ` (deleted)`; `[vdso]`, `[heap]` and similar; empty for
    /// anonymous memory.
    pub path: String,
    /// The file was unlinked: the path no longer leads to it.
    pub deleted: bool,
}

impl Mapping {
    /// Whether this maps a file below `/dev/`. Such memory is never read: a device may have side
    /// effects.
    pub fn is_device(&self) -> bool {
        self.path.starts_with("/dev/")
    }

    /// Whether this is backed by a file that can be opened: a real path, no device and no memfd.
    pub fn is_file(&self) -> bool {
        self.path.starts_with('/')
            && !self.is_device()
            && !self.path.starts_with("/memfd:")
            && self.path != "//anon"
    }

    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    pub fn size(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    pub fn same_file(&self, other: &Self) -> bool {
        self.inode == other.inode && self.device == other.device && self.path == other.path
    }
}
