//! A module's image, a stack and registers, all from the input: headers, unwind tables, code and
//! symbols are the target's.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use torchspy::memory::SnapshotMemory;
use torchspy::model::registers::Registers;
use torchspy::native::image::ModuleBytes;
use torchspy::native::loaded::{LoadedModules, ModuleOpener};
use torchspy::native::modules::ModuleStore;
use torchspy::native::unwind::{MAX_FRAMES, Unwinder};
use torchspy::model::mapping::Mapping;

const CODE: u64 = 0x7f00_0000_0000;
const STACK: u64 = 0x7ffe_0000_0000;

struct NoFiles;

impl ModuleOpener for NoFiles {
    fn open(&self, _: &Mapping) -> Option<ModuleBytes> {
        None
    }
}

// 16 registers, 1 KiB of stack, and the rest is the image. Register values are spread over code and
// stack.
fuzz_target!(|input: &[u8]| {
    let Some((head, image)) = input.split_at_checked(128 + 1024) else {
        return;
    };
    if image.is_empty() {
        return;
    }
    let mut memory = SnapshotMemory::default();
    memory.insert(CODE, image.to_vec());
    memory.insert(STACK, head[128..].to_vec());
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
    let mut registers = Registers::unknown();
    for (number, value) in head[..128].chunks_exact(8).enumerate() {
        registers.set(number, u64::from_le_bytes(value.try_into().unwrap()));
    }
    registers.set(Registers::STACK_POINTER, STACK + u64::from(head[0]));
    let mut frames = Vec::new();
    for offset in (0..image.len() as u64).step_by(64) {
        registers.set(Registers::INSTRUCTION_POINTER, CODE + offset);
        Unwinder::that_loads_symbols().unwind(&modules, &registers, &memory, &mut frames);
        assert!(frames.len() <= MAX_FRAMES);
    }
});
