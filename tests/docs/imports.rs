//! Which folder of src may use which: the table of docs/src/internals.md, held against every path
//! in the code. A folder uses only what stands below it in that table, so there are no cycles. What
//! belongs to one architecture stays in `src/arch`.

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Uses = BTreeMap<String, BTreeSet<String>>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The rows of the table, top first: folder, and what it may use.
fn table() -> Vec<(String, BTreeSet<String>)> {
    let page = fs::read_to_string(root().join("docs/src/internals.md")).unwrap();
    let names = |cell: &str| -> Vec<String> {
        let parts = cell.split('`').skip(1).step_by(2);
        parts.map(str::to_owned).collect()
    };
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("| Folder | uses |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let [folder] = names(cells[1]).try_into().unwrap();
        (folder, names(cells[2]).into_iter().collect())
    })
    .collect()
}

/// Every Rust file below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false if path.extension().is_some_and(|extension| extension == "rs") => {
                found.push(path);
            }
            false => {}
        }
    }
}

/// The part of the table that a file belongs to: its folder of src, or the one below that where the
/// table names it.
fn part_of(file: &Path, parts: &[String]) -> String {
    let path = file.strip_prefix(root().join("src")).unwrap();
    let path = path.with_extension("").to_string_lossy().into_owned();
    part_of_path(&path, parts)
}

fn part_of_path(path: &str, parts: &[String]) -> String {
    let is_within = |part: &&String| path == **part || path.starts_with(&format!("{part}/"));
    let longest = parts.iter().filter(is_within).max_by_key(|part| part.len());
    let first = || path.split('/').next().unwrap().to_owned();
    longest.cloned().unwrap_or_else(first)
}

/// What each part uses, by the paths that begin with `crate::`.
fn uses(parts: &[String]) -> Uses {
    let path = Regex::new(r"\bcrate::(\w+)(?:::(\w+))?").unwrap();
    let group = Regex::new(r"\bcrate::\{").unwrap();
    let mut all = Vec::new();
    files(&root().join("src"), &mut all);
    let mut uses = Uses::new();
    for file in all {
        let text = fs::read_to_string(&file).unwrap();
        let own = part_of(&file, parts);
        for line in text.lines().map(str::trim_start) {
            if line.starts_with("//") {
                continue;
            }
            assert!(
                !group.is_match(line),
                "{}: {line}: one path a line",
                file.display()
            );
            for found in path.captures_iter(line) {
                let second = found.get(2).map_or("", |part| part.as_str());
                let used = part_of_path(&format!("{}/{second}", &found[1]), parts);
                uses.entry(own.clone()).or_default().insert(used);
            }
        }
    }
    uses
}

#[test]
fn folders_use_what_the_table_allows() {
    let table = table();
    let parts: Vec<String> = table.iter().map(|(part, _)| part.clone()).collect();
    let uses = uses(&parts);
    assert!(uses.len() > 12, "few files were read: {uses:?}");
    let mut wrong = Vec::new();
    for (part, used) in &uses {
        // Roots of the library and of the binary.
        if ["lib", "main"].contains(&part.as_str()) {
            continue;
        }
        let Some((_, allowed)) = table.iter().find(|(known, _)| known == part) else {
            wrong.push(format!("{part} has no row"));
            continue;
        };
        for other in used.iter().filter(|other| *other != part) {
            if !allowed.contains(other) {
                wrong.push(format!("{part} uses {other}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_has_no_cycles() {
    let table = table();
    let mut below: BTreeSet<&str> = BTreeSet::new();
    for (part, allowed) in table.iter().rev() {
        for other in allowed {
            assert!(
                below.contains(other.as_str()),
                "{part} uses {other}, which does not stand below it"
            );
        }
        below.insert(part);
    }
    assert_eq!(below.len(), table.len(), "a folder has two rows");
    let allowed = |part: &str| &table.iter().find(|(own, _)| own == part).unwrap().1;
    for part in [
        "analysis", "arch", "elf", "memory", "model", "native", "python", "report", "resolve",
        "torch",
    ] {
        assert!(
            ["os", "sampling"]
                .iter()
                .all(|live| !allowed(part).contains(*live)),
            "{part} is tested without a process, and does not see the system"
        );
    }
    assert!(
        !allowed("analysis")
            .iter()
            .any(|other| other.starts_with("torch")),
        "analyses group by what is found already: they match no names"
    );
}

#[test]
fn only_arch_asks_for_the_architecture() {
    let mut all = Vec::new();
    files(&root().join("src"), &mut all);
    let asks = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let mut code = text.lines().map(|line| line.split("//").next().unwrap());
        code.any(|line| line.contains("target_arch"))
    };
    all.retain(asks);
    all.retain(|path| !path.starts_with(root().join("src/arch")));
    assert_eq!(all, [] as [PathBuf; 0]);
}
