//! The unwinder against gdb, which nobody here wrote, on programs that stand still in awkward
//! places.

use crate::native_live::{LiveMemory, Target, capture, compile, gdb_stacks, torch_python};
use std::process::Command;
use torchspy::memory::LayeredMemory;
use torchspy::model::frame::Trust;
use torchspy::native::unwind::{NativeFrame, UnwindEnd, Unwinder};

/// Unwinds every thread of a target that is stopped, and compares each with gdb's stack, pc by
/// pc. Returns the stacks.
fn compare_with_gdb(target: &Target) -> Vec<(String, Vec<NativeFrame>)> {
    let modules = target.modules();
    let mappings = target.mappings();
    let mut unwinder = Unwinder::new();
    let mut ours = Vec::new();
    for tid in target.tids() {
        let capture = capture(target, tid, &mappings, 1 << 20).expect("the thread is stopped");
        let live = LiveMemory(target.pid);
        let memory = LayeredMemory::new(&capture.stack, &live);
        let mut frames = Vec::new();
        let end = unwinder.unwind(&modules, &capture.registers, &memory, &mut frames);
        ours.push((tid, target.thread_name(tid), end, frames));
    }
    let Some(theirs) = gdb_stacks(target.pid) else {
        return ours
            .into_iter()
            .map(|(_, name, _, frames)| (name, frames))
            .collect();
    };
    assert_eq!(theirs.len(), ours.len(), "threads");
    let mut stacks = Vec::new();
    for (tid, name, end, frames) in ours {
        let (_, gdb) = theirs
            .iter()
            .find(|(theirs, _)| *theirs == tid)
            .expect("gdb knows the thread");
        let pcs: Vec<u64> = frames.iter().map(|frame| frame.address.raw()).collect();
        let gdb_pcs: Vec<u64> = gdb.iter().map(|&(pc, _)| pc).collect();
        assert_eq!(pcs, gdb_pcs, "{name}: {end:x?}\n{frames:x?}\n{gdb:#x?}");
        assert_eq!(end, UnwindEnd::Root, "{name}: {frames:x?}");
        stacks.push((name, frames));
    }
    stacks
}

#[test]
fn awkward_frames_of_c_programs() {
    for flags in [
        ["-O1", "-fomit-frame-pointer"],
        ["-O2", "-mavx"],
        ["-O0", "-mstackrealign"],
    ] {
        let Some((_folder, program)) = compile("places", &flags, false) else {
            return;
        };
        let target = Target::start(&mut Command::new(program));
        target.wait_for_syscalls(&[(nix::libc::SYS_pause, 8)]);
        let stacks = compare_with_gdb(&target);
        assert_eq!(stacks.len(), 8);
        for (name, frames) in &stacks {
            assert!(
                frames.iter().all(|frame| frame.trust == Trust::Unwound),
                "{flags:?} {name}: {frames:x?}"
            );
        }
        let deep = stacks.iter().find(|(name, _)| name == "recursion").unwrap();
        assert!(deep.1.len() > 400, "{flags:?}: {}", deep.1.len());
    }
}

#[test]
fn a_torch_process_at_known_places() {
    let Some(python) = torch_python() else {
        return;
    };
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/native/torch_places.py"
    );
    let target = Target::start(Command::new(python).arg(script).env("OMP_NUM_THREADS", "2"));
    target.wait_for_syscalls(&[
        (nix::libc::SYS_clock_nanosleep, 4),
        (nix::libc::SYS_poll, 1),
    ]);
    target.wait_until_still();
    let stacks = compare_with_gdb(&target);
    let deepest = stacks.iter().map(|(_, frames)| frames.len()).max().unwrap();
    println!("{} threads, {deepest} frames at most", stacks.len());
    assert!(deepest > 30, "{deepest}");
}
