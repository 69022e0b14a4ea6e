//! The operating system: the only home of libc, unsafe code and /proc.

pub mod elf_file;
pub mod maps;
