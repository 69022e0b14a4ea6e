//! Cells of notebooks are named by their numbers.

use crate::faults::{TORCHSPY, wait_until};
use crate::on_each_engine;
use crate::python_target::Python;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// What a case tells: its thread, and its frames from its cell on, leaf first: name, file, line.
type Case = (u64, Vec<(String, String, u64)>);

/// Cells by case, leaf first. The text of `again` was run thrice.
const CELLS: [(&str, &[&str]); 7] = [
    ("second", &["In[2]-"]),
    ("of the first", &["In[1]-", "In[3]-"]),
    ("not ascii", &["In[4]-"]),
    ("magic", &["In[6]-"]),
    ("again", &["In[8]-"]),
    ("not stored", &[""]),
    ("generator", &["In[9]-", "In[9]-"]),
];

fn dump(pid: i32, options: &[&str]) -> String {
    let output = Command::new(TORCHSPY)
        .args(["dump", "--pid", &pid.to_string()])
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn check(version: &str) {
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/notebook_cells.py"
    );
    let Some(python) = Python::find(version) else {
        return;
    };
    let mut target = python.start(program.as_ref(), &[]);
    let lines = target.ready();
    let cases: BTreeMap<String, Case> = serde_json::from_str(&lines[0]).unwrap();
    let found: Value = serde_json::from_str(&dump(target.pid(), &["--json"])).unwrap();
    let threads = found["looks"][0]["processes"][0]["threads"]
        .as_array()
        .unwrap();
    for (name, prefixes) in CELLS {
        let (tid, frames) = &cases[name];
        let mut prefixes = prefixes.iter();
        // As the program sees them, with the numbers.
        let expected: Vec<String> = frames
            .iter()
            .map(|(_, file, line)| match file.rsplit_once("/ipykernel_") {
                Some((folder, rest)) => {
                    let (pid, hash) = rest.split_once('/').unwrap();
                    let prefix = prefixes.next().unwrap();
                    format!("{folder}/ipykernel_{pid}/{prefix}{hash}:{line}")
                }
                None => format!("{file}:{line}"),
            })
            .collect();
        assert_eq!(prefixes.next(), None, "{name}");
        let thread = threads.iter().find(|thread| thread["tid"] == *tid);
        let seen = thread.unwrap()["frames"].as_array().unwrap().iter();
        let seen: Vec<String> = seen
            .filter(|frame| frame["python"] == true && frame["function"] != "hold")
            .map(|frame| format!("{}:{}", frame["file"].as_str().unwrap(), frame["line"]))
            .collect();
        assert_eq!(seen, expected, "{name} on {version}");
    }
    let text = dump(target.pid(), &[]);
    assert!(text.contains("Jupyter cell [3]:1"), "{text}");
}

macro_rules! on_each {
    ($($name:ident $version:literal),*) => {$(
        #[test]
        fn $name() {
            check($version);
        }
    )*};
}

on_each!(
    cells_have_numbers_3_10 "3.10", cells_have_numbers_3_11 "3.11", cells_have_numbers_3_12 "3.12",
    cells_have_numbers_3_13 "3.13", cells_have_numbers_3_14 "3.14", cells_have_numbers_3_15 "3.15"
);

on_each_engine!(a_kernel_of_ipykernel_has_numbered_cells);

fn a_kernel_of_ipykernel_has_numbered_cells(engine: &str) {
    let Some(mut target) = crate::runtimes::start("notebook_kernel.py", &[]) else {
        return;
    };
    let pid: i32 = target.ready_with().parse().unwrap();
    // What it prints is there before it goes on to its next line.
    wait_until("it waits in that cell", || {
        dump(pid, &[]).contains("train (Jupyter cell [1]:4)")
    });
    let text = dump(pid, &[]);
    for place in [
        "train (Jupyter cell [1]:4)",
        // IPython leaves empty lines at the start of a cell out.
        "epoch (Jupyter cell [3]:2)",
        "(Jupyter cell [4]:2)",
    ] {
        assert!(text.contains(place), "{place}: {text}");
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("kernel.folded");
    let recorded = Command::new(TORCHSPY)
        // On a busy machine it takes seconds to find the interpreter.
        .args(["record", "--duration", "4s", "--pid", &pid.to_string()])
        .args(["--engine", engine])
        .arg("-o")
        .arg(&output)
        .output()
        .unwrap();
    assert!(recorded.status.success(), "{recorded:?}");
    let folded = std::fs::read_to_string(&output).unwrap();
    let line = folded.lines().find(|line| line.contains("train"));
    let line = line.unwrap_or_else(|| panic!("{folded}"));
    assert!(line.contains("/In[1]-"), "{line}");
    assert!(line.contains("/In[4]-"), "{line}");
}

/// Each way that docs/src/notebooks.md has: a cell starts the recording, the next one computes.
#[test]
fn a_notebook_records_its_own_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let bin = std::path::Path::new(TORCHSPY).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", bin.display());
    let at = folder.path().to_str().unwrap();
    let variables = [("PATH", path.as_str())];
    let Some(mut target) =
        crate::runtimes::start_with("notebook_records_itself.py", &[at], &variables)
    else {
        return;
    };
    target.ready_with();
    for (name, cell) in [("bash", 2), ("line", 4), ("popen", 6)] {
        let folded = std::fs::read_to_string(folder.path().join(format!("{name}.folded"))).unwrap();
        let own = format!("compute_{name} (");
        let inside: Vec<&str> = folded.lines().filter(|line| line.contains(&own)).collect();
        assert!(!inside.is_empty(), "{name}: {folded}");
        let place = format!("/In[{cell}]-");
        assert!(
            inside.iter().all(|line| line.contains(&place)),
            "{name}: {inside:?}"
        );
        let itself = folded.lines().find(|line| line.starts_with("torchspy · "));
        assert_eq!(itself, None, "{name}: torchspy sampled itself");
    }
}
