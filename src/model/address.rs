//! Code addresses: an instruction pointer and a return address are different types.

/// An address in code, with the role that it has on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CodeAddress {
    /// The instruction that a thread executes next: a leaf's, or that of a frame that a signal
    /// interrupted.
    Ip(u64),
    /// The instruction after a call. The call itself, and so the line and the unwind row, is one
    /// byte before it.
    Return(u64),
}

impl CodeAddress {
    /// The address as in the register or on the stack.
    pub fn raw(self) -> u64 {
        match self {
            CodeAddress::Ip(address) | CodeAddress::Return(address) => address,
        }
    }

    /// The address to look up in symbol and unwind tables.
    pub fn lookup(self) -> u64 {
        match self {
            CodeAddress::Ip(address) => address,
            CodeAddress::Return(address) => address.saturating_sub(1),
        }
    }

    /// The same role at another address.
    pub fn with_raw(self, address: u64) -> Self {
        match self {
            CodeAddress::Ip(_) => CodeAddress::Ip(address),
            CodeAddress::Return(_) => CodeAddress::Return(address),
        }
    }
}
