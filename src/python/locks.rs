//! Locks of `threading`: which one a thread sleeps on, and its owner.
//!
//! Up to 3.13 a lock is a semaphore (`PyThread_type_lock`, `sem_t *`), and a thread that waits for
//! it sleeps in a futex at that address. From 3.14 on it is a `PyMutex`, whose waiters sleep at
//! another address: that is not followed. Source: Modules/_threadmodule.c (`lockobject`,
//! `rlockobject`), Include/cpython/methodobject.h (`PyCFunctionObject`) and
//! Include/cpython/classobject.h (`PyMethodObject`), 3.10 to 3.13, checked on live interpreters.

use super::discover::Interpreter;
use super::variables::{class_of, read_attributes};
use crate::memory::Memory;

/// `lock_lock`.
const SEMAPHORE: u32 = 16;
/// `rlock_owner`, an identity of pthreads; `rlock_count` follows.
const OWNER: u32 = 24;
const COUNT: u32 = 32;
/// `PyCFunctionObject.m_ml`, whose first word is the name, and `m_self`.
const METHOD: u32 = 16;
const SELF: u32 = 24;
/// The attribute of a `threading.Condition` with its lock.
const CONDITION_LOCK: &str = "_lock";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockObject {
    pub address: u64,
    /// `threading.Lock` or `threading.RLock`.
    pub kind: &'static str,
    /// The address at which its waiters sleep.
    pub semaphore: u64,
    /// `pthread_self()` of the holder of an `RLock`.
    pub owner: Option<u64>,
}

/// The lock at `object`, or that of a condition. `None` if there is none.
pub fn read_lock(
    interpreter: &Interpreter,
    object: u64,
    memory: &dyn Memory,
) -> Option<LockObject> {
    if interpreter.version.minor > 13 {
        return None;
    }
    let layout = &interpreter.layout.objects;
    let word = |offset: u32| memory.read_u64(object.wrapping_add(layout.at(offset))).ok();
    let (kind, owner) = match class_of(layout, object, memory).ok()?.as_str() {
        "lock" => ("threading.Lock", None),
        "RLock" => {
            let owner = word(OWNER).filter(|&owner| owner != 0 && word(COUNT) != Some(0));
            ("threading.RLock", owner)
        }
        "Condition" => {
            let attributes = read_attributes(interpreter, object, memory).ok()?;
            let lock = attributes
                .iter()
                .find(|each| each.name == CONDITION_LOCK && each.object != object)?;
            let is_plain = class_of(layout, lock.object, memory)
                .is_ok_and(|class| matches!(class.as_str(), "lock" | "RLock"));
            return is_plain
                .then(|| read_lock(interpreter, lock.object, memory))
                .flatten();
        }
        _ => return None,
    };
    Some(LockObject {
        address: object,
        kind,
        semaphore: word(SEMAPHORE).filter(|&semaphore| semaphore != 0)?,
        owner,
    })
}

/// The lock whose `__exit__` is bound to the object at `object`: a `with` block keeps that method
/// for its end.
pub fn lock_of_block(
    interpreter: &Interpreter,
    object: u64,
    memory: &dyn Memory,
) -> Option<LockObject> {
    let layout = &interpreter.layout.objects;
    let word = |at: u64| memory.read_u64(at).ok();
    let class = class_of(layout, object, memory).ok()?;
    match class.as_str() {
        "builtin_function_or_method" => {
            let definition = word(object.wrapping_add(layout.at(METHOD)))?;
            let mut name = [0; 9];
            memory.read_exact(word(definition)?, &mut name).ok()?;
            if &name != b"__exit__\0" {
                return None;
            }
        }
        "method" => {}
        _ => return None,
    }
    read_lock(
        interpreter,
        word(object.wrapping_add(layout.at(SELF)))?,
        memory,
    )
}
