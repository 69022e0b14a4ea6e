//! Numbers and names of Linux's system calls, from the crate `syscalls` (made from the kernel's own
//! tables).

pub use syscalls::Sysno;

/// The name of system call `number` of the machine that a recording was made on, by what `uname -m`
/// wrote there.
pub fn name_on(architecture: &str, number: u32) -> Option<&'static str> {
    let number = usize::try_from(number).ok()?;
    match architecture {
        "aarch64" => Some(syscalls::aarch64::Sysno::new(number)?.name()),
        _ => Some(syscalls::x86_64::Sysno::new(number)?.name()),
    }
}

/// The number of a system call of this machine.
pub const fn number(call: Sysno) -> u32 {
    call.id().cast_unsigned()
}
