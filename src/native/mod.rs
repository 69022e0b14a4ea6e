//! Native code: modules, unwinding, symbols. Pure: the caller provides memory and bytes.
//!
//! [`loaded::LoadedModules`] has the modules of a process by address, [`unwind::Unwinder`] walks a
//! copied stack with the modules' unwind tables, and [`modules::Module::symbols`] names the
//! addresses afterwards.

pub mod demangle;
mod expression;
mod guess;
pub mod image;
mod link;
pub mod loaded;
pub mod modules;
mod plt;
mod rows;
pub mod shorten;
mod sites;
pub mod symbols;
pub mod unwind;
