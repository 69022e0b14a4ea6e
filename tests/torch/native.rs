//! The unwinder on a torch training loop: how many stacks reach their root, and by what.

use crate::native_live::{Capture, LiveMemory, LiveOpener, Target, capture, torch_python};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;
use torchspy::memory::LayeredMemory;
use torchspy::native::demangle::demangle;
use torchspy::native::loaded::LoadedModules;
use torchspy::native::shorten::shorten;
use torchspy::native::unwind::{NativeFrame, UnwindEnd, Unwinder};

/// Captures of a running trainer. More show rarer places: `TORCHSPY_TEST_CAPTURES=20000`.
fn wanted_captures() -> usize {
    std::env::var("TORCHSPY_TEST_CAPTURES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(400)
}

fn describe(frames: &[NativeFrame], modules: &LoadedModules) -> String {
    let lines = frames.iter().map(|frame| {
        let Some((module, bias)) = frame.module.and_then(|index| modules.module(index)) else {
            return format!("  {frame:x?}");
        };
        let name = module
            .symbols()
            .lookup(frame.address.lookup().wrapping_sub(bias));
        let name = name.map_or_else(|| "?".to_owned(), |symbol| shorten(&demangle(&symbol.name)));
        let file = module.info.path.rsplit('/').next().unwrap_or("");
        format!(
            "  {:x} sp {:x} {:?} {name} ({file}+{:x})",
            frame.address.raw(),
            frame.stack_pointer,
            frame.trust,
            frame.address.raw().wrapping_sub(bias)
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn stacks_of_a_training_loop_reach_their_root() {
    let Some(python) = torch_python() else {
        return;
    };
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/native/torch_train.py"
    );
    let target = Target::start(Command::new(python).arg(script).env("OMP_NUM_THREADS", "2"));
    let mappings = target.mappings();
    let mut modules = target.modules();
    for mapping in mappings
        .iter()
        .filter(|mapping| mapping.executable && mapping.is_file())
    {
        let loaded = modules.find(mapping.start).unwrap();
        assert!(
            loaded.module.image().is_some() && loaded.module.unwind().is_some(),
            "{mapping:?}: {:?}",
            loaded.module.info
        );
    }
    report_symbols(&modules);
    let live = LiveMemory(target.pid);
    let mut unwinder = Unwinder::that_loads_symbols();
    let mut frames = Vec::new();
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    let mut shown: BTreeMap<String, usize> = BTreeMap::new();
    let (mut captures, mut guessed, mut depth) = (0, 0, 0);
    let mut kept: Vec<Capture> = Vec::new();
    'capturing: loop {
        for tid in target.tids() {
            // One look at those who sleep; then those who run.
            if captures > 20 && !target.is_running(tid) {
                continue;
            }
            let Some(capture) = capture(&target, tid, &mappings, 256 << 10) else {
                continue;
            };
            let memory = LayeredMemory::new(&capture.stack, &live);
            let pc = capture.registers.instruction_pointer().unwrap();
            if !modules.is_executable(pc) {
                modules.refresh(&target.mappings(), &LiveOpener(target.pid), &live);
            }
            let end = unwinder.unwind(&modules, &capture.registers, &memory, &mut frames);
            let stack = mappings
                .iter()
                .find(|mapping| mapping.contains(capture.registers.stack_pointer().unwrap()));
            let torn = memory
                .into_missed()
                .into_iter()
                .filter(|&(address, _)| stack.is_some_and(|stack| stack.contains(address)));
            assert_eq!(
                torn.count(),
                0,
                "read from the stack of a running thread\n{}",
                describe(&frames, &modules)
            );
            *ends.entry(format!("{end:?}")).or_default() += 1;
            captures += 1;
            depth += frames.len();
            let is_guessed = frames.iter().any(|frame| frame.trust.is_guess());
            guessed += usize::from(is_guessed);
            if is_guessed || end != UnwindEnd::Root {
                let leaf = frames
                    .iter()
                    .find(|frame| frame.trust.is_guess())
                    .map(|frame| frame.address.raw());
                let times = shown.entry(format!("{end:?} {leaf:x?}")).or_default();
                *times += 1;
                if *times == 1 && shown.len() < 40 {
                    println!("{end:?}\n{}", describe(&frames, &modules));
                }
            }
            if kept.len() < 200 {
                kept.push(capture);
            }
            if captures >= wanted_captures() {
                break 'capturing;
            }
        }
    }
    println!(
        "{captures} captures, {} frames each, {guessed} with a guess, {} rows: {ends:?}",
        depth / captures,
        unwinder.cached_rows()
    );
    report_cost(&mut unwinder, &modules, &kept);
    let rooted = ends.get("Root").copied().unwrap_or(0);
    assert!(rooted * 1000 >= captures * 995, "{ends:?}");
    assert!(
        depth / captures >= 8,
        "stacks are too short to be whole: {depth} frames in {captures}"
    );
}

/// Prints what a warm unwind takes. Nothing is asserted: the machine may be busy.
fn report_cost(unwinder: &mut Unwinder, modules: &LoadedModules, captures: &[Capture]) {
    let mut frames = Vec::new();
    let count = u32::try_from(captures.len()).unwrap();
    let rounds = (0..20).map(|_| {
        let start = Instant::now();
        let mut total = 0;
        for capture in captures {
            unwinder.unwind(modules, &capture.registers, &capture.stack, &mut frames);
            total += frames.len();
        }
        (start.elapsed() / count, total / captures.len())
    });
    let (each, depth) = rounds.min().unwrap();
    println!("warm unwind: {each:?} for {depth} frames");
}

/// Prints what reading the largest symbol table takes.
fn report_symbols(modules: &LoadedModules) {
    let largest = modules
        .modules()
        .find(|(module, _)| module.info.path.ends_with("/libtorch_cpu.so"));
    let (module, _) = largest.expect("torch is loaded");
    let start = Instant::now();
    let count = module.symbols().len();
    println!("{count} functions of libtorch_cpu in {:?}", start.elapsed());
    assert!(count > 100_000, "{count}");
}
