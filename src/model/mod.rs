//! Plain data that every stage shares. Nothing here does I/O, knows an operating system, or blocks.

pub mod address;
pub mod category;
pub mod code;
pub mod compile;
pub mod depth;
pub mod dump;
pub mod frame;
pub mod gpu_name;
pub mod ids;
pub mod lane;
pub mod module;
pub mod nn_module;
pub mod operator;
pub mod process;
pub mod profile;
pub mod progress;
pub mod quality;
pub mod region;
pub mod registers;
pub mod run;
pub mod sample;
pub mod segment;
pub mod stack_table;
pub mod text;
pub mod wait;
