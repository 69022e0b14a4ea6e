//! What the C library's allocator keeps of memory that was freed.
#![allow(unsafe_code)]

/// Size from which a block is a mapping of its own, which goes back to the kernel when it is freed,
/// bytes. glibc begins with this value, and raises it to the largest block that was freed, up to 32
/// MB (mallopt(3)): a symbol table that was read once then costs its size for good.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: i32 = 128 << 10;

/// The same where freed memory is kept, bytes: the largest that glibc takes (malloc/malloc.c,
/// HEAP_MAX_SIZE / 2).
#[cfg(target_env = "gnu")]
const KEPT_BYTES: i32 = 32 << 20;

/// Size of a new heap of a thread, and what the main one is enlarged by, bytes: M_TOP_PAD, of which
/// a heap's largest size is the most that counts (malloc/arena.c, HEAP_MAX_SIZE). With it, a heap
/// is not unmapped when all of it is free. Only what is used takes memory.
#[cfg(target_env = "gnu")]
const HEAP_BYTES: i32 = 64 << 20;

/// Makes the allocator give large blocks back when they are freed, for as long as the program runs.
/// For programs that run beside a trainer: mapping a block anew takes time.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes two numbers of the allocator, under its own lock.
    unsafe {
        nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        nix::libc::mallopt(nix::libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Makes the allocator keep what is freed, for as long as the program runs. For programs that read
/// much and end: giving pages back and taking them anew is a quarter of their time.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes three numbers of the allocator, under its own lock.
    unsafe {
        nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, KEPT_BYTES);
        nix::libc::mallopt(nix::libc::M_TRIM_THRESHOLD, i32::MAX);
        nix::libc::mallopt(nix::libc::M_TOP_PAD, HEAP_BYTES);
    }
}

/// Gives the free parts of the heap back, after work that needed far more than what follows. It
/// locks each thread's part of the heap for a moment, and takes some milliseconds in all.
pub fn give_back_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: releases pages of free blocks only, under the allocator's locks.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
