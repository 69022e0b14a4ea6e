//! The operating system: the only home of libc, unsafe code and /proc.

pub mod access;
pub mod host;
pub mod launch;
pub mod permissions;
pub mod process_info;
pub mod process_tree;
pub mod redaction;
pub mod signals;
