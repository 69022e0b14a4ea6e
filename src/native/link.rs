//! Unwinds a sleeper where calls leave the return address in a register: that register is in the
//! kernel, and a function that calls nothing keeps it nowhere else. Wrappers of system calls are
//! such functions, and any may sleep in a page fault.
//!
//! The frame of its caller begins at the stack pointer. The frame record there (AAPCS64, section
//! 6.4.6: the frame pointer and the return address of the caller's caller) leads to the call that
//! made the caller, and so to the caller's code; this is searched for calls to the sleeper's
//! function.

use super::rows::returned_to;
use super::sites::Site;
use super::unwind::{Found, NativeFrame, Walk};
use crate::arch::{Architecture, Machine};
use crate::model::address::CodeAddress;
use crate::model::frame::Trust;
use crate::model::registers::Registers;

/// Maximum bytes of the caller's frame that are searched for its record.
const SEARCHED_BYTES: u64 = 4 << 10;
/// Frames that the unwind tables must find after the caller, unless they reach the root before.
const CONFIRMED_FRAMES: usize = 3;
const LINK: usize = Machine::RETURN_ADDRESS as usize;

/// The caller of a leaf whose return address is in an unknown register.
///
/// Where the call that made the caller shows no target, as one through a pointer does, the caller
/// itself is passed over, and its caller is found.
pub(super) fn without_link(walk: &mut Walk<'_>, frame: &NativeFrame, site: &Site) -> Option<Found> {
    let is_leaf = matches!(frame.address, CodeAddress::Ip(_));
    if !Machine::LINKS || !is_leaf || walk.registers.get(LINK).is_some() {
        return None;
    }
    let start = frame.stack_pointer;
    let mut passed_over = None;
    for record in
        (start..start.checked_add(SEARCHED_BYTES)?).step_by(Machine::STACK_ALIGNMENT as usize)
    {
        let slot = record.checked_add(Machine::POINTER_BYTES)?;
        let Ok(word) = walk.memory.read_u64(slot) else {
            break;
        };
        let outer = Machine::return_address(word);
        if !walk.follows_call(outer) {
            continue;
        }
        if let Some(found) = between(walk, frame, site, outer) {
            return Some(found);
        }
        if passed_over.is_none() {
            passed_over = caller_of_caller(walk, record, outer);
        }
    }
    passed_over
}

/// The caller whose own caller continues at `outer`.
fn between(walk: &mut Walk<'_>, frame: &NativeFrame, site: &Site, outer: u64) -> Option<Found> {
    for address in walk.calls_between(outer, frame.address.lookup()) {
        let Some(mut found) = walk.follow_with(frame, site, LINK, address) else {
            continue;
        };
        if walk.returns_to(&found) == Some(outer)
            && walk.frames_after(&found, CONFIRMED_FRAMES) == CONFIRMED_FRAMES
        {
            found.trust = Trust::Scanned;
            return Some(found);
        }
    }
    None
}

/// The caller's caller by the frame record at `record` alone. Its own record is where its stack
/// ends, as compilers lay out frames.
fn caller_of_caller(walk: &mut Walk<'_>, record: u64, outer: u64) -> Option<Found> {
    let pointer = walk.memory.read_u64(record).ok()?;
    if pointer <= record || pointer % Machine::STACK_ALIGNMENT != 0 {
        return None;
    }
    let mut registers = walk.registers;
    registers.set(Registers::FRAME_POINTER, pointer);
    let found = walk.at_return(returned_to(registers, outer, pointer))?;
    (walk.frames_after(&found, CONFIRMED_FRAMES) == CONFIRMED_FRAMES).then_some(found)
}
