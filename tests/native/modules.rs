//! Modules of live processes: files that were deleted or replaced, code that comes and goes.

use crate::native_live::{LiveMemory, LiveOpener, Target, compile};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use torchspy::memory::Memory;
use torchspy::model::mapping::Mapping;
use torchspy::model::module::ModuleKind;
use torchspy::model::registers::Registers;
use torchspy::native::image::ModuleBytes;
use torchspy::native::loaded::{LoadedModules, ModuleOpener};
use torchspy::native::modules::ModuleStore;
use torchspy::native::unwind::{NativeFrame, UnwindEnd, Unwinder};

struct NoFiles;

impl ModuleOpener for NoFiles {
    fn open(&self, _: &Mapping) -> Option<ModuleBytes> {
        None
    }
}

/// Opens by name only, as one without privileges does.
struct ByName(i32);

impl ModuleOpener for ByName {
    fn open(&self, mapping: &Mapping) -> Option<ModuleBytes> {
        LiveOpener(self.0).open(mapping)
    }
}

fn modules_of(target: &Target, opener: &dyn ModuleOpener) -> LoadedModules {
    let mut modules = LoadedModules::new(Arc::new(ModuleStore::default()));
    modules.refresh(&target.mappings(), opener, &LiveMemory(target.pid));
    modules
}

/// The stack of the thread named `name`, which sleeps in a system call.
fn stack(target: &Target, modules: &LoadedModules, name: &str) -> (UnwindEnd, Vec<NativeFrame>) {
    let tid = target
        .tids()
        .into_iter()
        .find(|&tid| target.thread_name(tid) == name)
        .unwrap();
    let text = std::fs::read_to_string(format!("/proc/{}/task/{tid}/syscall", target.pid)).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let parse = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
    let registers =
        Registers::of_sleeper(parse(words[words.len() - 2]), parse(words[words.len() - 1]));
    let mut frames = Vec::new();
    let end = Unwinder::new().unwind(modules, &registers, &LiveMemory(target.pid), &mut frames);
    (end, frames)
}

fn start(program: &Path) -> Target {
    let target = Target::start(&mut Command::new(program));
    target.wait_for_syscalls(&[(nix::libc::SYS_pause, 8)]);
    target
}

fn program_module(target: &Target, modules: &LoadedModules) -> (Vec<u8>, bool) {
    let exe = std::fs::read_link(format!("/proc/{}/exe", target.pid)).unwrap();
    let name = exe
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .trim_end_matches(" (deleted)")
        .to_owned();
    let (module, _) = modules
        .modules()
        .find(|(module, _)| module.info.path.ends_with(&format!("/{name}")))
        .unwrap();
    (module.info.build_id.clone(), module.image().is_some())
}

#[test]
fn without_files_the_tables_are_read_from_memory() {
    let Some((_folder, program)) = compile(
        "places",
        &["-O1", "-fomit-frame-pointer", "-Wl,--build-id"],
        false,
    ) else {
        return;
    };
    let target = start(&program);
    let with = stack(
        &target,
        &modules_of(&target, &LiveOpener(target.pid)),
        "recursion",
    );
    let without = stack(&target, &modules_of(&target, &NoFiles), "recursion");
    assert_eq!(with.0, UnwindEnd::Root);
    assert!(with.1.len() > 400);
    assert_eq!(with, without);
}

#[test]
fn a_file_that_was_replaced_is_not_used() {
    let flags = ["-O1", "-fomit-frame-pointer", "-Wl,--build-id"];
    let Some((_folder, program)) = compile("places", &flags, false) else {
        return;
    };
    let Some((_other_folder, other)) = compile("places", &["-O2", "-Wl,--build-id"], false) else {
        return;
    };
    let target = start(&program);
    let before = modules_of(&target, &ByName(target.pid));
    let (build_id, has_file) = program_module(&target, &before);
    assert!(has_file && build_id.len() == 20);
    let wanted = stack(&target, &before, "recursion");
    std::fs::rename(&other, &program).unwrap();
    let after = modules_of(&target, &ByName(target.pid));
    assert_eq!(program_module(&target, &after), (build_id.clone(), false));
    assert_eq!(stack(&target, &after, "recursion"), wanted);
    // The mapped file itself can still be had, where the kernel lets us.
    if std::fs::metadata(format!("/proc/{0}/map_files", target.pid)).is_ok()
        && nix::unistd::geteuid().is_root()
    {
        let mapped = modules_of(&target, &LiveOpener(target.pid));
        assert_eq!(program_module(&target, &mapped), (build_id, true));
    }
}

/// The loader maps a file piece by piece, and the list of mappings may be read in between.
#[test]
fn a_file_seen_half_mapped_is_read_once_it_is_mapped() {
    let note = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/native/late_note.s"
    );
    let flags = ["-O1", "-Wa,--no-warn", "-Wl,--build-id=none", note];
    let Some((_folder, program)) = compile("places", &flags, false) else {
        return;
    };
    let target = start(&program);
    let exe = program.to_str().unwrap();
    let whole = target.mappings();
    let mut half = whole.clone();
    half.retain(|mapping| mapping.path != exe || !mapping.writable);
    assert!(half.len() < whole.len());
    let mut modules = LoadedModules::new(Arc::new(ModuleStore::default()));
    let mut refresh = |mappings: &[Mapping]| {
        let memory = LiveMemory(target.pid);
        let changed = modules.refresh(mappings, &LiveOpener(target.pid), &memory);
        let of_file = modules
            .modules()
            .filter(|(module, _)| module.info.path == exe);
        let known: Vec<_> = of_file
            .map(|(module, _)| (module.info.build_id.clone(), module.lost_its_file()))
            .collect();
        (changed, known)
    };
    let unknown = (Vec::new(), false);
    assert_eq!(refresh(&half), (true, vec![unknown.clone()]));
    assert_eq!(refresh(&half), (false, vec![unknown.clone()]));
    let found = (b"twenty bytes of it..".to_vec(), false);
    assert_eq!(refresh(&whole), (true, vec![unknown, found]));
    assert!(!refresh(&whole).0);
    let (end, frames) = stack(&target, &modules, "recursion");
    assert_eq!(end, UnwindEnd::Root);
    assert!(frames.len() > 400);
}

#[test]
fn one_file_is_one_module_for_all_processes() {
    let Some((_folder, program)) = compile("places", &["-O1", "-Wl,--build-id"], false) else {
        return;
    };
    let targets = [start(&program), start(&program)];
    let store = Arc::new(ModuleStore::default());
    let ids = targets.each_ref().map(|target| {
        let mut modules = LoadedModules::new(Arc::clone(&store));
        modules.refresh(
            &target.mappings(),
            &LiveOpener(target.pid),
            &LiveMemory(target.pid),
        );
        let of_files = modules
            .modules()
            .filter(|(module, _)| module.info.kind != ModuleKind::Anonymous);
        of_files.map(|(module, _)| module.id()).collect::<Vec<_>>()
    });
    assert!(
        ids[0].len() >= 4,
        "program, C library, loader, vDSO: {ids:?}"
    );
    assert_eq!(ids[0], ids[1]);
}

#[test]
fn numbers_of_modules_last_and_memory_without_files_has_one() {
    let Some((_folder, program)) = compile("steps", &["-O1"], true) else {
        return;
    };
    let target = Target::start(&mut Command::new(program));
    let mappings = target.mappings();
    let memory = LiveMemory(target.pid);
    let opener = LiveOpener(target.pid);
    let mut modules = LoadedModules::new(Arc::new(ModuleStore::default()));
    assert!(modules.refresh(&mappings, &opener, &memory));
    assert!(
        !modules.refresh(&mappings, &opener, &memory),
        "nothing changed"
    );
    let jit = mappings
        .iter()
        .find(|mapping| mapping.executable && mapping.path.is_empty())
        .unwrap();
    let found = modules.find(jit.start).unwrap();
    assert_eq!(
        (found.module.info.kind, found.bias),
        (ModuleKind::Anonymous, 0)
    );
    let data = mappings
        .iter()
        .find(|mapping| mapping.path == "[heap]")
        .unwrap();
    assert!(modules.find(data.start).is_none() && !modules.is_executable(data.start));
    let libc = mappings
        .iter()
        .find(|mapping| mapping.executable && mapping.path.contains("libc.so"))
        .unwrap();
    let index = modules.find(libc.start).unwrap().module_index;
    let without: Vec<Mapping> = mappings
        .iter()
        .filter(|mapping| mapping.path != libc.path)
        .cloned()
        .collect();
    assert!(modules.refresh(&without, &opener, &memory));
    assert!(modules.find(libc.start).is_none());
    assert!(modules.refresh(&mappings, &opener, &memory));
    assert_eq!(modules.find(libc.start).unwrap().module_index, index);
    // The bias leads back to the file's own addresses.
    let loaded = modules.find(libc.start).unwrap();
    let header = memory
        .read_u32(
            loaded
                .bias
                .wrapping_add(loaded.module.segments().span().unwrap().start),
        )
        .unwrap();
    assert_eq!(header.to_le_bytes(), *b"\x7fELF");
}
