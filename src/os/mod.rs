//! The operating system: the only home of libc, unsafe code and /proc.
