//! What differs between processor architectures: one small module each, of the same shape.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{
    CALLEE_SAVED, CfaSource, CodeFrame, DIRECT_CALL, LONGEST_CALL, LONGEST_STUB, MACHINE, MAX_CODE,
    POINTER_BYTES, RETURN_ADDRESS, STACK_ALIGNMENT, call_target, follows_call, frame_by_code,
    plt_slot,
};
