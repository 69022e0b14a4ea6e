//! Native code: modules, unwinding, symbols. Pure: handed memory and bytes.
//!
//! [`loaded::LoadedModules`] knows what code lies where in a process, [`unwind::Unwinder`] walks a
//! copied stack with the modules' unwind tables, and [`modules::Module::symbols`] names the
//! addresses afterwards.

pub mod demangle;
mod expression;
mod guess;
pub mod image;
pub mod loaded;
pub mod modules;
mod plt;
mod rows;
pub mod shorten;
mod sites;
pub mod symbols;
pub mod unwind;
