//! Every instruction of a program, one by one: prologues and epilogues, stubs and the dynamic
//! linker behind them, the vDSO, signal frames, code without unwind tables, code made at run time.
//! The stack must reach its root at each.

use crate::native_live::{LiveMemory, Target, compile, to_registers};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use torchspy::memory::Memory;
use torchspy::model::frame::Trust;
use torchspy::native::loaded::LoadedModules;
use torchspy::native::unwind::{NativeFrame, UnwindEnd, Unwinder};

const STEPS: usize = 40_000;

/// The function of a frame: its symbol, or the module's name in brackets.
fn name(frame: &NativeFrame, modules: &LoadedModules) -> String {
    let (module, bias) = modules.module(frame.module.unwrap()).unwrap();
    let symbol = module
        .symbols()
        .lookup(frame.address.lookup().wrapping_sub(bias));
    symbol.map_or_else(
        || format!("[{}]", module.info.path.rsplit('/').next().unwrap()),
        |symbol| symbol.name,
    )
}

/// Steps through `target` and hands each state's frames to `visit`.
fn step(
    target: &Target,
    modules: &LoadedModules,
    mut unwinder: Unwinder,
    mut visit: impl FnMut(UnwindEnd, &[NativeFrame]),
) {
    let thread = Pid::from_raw(target.pid);
    let memory = LiveMemory(target.pid);
    ptrace::seize(thread, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(thread).unwrap();
    waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
    let mut frames = Vec::new();
    for _ in 0..STEPS {
        let registers = to_registers(&ptrace::getregs(thread).unwrap());
        let end = unwinder.unwind(modules, &registers, &memory, &mut frames);
        visit(end, &frames);
        let mut signal = None;
        // A signal of the program's own is handed on, and comes before the next step.
        loop {
            ptrace::step(thread, signal).unwrap();
            match waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap() {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => break,
                WaitStatus::PtraceEvent(..) => {}
                WaitStatus::Stopped(_, other) => signal = Some(other),
                other => panic!("{other:?}"),
            }
        }
    }
    ptrace::detach(thread, None).unwrap();
}

#[test]
fn the_root_is_reached_from_every_instruction() {
    for flags in [["-O1", "-rdynamic"], ["-O2", "-Wl,-z,now"]] {
        let Some((_folder, program)) = compile("steps", &flags, true) else {
            return;
        };
        let target = Target::start(&mut Command::new(program));
        let modules = target.modules();
        let mut wrong: BTreeMap<String, usize> = BTreeMap::new();
        let mut leaves: BTreeSet<String> = BTreeSet::new();
        let mut guessed = 0;
        let mut below_main = None;
        step(
            &target,
            &modules,
            Unwinder::that_loads_symbols(),
            |end, frames| {
                let names: Vec<String> = frames.iter().map(|frame| name(frame, &modules)).collect();
                let main = names.iter().position(|name| name == "main");
                let outside = main.map(|main| frames[main + 1..].to_vec());
                below_main = below_main.take().or_else(|| outside.clone());
                leaves.insert(names[0].clone());
                guessed += usize::from(frames.iter().any(|frame| frame.trust.is_guess()));
                let only_known_guesses = frames.windows(2).zip(&names).all(|(pair, callee)| {
                    pair[1].trust == Trust::Unwound
                        || callee.starts_with("bare_")
                        || callee == "[[anonymous]]"
                        || callee == "calls_jit"
                });
                if end != UnwindEnd::Root
                    || outside != below_main
                    || !only_known_guesses
                    || !has_callers(&names)
                {
                    let trusts: Vec<Trust> = frames.iter().map(|frame| frame.trust).collect();
                    *wrong
                        .entry(format!("{end:?} {names:?} {trusts:?}"))
                        .or_default() += 1;
                }
            },
        );
        println!(
            "{STEPS} steps, {guessed} with a guess, through {} functions: {leaves:?}",
            leaves.len()
        );
        assert!(wrong.is_empty(), "{flags:?}: {wrong:#?}");
        for reached in [
            "bare_leaf",
            "bare_caller",
            "bare_realigned",
            "callback",
            "calls_jit",
            "[[anonymous]]",
            "on_signal",
        ] {
            assert!(leaves.contains(reached), "{reached} was never reached");
        }
        assert!(
            leaves.iter().any(|leaf| leaf.contains("clock_gettime")),
            "the vDSO was never reached"
        );
        assert!(
            leaves.iter().any(|leaf| leaf.ends_with("@plt")),
            "no stub was ever reached"
        );
    }
}

/// Whether each function has the caller that the source says.
fn has_callers(names: &[String]) -> bool {
    let caller = |callee: &str| {
        names
            .iter()
            .position(|name| name == callee)
            .map(|at| names[at + 1].as_str())
    };
    let is =
        |callee: &str, wanted: &[&str]| caller(callee).is_none_or(|found| wanted.contains(&found));
    is("bare_leaf", &["main"])
        && is("bare_caller", &["main"])
        && is("bare_realigned", &["main"])
        && is("[[anonymous]]", &["calls_jit"])
        && is("calls_jit", &["main"])
        && is(
            "callback",
            &["bare_caller", "bare_realigned", "[[anonymous]]"],
        )
}

#[test]
fn without_symbols_a_checked_guess_crosses_bare_code() {
    let Some((_folder, program)) = compile("steps", &["-O1", "-s"], true) else {
        return;
    };
    let target = Target::start(&mut Command::new(program));
    let modules = target.modules();
    let (mut rooted, mut guessed) = (0, 0);
    step(
        &target,
        &modules,
        Unwinder::that_loads_symbols(),
        |end, frames| {
            rooted += usize::from(end == UnwindEnd::Root);
            guessed += usize::from(frames.iter().any(|frame| frame.trust.is_guess()));
        },
    );
    println!("{rooted} of {STEPS} rooted, {guessed} with a guess");
    assert!(guessed > 100, "bare code was not reached: {guessed}");
    assert!(rooted * 1000 >= STEPS * 995, "{rooted} of {STEPS}");
}

#[test]
fn a_sleeper_without_registers_unwinds_or_is_guessed() {
    let Some((_folder, program)) = compile("places", &["-O1", "-fomit-frame-pointer"], false)
    else {
        return;
    };
    let target = Target::start(&mut Command::new(program));
    target.wait_for_syscalls(&[(nix::libc::SYS_pause, 8)]);
    let modules = target.modules();
    let memory = LiveMemory(target.pid);
    let mut ends = BTreeMap::new();
    for tid in target.tids() {
        let text =
            std::fs::read_to_string(format!("/proc/{}/task/{tid}/syscall", target.pid)).unwrap();
        let words: Vec<u64> = text
            .split_whitespace()
            .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
            .collect();
        let [.., stack_pointer, instruction] = words[..] else {
            panic!("{text}");
        };
        assert!(memory.read_u64(stack_pointer).is_ok());
        let registers =
            torchspy::model::registers::Registers::of_sleeper(stack_pointer, instruction);
        let mut frames = Vec::new();
        let end = Unwinder::new().unwind(&modules, &registers, &memory, &mut frames);
        assert!(frames.len() > 1, "{frames:?}");
        let guessed = frames.iter().any(|frame| frame.trust.is_guess());
        ends.insert(target.thread_name(tid), (end, guessed));
    }
    let by_a_guess = (UnwindEnd::Root, true);
    assert_eq!(ends["alloca"], by_a_guess, "its frame is counted from rbp");
    for name in [
        "places",
        "recursion",
        "callback",
        "signal",
        "altstack",
        "fault",
    ] {
        assert_eq!(ends[name], (UnwindEnd::Root, false), "{name}");
    }
}
