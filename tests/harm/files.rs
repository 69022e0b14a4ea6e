//! Files of the target that are cut short or rewritten while torchspy reads them.

use crate::faults::{How, Recorder, Target, program, run};
use crate::so_far;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

const FAST: &[&str] = &["--rate", "500", "--max-stopped", "100"];
/// What the loader maps of it comes first, its symbols and section headers stand behind 64 KiB of
/// padding.
const LIBRARY: &str = "
__asm__(\".section .padding,\\\"\\\",@progbits\\n.zero 65536\\n.previous\");
int NAME_counts(volatile int *stop, int count) { return *stop ? count : count + 1; }
void NAME_spins(volatile int *stop) { for (int count = 0; !*stop;) count = NAME_counts(stop, count); }
";

/// A target that loads libraries, and where its files are; `None`, with a word on stderr, without
/// gcc.
fn target() -> Option<(Target, TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loads_library");
    gcc(&[
        "-O1",
        "-o",
        path.to_str().unwrap(),
        &program("loads_library.c"),
        "-ldl",
        "-lpthread",
    ])?;
    Some((Target::start(&[path.to_str().unwrap()]), folder))
}

fn gcc(arguments: &[&str]) -> Option<()> {
    match Command::new("gcc").args(arguments).status() {
        Ok(status) => assert!(status.success(), "gcc {arguments:?}"),
        Err(error) => {
            eprintln!("skipped: gcc cannot be run: {error}");
            return None;
        }
    }
    Some(())
}

/// A library with a function `NAME_spins`.
fn library(folder: &Path, name: &str) -> PathBuf {
    let source = folder.join(format!("{name}.c"));
    std::fs::write(&source, LIBRARY.replace("NAME", name)).unwrap();
    let path = folder.join(format!("lib{name}.so"));
    let words = ["-O1", "-fPIC", "-shared", "-Wl,--build-id", "-o"];
    let files = [path.to_str().unwrap(), source.to_str().unwrap()];
    gcc(&[&words[..], &files].concat()).unwrap();
    path
}

fn load(target: &mut Target, path: &Path, function: &str) {
    target.tell(&format!("load {} {function}", path.display()));
    target.expect("loaded");
}

fn unload(target: &mut Target) {
    target.tell("unload");
    target.expect("unloaded");
}

fn cut(path: &Path, size: impl Fn(u64) -> u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(size(file.metadata().unwrap().len())).unwrap();
}

#[test]
fn a_library_that_is_cut_short_after_it_was_unloaded_loses_its_names_at_most() {
    for (what, share) in [("empty", 0.0), ("half", 0.5)] {
        let Some((mut target, folder)) = target() else {
            return;
        };
        let path = library(folder.path(), "alpha");
        let how = How {
            options: FAST,
            fault: None,
        };
        load(&mut target, &path, "alpha_spins");
        let recorder = Recorder::attach(target.pid(), how);
        recorder.wait_for_a_stop(target.pid());
        unload(&mut target);
        cut(&path, |size| (size as f64 * share) as u64);
        recorder.wait_for_segment();
        let recorded = recorder.interrupt().expect_success();
        let report = recorded.report();
        let inspected = recorded.inspect();
        assert!(inspected.contains("libalpha.so"), "{what}: {inspected}");
        if !inspected.contains("alpha_spins") {
            let text = report.to_string();
            assert!(text.contains("cut short"), "{what}: {text}");
        }
        target.close_input();
        assert!(target.wait().success(), "{what}");
    }
}

#[test]
fn names_that_were_read_before_a_library_was_cut_short_are_kept() {
    let Some((mut target, folder)) = target() else {
        return;
    };
    let path = library(folder.path(), "alpha");
    load(&mut target, &path, "alpha_spins");
    let recorder = Recorder::attach(target.pid(), How::default());
    so_far::wait_for_part(&recorder.path(), "alpha_spins");
    unload(&mut target);
    cut(&path, |_| 0);
    recorder.wait_for_segment();
    let recorded = recorder.interrupt().expect_success();
    assert!(recorded.inspect().contains("alpha_spins"));
}

#[test]
fn a_library_that_is_rewritten_in_place_is_two() {
    let Some((mut target, folder)) = target() else {
        return;
    };
    let path = library(folder.path(), "alpha");
    let other = library(folder.path(), "gamma");
    load(&mut target, &path, "alpha_spins");
    let recorder = Recorder::attach(target.pid(), How::default());
    so_far::wait_for_part(&recorder.path(), "alpha_spins");
    unload(&mut target);
    let bytes = std::fs::read(other).unwrap();
    std::fs::write(&path, bytes).unwrap();
    load(&mut target, &path, "gamma_spins");
    let seen = |recorder: &Recorder| {
        let inspected = run(&["inspect", &recorder.path().to_string_lossy()]);
        inspected.stdout.contains("gamma_spins")
    };
    crate::faults::wait_until("samples in the library's second form", || seen(&recorder));
    let recorded = recorder.interrupt().expect_success();
    assert!(recorded.inspect().contains("alpha_spins"));
}

/// The end of the file, which is not loaded and holds the symbols, comes and goes.
#[test]
fn dump_outlives_a_library_that_is_cut_short_while_it_is_read() {
    let Some((mut target, folder)) = target() else {
        return;
    };
    let path = library(folder.path(), "alpha");
    let bytes = std::fs::read(&path).unwrap();
    load(&mut target, &path, "alpha_spins");
    let keep = section_headers(&bytes) - 32_768;
    let end = &bytes[keep as usize..];
    let stop = AtomicBool::new(false);
    let mut dumps = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(&path).unwrap();
            while !stop.load(Ordering::Relaxed) {
                file.set_len(keep).unwrap();
                file.write_all_at(end, keep).unwrap();
            }
            file.set_len(keep).unwrap();
        });
        for _ in 0..20 {
            dumps.push(run(&["dump", "--pid", &target.pid().to_string()]));
        }
        stop.store(true, Ordering::Relaxed);
    });
    for dump in dumps {
        assert!(dump.status.success(), "{}: {}", dump.status, dump.stderr);
        assert!(dump.stdout.contains("libalpha.so"), "{}", dump.stdout);
    }
    let dump = run(&["dump", "--pid", &target.pid().to_string()]);
    assert!(dump.stdout.contains("cut short"), "{}", dump.stdout);
}

/// Where a file's section headers begin: `e_shoff`.
fn section_headers(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[40..48].try_into().unwrap())
}
