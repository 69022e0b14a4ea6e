//! Names of `threading.Thread` objects, which the kernel has only from 3.14 on.

use super::code_object::CodeCache;
use super::discover::Interpreter;
use super::frames::{PythonStack, read_running_stack};
use super::objects::read_str;
use super::variables::read_attributes;
use crate::memory::Memory;
use crate::model::ids::CodeId;

/// The name that Lib/threading.py gives the thread that started the interpreter.
pub const MAIN_THREAD: &str = "MainThread";
const MAX_NAME: usize = 128;

/// The name of the thread whose `PyThreadState` is at `state`; empty if `threading` did not create
/// it. It may run.
///
/// `None` while its frames are not read to the root: it may be about to start.
pub fn read_thread_name(
    interpreter: &Interpreter,
    state: u64,
    memory: &dyn Memory,
) -> Option<String> {
    let mut stack = PythonStack::default();
    // The last frame of an incomplete stack is not the outermost.
    read_running_stack(interpreter, state, memory, &mut stack).ok()?;
    let outermost = stack.frames.last()?;
    let mut codes = CodeCache::new(interpreter);
    codes.resolve(&[outermost.code_address], memory, |_| CodeId::from_index(0));
    let code = codes.get(outermost.code_address).ok()?;
    // `_bootstrap` calls everything else, with the thread as its `self` (3.10 to 3.15).
    let is_thread = code.info.file.ends_with("/threading.py")
        && code.info.name.rsplit('.').next() == Some("_bootstrap");
    if !is_thread {
        return Some(String::new());
    }
    let attributes = read_attributes(interpreter, outermost.first_local, memory).ok()?;
    let name = attributes.iter().find(|each| each.name == "_name")?;
    read_str(&interpreter.layout, name.object, MAX_NAME, memory).ok()
}
