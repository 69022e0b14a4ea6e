//! The operating system: the only module with libc, unsafe code and /proc.

pub mod access;
pub mod bell;
pub mod clock;
pub mod elf_file;
pub(crate) mod fault;
pub mod host;
pub mod kernel_view;
pub mod launch;
pub mod maps;
pub mod new_pids;
pub mod nvml;
pub mod own_thread;
pub mod permissions;
pub mod placement;
pub mod priority;
pub mod process_info;
pub mod process_tree;
pub mod process_usage;
pub mod program;
pub mod redaction;
pub mod resident;
pub mod signals;
pub mod stop;
pub mod syscalls;
pub mod threads;
pub mod vm_read;
