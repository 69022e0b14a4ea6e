//! The names that Python's own threads have: those of `threading.Thread`, which the kernel is told
//! from 3.14 on only.

use super::code_object::CodeCache;
use super::discover::Interpreter;
use super::frames::{PythonStack, read_stack};
use super::objects::read_str;
use super::variables::read_attributes;
use crate::memory::Memory;
use crate::model::ids::CodeId;

/// What Lib/threading.py calls the thread that started the interpreter.
pub const MAIN_THREAD: &str = "MainThread";
/// The longest name.
const MAX_NAME: usize = 128;

/// The name of the thread whose `PyThreadState` is at `state`; empty where it was not made by
/// `threading`. It may run.
///
/// `None` while it has no frames that can be read: it may be about to start.
pub fn read_thread_name(
    interpreter: &Interpreter,
    state: u64,
    memory: &dyn Memory,
) -> Option<String> {
    let mut stack = PythonStack::default();
    // What could be read counts: it is the outermost frame that is wanted.
    let _ = read_stack(interpreter, state, memory, &mut stack);
    let outermost = stack.frames.last()?;
    let mut codes = CodeCache::new(interpreter);
    codes.resolve(&[outermost.code_address], memory, |_| CodeId::from_index(0));
    let code = codes.get(outermost.code_address).ok()?;
    // `_bootstrap` calls all else, with the thread as its `self` (3.10 to 3.15).
    let is_thread = code.info.file.ends_with("/threading.py")
        && code.info.name.rsplit('.').next() == Some("_bootstrap");
    if !is_thread {
        return Some(String::new());
    }
    let attributes = read_attributes(interpreter, outermost.first_local, memory).ok()?;
    let name = attributes.iter().find(|each| each.name == "_name")?;
    read_str(&interpreter.layout, name.object, MAX_NAME, memory).ok()
}
