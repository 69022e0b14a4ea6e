//! CPython, read from outside: pure over a [`Memory`](crate::memory::Memory).
