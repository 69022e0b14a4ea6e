//! Unwinding, and what it stands on: unwind rows, and frames by a function's code.
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use criterion::{Criterion, criterion_group, criterion_main};
use std::fs;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, mpsc};
use torchspy::arch::{Architecture, Machine};
use torchspy::memory::{Memory, ReadError, SnapshotMemory};
use torchspy::model::mapping::Mapping;
use torchspy::model::registers::Registers;
use torchspy::native::image::{ElfImage, ModuleBytes};
use torchspy::native::loaded::{LoadedModules, ModuleOpener};
use torchspy::native::modules::ModuleStore;
use torchspy::native::symbols::{Symbol, SymbolTable};
use torchspy::native::unwind::Unwinder;
use torchspy::os::maps::parse_maps;

/// Frames of the stack that is unwound, at least.
const DEPTH: u32 = 60;
/// Bytes of it that are copied.
const STACK_BYTES: usize = 64 << 10;

struct Files;

impl ModuleOpener for Files {
    fn open(&self, mapping: &Mapping) -> Option<ModuleBytes> {
        Some(Arc::new(fs::read(&mapping.path).ok()?))
    }
}

/// This process: headers of modules are held against their files.
struct OwnMemory(fs::File);

impl Memory for OwnMemory {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let read = self.0.read_exact_at(buffer, address);
        read.map_err(|_| ReadError::Unmapped(address))
    }
}

/// Does `work` so many calls deep.
#[inline(never)]
fn at_depth(depth: u32, work: &dyn Fn()) -> u32 {
    match depth {
        0 => work(),
        _ => return black_box(at_depth(depth - 1, work)) + 1,
    }
    0
}

/// The registers that are known of a thread of this process that sleeps, and its stack.
fn capture(tid: i32) -> (Registers, SnapshotMemory) {
    let pointers = loop {
        let text = fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).unwrap();
        let words: Vec<u64> = text
            .split_whitespace()
            .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
            .collect();
        // "running", or number, six arguments, stack and instruction pointer.
        if words.len() == 8 {
            break [words[6], words[7]];
        }
    };
    let [stack_pointer, instruction_pointer] = pointers;
    let memory = fs::File::open("/proc/self/mem").unwrap();
    let mut stack = vec![0; STACK_BYTES];
    let read = memory.read_at(&mut stack, stack_pointer).unwrap();
    stack.truncate(read);
    let mut snapshot = SnapshotMemory::default();
    snapshot.insert(stack_pointer, stack);
    let registers = Registers::of_sleeper(stack_pointer, instruction_pointer);
    (registers, snapshot)
}

fn unwind(criterion: &mut Criterion) {
    let (wake, woken) = mpsc::channel::<()>();
    let (tell, tid) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        at_depth(DEPTH, &|| {
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            woken.recv().unwrap();
        })
    });
    let (registers, memory) = capture(tid.recv().unwrap());
    let mut modules = LoadedModules::new(Arc::new(ModuleStore::default()));
    let mappings = parse_maps(&fs::read("/proc/self/maps").unwrap());
    let own = OwnMemory(fs::File::open("/proc/self/mem").unwrap());
    modules.refresh(&mappings, &Files, &own);
    let mut frames = Vec::new();
    let mut unwinder = Unwinder::new();
    unwinder.unwind(&modules, &registers, &memory, &mut frames);
    assert!(frames.len() > DEPTH as usize, "{frames:?}");
    criterion.bench_function("unwind: a stack of 70 frames, all rows known", |bencher| {
        bencher.iter(|| unwinder.unwind(&modules, black_box(&registers), &memory, &mut frames));
    });
    criterion.bench_function("unwind: the same, no row known", |bencher| {
        bencher
            .iter(|| Unwinder::new().unwind(&modules, black_box(&registers), &memory, &mut frames));
    });
    wake.send(()).unwrap();
    assert_eq!(thread.join().unwrap(), DEPTH);
}

/// The C library of this process, and where its functions are.
fn functions() -> (ElfImage, Vec<Symbol>) {
    let mappings = parse_maps(&fs::read("/proc/self/maps").unwrap());
    let library = mappings
        .iter()
        .find(|mapping| mapping.path.contains("/libc.so"));
    let bytes = fs::read(&library.expect("it is mapped").path).unwrap();
    let image = ElfImage::parse(Arc::new(bytes)).unwrap();
    let symbols = SymbolTable::of_image(image.clone());
    let code = image.segments().loads.iter().filter(|load| load.executable);
    let mut found = Vec::new();
    for load in code {
        let mut address = load.address;
        while address < load.address + load.file_size {
            let symbol = symbols.lookup(address);
            address = symbol.as_ref().map_or(address + 1, |symbol| symbol.end);
            found.extend(symbol);
        }
    }
    (image, found)
}

fn frames_by_code(criterion: &mut Criterion) {
    let (image, functions) = functions();
    let code: Vec<Vec<u8>> = functions
        .iter()
        .filter_map(|symbol| image.piece(symbol.start..symbol.end)?.read(0, u64::MAX))
        .collect();
    let bytes: usize = code.iter().map(Vec::len).sum();
    assert!(bytes > 100_000, "{bytes}");
    let mut group = criterion.benchmark_group("frame by code");
    group.throughput(criterion::Throughput::Bytes(bytes as u64));
    group.bench_function("every function of the C library", |bencher| {
        bencher.iter(|| {
            for code in black_box(&code) {
                black_box(Machine::frame_by_code(code));
            }
        });
    });
}

criterion_group!(native, unwind, frames_by_code);
criterion_main!(native);
