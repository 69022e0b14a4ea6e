//! Symbols and names against binutils.

use crate::native_live::torch_python;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use torchspy::native::demangle::demangle;
use torchspy::native::image::ElfImage;
use torchspy::native::shorten::shorten;
use torchspy::native::symbols::SymbolTable;

fn load(path: &Path) -> SymbolTable {
    let bytes = std::fs::read(path).unwrap();
    SymbolTable::of_image(ElfImage::parse(Arc::new(bytes)).unwrap())
}

/// Functions by address, as nm lists them.
fn nm(path: &Path, flags: &[&str]) -> Option<BTreeMap<u64, Vec<String>>> {
    let output = match Command::new("nm")
        .args(flags)
        .args(["--defined-only", "--without-symbol-versions"])
        .arg(path)
        .output()
    {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: nm cannot be run: {error}");
            return None;
        }
    };
    let mut functions: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let [address, kind, name] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            continue;
        };
        if ["T", "t", "W", "i"].contains(&kind) {
            functions
                .entry(u64::from_str_radix(address, 16).unwrap())
                .or_default()
                .push(name.to_owned());
        }
    }
    Some(functions)
}

fn torch_library(name: &str) -> Option<PathBuf> {
    let python = torch_python()?;
    let site = python
        .parent()?
        .parent()?
        .join("lib/python3.11/site-packages/torch/lib")
        .join(name);
    if !site.exists() {
        println!("skipped: no {}", site.display());
        return None;
    }
    Some(site)
}

#[test]
fn functions_are_those_that_nm_lists() {
    let Some(library) = torch_library("libc10.so") else {
        return;
    };
    let Some(wanted) = nm(&library, &[]) else {
        return;
    };
    let table = load(&library);
    let mut missing = Vec::new();
    for (address, names) in &wanted {
        match table.lookup(*address) {
            Some(symbol) if symbol.start == *address && names.contains(&symbol.name) => {}
            other => missing.push((address, names, other)),
        }
    }
    println!("{} functions of nm's {}", table.len(), wanted.len());
    assert!(wanted.len() > 1000);
    // Labels inside of a function have none of their own.
    assert!(
        missing.len() * 1000 < wanted.len(),
        "{} of {}: {:x?}",
        missing.len(),
        wanted.len(),
        &missing[..missing.len().min(10)]
    );
}

#[test]
fn names_demangle_as_cxxfilt_does() {
    let Some(library) =
        torch_library(&std::env::var("TORCHSPY_TEST_LIBRARY").unwrap_or("libc10.so".to_owned()))
    else {
        return;
    };
    let Some(functions) = nm(&library, &[]) else {
        return;
    };
    let names: Vec<String> = functions
        .into_values()
        .flatten()
        .filter(|name| name.starts_with("_Z"))
        .collect();
    let mut filter = match Command::new("c++filt")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    {
        Ok(filter) => filter,
        Err(error) => return println!("skipped: c++filt cannot be run: {error}"),
    };
    let mut input = filter.stdin.take().unwrap();
    let text = names.join("\n");
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let output = filter.wait_with_output().unwrap();
    writer.join().unwrap();
    let theirs = String::from_utf8_lossy(&output.stdout).into_owned();
    // binutils writes some parameter types out (`std::ostream`); the functions must be the same.
    let squeeze = |name: &str| shorten(name).replace(' ', "");
    let (mut different, mut failed) = (Vec::new(), Vec::new());
    for (name, theirs) in names.iter().zip(theirs.lines()) {
        let ours = demangle(name);
        if ours == *name && theirs != name {
            failed.push(name);
        } else if squeeze(&ours) != squeeze(theirs) {
            different.push((ours, theirs));
        }
    }
    println!(
        "{} names, {} written differently, {} not understood",
        names.len(),
        different.len(),
        failed.len()
    );
    for (ours, theirs) in different.iter().take(3) {
        println!("ours   {ours}\ntheirs {theirs}");
    }
    assert!(names.len() > 1000);
    assert!(
        failed.len() * 200 <= names.len(),
        "{:?}",
        &failed[..failed.len().min(10)]
    );
    assert!(
        different.len() * 100 <= names.len(),
        "{:?}",
        &different[..different.len().min(10)]
    );
    assert!(
        names
            .iter()
            .all(|name| !shorten(&demangle(name)).is_empty())
    );
}

#[test]
fn names_that_only_the_compressed_table_has_are_found() {
    let Some(library) = torch_library("libgomp.so.1") else {
        return;
    };
    let table = load(&library);
    let all: Vec<String> = (0..1 << 20)
        .step_by(16)
        .filter_map(|address| Some(table.lookup(address)?.name))
        .collect();
    for name in [
        "gomp_team_barrier_wait_end",
        "gomp_barrier_wait",
        "gomp_team_start",
    ] {
        assert!(all.iter().any(|found| found == name), "{name}");
    }
}
