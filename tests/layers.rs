//! The folders of `src` import each other one way, and what belongs to one architecture stays in
//! `src/arch`.
#![allow(clippy::unwrap_used, reason = "a test")]

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Paths below `src`, and their text without comments and unit tests.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]").next().unwrap();
                let lines = code.lines().map(|line| line.split("//").next().unwrap());
                let code = lines.collect::<Vec<_>>().join("\n");
                found.push((path.strip_prefix(&root).unwrap().to_owned(), code));
            }
        }
    }
    found
}

/// What each top module names of others.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let named = Regex::new(r"\bcrate::(\w+)").unwrap();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, code) in sources() {
        assert!(
            !code.contains("crate::{"),
            "{path:?}: name modules one by one"
        );
        let first = path.components().next().unwrap().as_os_str();
        let module = first.to_str().unwrap().trim_end_matches(".rs").to_owned();
        let others = named.captures_iter(&code).map(|found| found[1].to_owned());
        let others = others.filter(|other| *other != module);
        graph.entry(module.clone()).or_default().extend(others);
    }
    graph
}

#[test]
fn imports_go_one_way() {
    let mut graph = imports();
    assert!(graph["sampling"].contains("os"), "imports are found");
    // Modules that import nothing that is left go, until none is left.
    while !graph.is_empty() {
        let leaves: Vec<String> = graph
            .iter()
            .filter(|(_, others)| others.iter().all(|other| !graph.contains_key(other)))
            .map(|(module, _)| module.clone())
            .collect();
        assert!(!leaves.is_empty(), "a circle among {graph:?}");
        graph.retain(|module, _| !leaves.contains(module));
    }
}

#[test]
fn what_is_pure_does_not_know_the_operating_system() {
    let graph = imports();
    for module in [
        "arch", "elf", "memory", "model", "native", "python", "torch", "analysis", "report",
    ] {
        let others = &graph[module];
        assert!(
            !others.contains("os") && !others.contains("sampling"),
            "{module} imports {others:?}"
        );
    }
    assert!(graph["arch"].is_empty(), "arch lies below all others");
}

#[test]
fn only_arch_asks_for_the_architecture() {
    let asking: Vec<PathBuf> = sources()
        .into_iter()
        .filter(|(_, code)| code.contains("target_arch"))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(asking, [Path::new("arch/mod.rs")]);
}
