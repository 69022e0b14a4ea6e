//! CPython, read from outside: pure over a [`Memory`](crate::memory::Memory).
//!
//! [`discover`] finds an interpreter among a process's ELF files, [`threads`] its threads and the
//! holder of the GIL, [`frames`] a thread's frames, and [`code_object`] their code objects. Offsets
//! of fields are data, in [`layout`]. Everything that is read is treated as hostile: bounded and
//! checked.

mod cells;
pub mod code_fields;
pub mod code_object;
pub mod collections;
pub mod dicts;
pub mod discover;
pub mod frames;
pub mod layout;
pub mod line_table;
pub mod locks;
pub mod modules;
pub mod objects;
pub mod source_regions;
pub mod tasks;
pub mod thread_name;
pub mod threads;
pub mod values;
pub mod variables;
