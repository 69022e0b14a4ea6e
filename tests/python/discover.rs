//! Finding interpreters, their threads and who holds the GIL, on every interpreter that is
//! installed.

use crate::faults::program;
use crate::python_target::{Image, Python};
use crate::stack_case::{doubt, dump, python_frames};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use torchspy::memory::{LayeredMemory, Memory, SnapshotMemory};
use torchspy::python::discover::{DiscoverError, Interpreter, discover};
use torchspy::python::frames::{PythonStack, read_stack};
use torchspy::python::modules::read_module;
use torchspy::python::objects::read_str;
use torchspy::python::threads::{GilState, read_gil_holder, read_interpreters, read_threads};

const SLEEP: &str = "
import platform, time
print(platform.python_version(), flush=True)
print('ready', flush=True)
time.sleep(3600)
";

fn discover_with(images: &[Image], memory: &dyn Memory) -> Result<Interpreter, DiscoverError> {
    let images: Vec<_> = images.iter().map(Image::as_python).collect();
    discover(&images, memory)
}

/// Versions come from symbols, and the same from a file whose symbol tables are gone.
fn check_version(python: &str) {
    let Some(python) = Python::find(python) else {
        return;
    };
    let mut target = python.start_source(SLEEP, &[]);
    let said = target.ready().remove(0);
    let found = target.discover().unwrap();
    assert!(
        said.starts_with(&found.version_text),
        "{said} {}",
        found.version_text
    );
    assert!(said.starts_with(&format!("{}.", found.version)));
    assert!(found.version.minor == 10 || found.version_text == said);
    check_modules(&found, &target.memory());

    let mut images = target.images();
    images
        .iter_mut()
        .for_each(|image| hide_symbols(&mut image.bytes));
    let hidden = discover_with(&images, &target.memory()).unwrap();
    assert_eq!(
        (hidden.version, hidden.runtime_address),
        (found.version, found.runtime_address)
    );
    assert_eq!((hidden.layout, hidden.code_type), (found.layout, None));
}

/// A module that was imported has its functions.
fn check_modules(interpreter: &Interpreter, memory: &dyn Memory) {
    let variables = read_module(interpreter, "platform", memory)
        .unwrap()
        .unwrap();
    let name = |key| read_str(&interpreter.layout, key, 64, memory);
    let mut names = variables.iter().map(|each| name(each.key).unwrap());
    assert!(names.any(|name| name == "python_version"));
    // As long as the other's name.
    let missing = read_module(interpreter, "platfoRm", memory).unwrap();
    assert_eq!(missing, None);
}

/// Renames symbol tables' types to one that nobody reads.
fn hide_symbols(bytes: &mut [u8]) {
    let header = goblin::elf::Elf::parse_header(bytes).unwrap();
    for index in 0..usize::from(header.e_shnum) {
        let kind = header.e_shoff as usize + index * usize::from(header.e_shentsize) + 4;
        if [2, 11].contains(&bytes[kind]) {
            bytes[kind] = 1;
        }
    }
}

/// From the moment of its exec until it runs, an interpreter is not there yet, and nothing worse.
fn check_start(python: &str) {
    let Some(python) = Python::find(python) else {
        return;
    };
    for _ in 0..5 {
        // A shell that stops, and becomes Python once it may go on.
        let target = python.start_stopped(SLEEP);
        assert_eq!(target.discover(), Err(DiscoverError::NotPython));
        target.go_on();
        loop {
            match target.discover() {
                Ok(interpreter) => {
                    assert!(
                        !read_threads(&interpreter, &target.memory())
                            .unwrap()
                            .is_empty()
                    );
                    break;
                }
                Err(DiscoverError::NotPython | DiscoverError::NotYetInitialised) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Versions to come are recognised by what the runtime says of itself.
fn check_refusals(python: &str) {
    let Some(python) = Python::find(python) else {
        return;
    };
    let mut target = python.start_source(SLEEP, &[]);
    target.ready();
    let found = target.discover().unwrap();
    let memory = target.memory();
    let images = target.images();
    let with = |offset: usize, value: u64| {
        let mut bytes = memory.read_bytes(found.runtime_address, 888).unwrap();
        bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        let mut snapshot = SnapshotMemory::default();
        snapshot.insert(found.runtime_address, bytes);
        discover_with(&images, &LayeredMemory::new(&snapshot, &memory))
    };
    assert_eq!(with(16, found.free_threaded.into()).unwrap(), found);
    assert_eq!(
        with(8, 0x0310_00f0),
        Err(DiscoverError::NewerVersion("3.16.0".into()))
    );
    assert_eq!(with(0, 0), Err(DiscoverError::Invalid("no debug offsets")));
    assert!(matches!(with(40, u64::MAX), Err(DiscoverError::Invalid(_))));
    let nothing = SnapshotMemory::default();
    assert!(matches!(
        discover_with(&images, &nothing),
        Err(DiscoverError::Unreadable(_))
    ));
}

fn check_old(python: &str) {
    let Some(found) = Python::find(python) else {
        return;
    };
    let target = found.start_source("import sys\nsys.stdin.readline()", &[]);
    loop {
        match target.discover() {
            // libpython is not loaded yet.
            Err(DiscoverError::NotPython) => {}
            Err(DiscoverError::OlderVersion(version)) => {
                assert!(version.starts_with(python), "{version}");
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A thread that computes alone holds the lock, always.
fn check_gil(python: &str) {
    let Some(python) = Python::find(python) else {
        return;
    };
    let mut target = python.start_source("print('ready', flush=True)\nwhile True: pass", &[]);
    target.ready();
    let interpreter = target.discover().unwrap();
    let threads = read_threads(&interpreter, &target.memory()).unwrap();
    assert_eq!(threads.len(), 1);
    let state = || read_gil_holder(&interpreter, threads[0].interpreter, &target.memory());
    let held = GilState::HeldBy(threads[0].state_address);
    // The target gives it up to write "ready", and may still be in that call; afterwards nobody
    // asks for it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while state() != held {
        assert!(Instant::now() < deadline, "{:?}", state());
        std::thread::yield_now();
    }
    for _ in 0..100 {
        assert_eq!(state(), held);
    }
}

/// Threads of other interpreters in the process are found.
fn check_subinterpreters(python: &str) {
    let Some(python) = Python::find(python) else {
        return;
    };
    let source = "
import threading, time
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
inner = '''
import time
def sleeper(): print(\"inner\", flush=True) or time.sleep(3600)
sleeper()
'''
other = interpreters.create()
run = getattr(interpreters, 'run_string')
threading.Thread(target=run, args=(other, inner), daemon=True).start()
time.sleep(3600)
";
    let mut target = python.start_source(source, &[]);
    assert_eq!(target.line(), "inner");
    let memory = target.memory();
    let interpreter = target.discover().unwrap();
    let interpreters = read_interpreters(&interpreter, &memory).unwrap();
    assert_eq!(interpreters.len(), 2);
    let threads = read_threads(&interpreter, &memory).unwrap();
    // New interpreters are put at the head.
    let inner = threads
        .iter()
        .filter(|thread| thread.interpreter == interpreters[0]);
    let mut stack = PythonStack::default();
    let mut depths = Vec::new();
    for thread in inner {
        read_stack(&interpreter, thread.state_address, &memory, &mut stack).unwrap();
        depths.push(stack.frames.len());
    }
    // The interpreter's first thread state may stay, without frames, beside that of the thread that
    // runs in it.
    assert!(depths.contains(&2), "{depths:?}");
}

macro_rules! on_each {
    ($check:ident: $($name:ident $version:literal),*) => {$(
        #[test]
        fn $name() {
            $check($version);
        }
    )*};
}

on_each!(check_version: version_3_10 "3.10", version_3_11 "3.11", version_3_12 "3.12", version_3_13 "3.13",
    version_3_14 "3.14", version_3_15 "3.15", version_3_13t "3.13t", version_3_14t "3.14t", version_debian_static "debian");
on_each!(check_start: start_3_10 "3.10", start_3_11 "3.11", start_3_12 "3.12", start_3_13 "3.13", start_3_13t "3.13t",
    start_3_14t "3.14t", start_debian "debian");
on_each!(check_refusals: refusals_3_13 "3.13", refusals_3_14 "3.14", refusals_3_15 "3.15", refusals_3_13t "3.13t",
    refusals_3_14t "3.14t");
on_each!(check_old: old_2_7 "2.7", old_3_6 "3.6", old_3_7 "3.7", old_3_8 "3.8", old_3_9 "3.9");
on_each!(check_gil: gil_3_10 "3.10", gil_3_11 "3.11", gil_3_12 "3.12", gil_3_13 "3.13", gil_3_14 "3.14",
    gil_3_15 "3.15");
on_each!(check_subinterpreters: subinterpreters_3_11 "3.11", subinterpreters_3_12 "3.12", subinterpreters_3_13 "3.13",
    subinterpreters_3_14 "3.14", subinterpreters_3_15 "3.15", subinterpreters_3_13t "3.13t", subinterpreters_3_14t "3.14t");

/// The interpreter is in a library that the program brings along, and both are replaced by others
/// while it runs, as an upgrade does.
#[test]
fn an_embedded_interpreter_is_read_when_its_files_are_others() {
    let Some(python) = Python::find("3.12") else {
        return;
    };
    let config = Path::new(&python.path).with_file_name("python3.12-config");
    let said = Command::new(config)
        .args(["--embed", "--cflags", "--ldflags"])
        .output()
        .unwrap();
    let flags = String::from_utf8(said.stdout).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let embedded = folder.path().join("trainer");
    let built = Command::new("gcc")
        .arg(program("embedded.c"))
        .arg("-Wl,-rpath,$ORIGIN")
        .args(flags.split_whitespace())
        .arg("-o")
        .arg(&embedded)
        .status();
    assert!(built.unwrap().success());
    let library = folder.path().join("libpython3.12.so.1.0");
    let prefix = Path::new(&python.path).parent().unwrap().parent().unwrap();
    std::fs::copy(prefix.join("lib/libpython3.12.so.1.0"), &library).unwrap();
    let mut child = Command::new(&embedded)
        .env("PYTHONHOME", prefix)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    for file in [&embedded, &library] {
        let next = folder.path().join("next");
        std::fs::copy("/bin/true", &next).unwrap();
        std::fs::rename(&next, file).unwrap();
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    assert!(maps.contains(&format!("{} (deleted)", library.display())));
    let threads = dump(child.id() as i32, &[]);
    let frames = python_frames(&threads[0]);
    let names: Vec<&str> = frames.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["waits", "<module>"]);
    assert_eq!((frames[0].2, frames[1].2), (3, 5));
    assert_eq!(doubt(&threads[0]), None);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
