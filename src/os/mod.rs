//! The operating system: the only home of libc, unsafe code and /proc.

pub mod clock;
pub mod stop;
pub mod threads;
pub mod vm_read;
