//! Damaged modules, stacks and registers: the unwinder and the symbol table end, and say what they
//! can.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod installed;
mod native_live;

use native_live::{LiveMemory, Target, capture};
use proptest::prelude::*;
use std::process::Command;
use std::sync::Arc;
use torchspy::memory::{FaultyMemory, Memory, SnapshotMemory};
use torchspy::model::frame::Partial;
use torchspy::model::mapping::Mapping;
use torchspy::model::registers::Registers;
use torchspy::native::image::{ElfImage, ModuleBytes};
use torchspy::native::loaded::{LoadedModules, ModuleOpener};
use torchspy::native::modules::ModuleStore;
use torchspy::native::symbols::SymbolTable;
use torchspy::native::unwind::{MAX_FRAMES, NativeFrame, UnwindEnd, Unwinder};
use torchspy::os::maps::parse_maps;

const CODE: u64 = 0x7f00_0000_0000;
const STACK: u64 = 0x7ffe_0000_0000;

struct NoFiles;

impl ModuleOpener for NoFiles {
    fn open(&self, _: &Mapping) -> Option<ModuleBytes> {
        None
    }
}

/// This process's vDSO: a small, whole ELF image with code, unwind tables and symbols.
fn vdso() -> Vec<u8> {
    let maps = parse_maps(&std::fs::read("/proc/self/maps").unwrap());
    let mapping = maps
        .iter()
        .find(|mapping| mapping.path == "[vdso]")
        .expect("the kernel maps a vDSO");
    let own = LiveMemory(i32::try_from(std::process::id()).unwrap());
    own.read_bytes(mapping.start, usize::try_from(mapping.size()).unwrap())
        .unwrap()
}

/// Memory and modules of a process that maps only `image`, as its vDSO.
fn process(image: &[u8], stack: &[u8]) -> (SnapshotMemory, LoadedModules) {
    let mut memory = SnapshotMemory::default();
    memory.insert(CODE, image.to_vec());
    memory.insert(STACK, stack.to_vec());
    let mapping = Mapping {
        start: CODE,
        end: CODE + image.len() as u64,
        readable: true,
        executable: true,
        path: "[vdso]".to_owned(),
        ..Mapping::default()
    };
    let mut modules = LoadedModules::new(Arc::new(ModuleStore::default()));
    modules.refresh(&[mapping], &NoFiles, &memory);
    (memory, modules)
}

fn unwind(
    memory: &dyn Memory,
    modules: &LoadedModules,
    registers: &Registers,
) -> (UnwindEnd, Vec<NativeFrame>) {
    let mut frames = Vec::new();
    let end = Unwinder::that_loads_symbols().unwind(modules, registers, memory, &mut frames);
    (end, frames)
}

fn registers_at(offset: u64) -> Registers {
    let mut registers = Registers::of_sleeper(STACK, CODE + offset);
    for number in [3, 6, 12, 13, 14, 15] {
        registers.set(number, STACK + 8 * number as u64);
    }
    registers
}

/// Where a function of the vDSO begins.
fn clock_gettime() -> u64 {
    let image = ElfImage::parse(Arc::new(vdso())).unwrap();
    let table = SymbolTable::of_image(image.clone());
    let span = image.segments().span().unwrap();
    let found = span
        .filter_map(|address| table.lookup(address))
        .find(|symbol| symbol.name.ends_with("clock_gettime"));
    found.expect("the vDSO has clock_gettime").start
}

#[test]
fn a_stack_that_cannot_be_read_is_partial() {
    let (memory, modules) = process(&vdso(), &[0; 64]);
    let at = registers_at(clock_gettime());
    let faulty = FaultyMemory::new(memory.clone(), STACK, STACK + 64);
    let (end, frames) = unwind(&faulty, &modules, &at);
    assert!(faulty.reached() > 0);
    assert_eq!(
        (end, frames.len()),
        (UnwindEnd::Partial(Partial::StackUnreadable), 1)
    );
    // A return address of zero ends a stack.
    assert_eq!(unwind(&memory, &modules, &at).0, UnwindEnd::Root);
    // One that is no address of code does not.
    let (memory, modules) = process(&vdso(), &0x1234_u64.to_le_bytes());
    assert_eq!(
        unwind(&memory, &modules, &at).0,
        UnwindEnd::Partial(Partial::BadReturnAddress)
    );
}

/// What calls left behind on a real stack looks like return addresses: none of it may be taken for
/// one.
#[test]
fn a_copy_that_ends_early_gives_the_same_frames_and_no_others() {
    const SOURCE: &str = "
import sys
def deeper(left):
    if left: return max([left - 1], key=deeper)
    print('ready', flush=True)
    sys.stdin.read()
    return 0
deeper(40)
";
    let target = Target::start(Command::new("python3").args(["-c", SOURCE]));
    // read
    target.wait_for_syscalls(&[(0, 1)]);
    let modules = target.modules();
    let stopped = capture(&target, target.pid, &target.mappings(), 1 << 20).unwrap();
    let (end, whole) = unwind(&stopped.stack, &modules, &stopped.registers);
    assert_eq!(end, UnwindEnd::Root);
    let (leaf, root) = (whole[0].stack_pointer, whole[whole.len() - 1].stack_pointer);
    let length = usize::try_from(root - leaf).unwrap();
    let bytes = stopped.stack.read_bytes(leaf, length).unwrap();
    let mut unwinder = Unwinder::that_loads_symbols();
    let mut frames = Vec::new();
    let mut memory = SnapshotMemory::default();
    for copied in (0..length).step_by(8) {
        let buffer = memory.drain().next().unwrap_or_else(|| bytes.clone());
        memory.insert_part(leaf, buffer, copied);
        let end = unwinder.unwind(&modules, &stopped.registers, &memory, &mut frames);
        assert_eq!(
            (end, frames.as_slice()),
            (
                UnwindEnd::Partial(Partial::StackUnreadable),
                &whole[..frames.len()]
            ),
            "{copied} of {length} bytes"
        );
    }
}

#[test]
fn a_thread_outside_of_all_code_is_partial() {
    let (memory, modules) = process(&vdso(), &[0; 64]);
    let (end, frames) = unwind(&memory, &modules, &Registers::of_sleeper(STACK, 0x10));
    assert_eq!(end, UnwindEnd::Partial(Partial::BadReturnAddress));
    assert_eq!(frames[0].module, None);
    let (end, frames) = unwind(&memory, &modules, &Registers::unknown());
    assert_eq!(
        (end, frames.len()),
        (UnwindEnd::Partial(Partial::RegisterUnknown), 0)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_modules_never_panic_or_loop(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        words in proptest::collection::vec(prop_oneof![any::<u64>(), CODE..CODE + 0x2000, STACK..STACK + 0x400], 0..128),
        offset in 0_u64..0x2000,
        values in proptest::collection::vec(prop_oneof![any::<u64>(), STACK..STACK + 0x400], 17),
    ) {
        let mut image = vdso();
        for (index, byte) in changes {
            let length = image.len();
            image[index.index(length)] = byte;
        }
        if let Some(cut) = cut {
            image.truncate(cut.index(image.len()).max(1));
        }
        let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (memory, modules) = process(&image, &stack);
        let mut registers = registers_at(offset);
        for (number, value) in values.into_iter().enumerate().filter(|&(number, _)| number < 16) {
            registers.set(number, value);
        }
        let (_, frames) = unwind(&memory, &modules, &registers);
        prop_assert!(frames.len() <= MAX_FRAMES);
        for offset in (0..image.len() as u64).step_by(16) {
            let (_, frames) = unwind(&memory, &modules, &registers_at(offset));
            prop_assert!(frames.len() <= MAX_FRAMES);
        }
        if let Ok(image) = ElfImage::parse(Arc::new(image)) {
            let table = SymbolTable::of_image(image);
            for address in 0..0x2000 {
                table.lookup(address);
            }
        }
    }
}
