//! Files for other viewers, read as these read them: Chrome's traces, pprof, Firefox Profiler.

use crate::in_browser::checked;
use crate::report_profile::training::training;
use crate::track_builder::{energy, gpu, utilization};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use torchspy::report::view::{View, ViewOptions};
use torchspy::report::{chrometrace, firefox, pprof};

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Drawn time of each thread, ns.
fn drawn() -> BTreeMap<String, u64> {
    let profile = training();
    let view = View::new(&profile, &ViewOptions::default());
    let roots = view.roots().iter();
    roots
        .map(|root| (root.label.clone(), root.drawn_ns))
        .collect()
}

/// Chrome's viewer drops events that do not nest.
#[test]
fn slices_of_a_chrome_trace_nest_and_cover_what_is_drawn() {
    let profile = training();
    let mut bytes = Vec::new();
    chrometrace::render(&profile, &ViewOptions::default(), &mut bytes).unwrap();
    let trace: Value = serde_json::from_slice(&bytes).unwrap();
    let (mut open, mut covered, mut names) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut marked: BTreeMap<String, u64> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        let thread = (event["pid"].as_i64(), event["tid"].as_i64());
        let at = event["ts"].as_f64().unwrap();
        let stack: &mut Vec<f64> = open.entry(thread).or_default();
        match event["ph"].as_str().unwrap() {
            "B" => {
                assert!(event["name"].is_string() && event["cat"].is_string());
                stack.push(at);
            }
            "E" => {
                let begin = stack.pop().expect("an end without a begin");
                assert!(begin <= at);
                if stack.is_empty() {
                    *covered.entry(thread).or_insert(0.0) += at - begin;
                }
            }
            "M" if event["name"] == "thread_name" => {
                let name = event["args"]["name"].as_str().unwrap().to_owned();
                names.insert(name, thread);
            }
            "X" => *marked.entry(event["cat"].to_string()).or_default() += 1,
            "M" => {}
            other => panic!("{other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty));
    for (name, ns) in drawn() {
        let us = covered[&names[&name]];
        assert!(
            (us - ns as f64 / 1e3).abs() < 1.0,
            "{name}: {us} us of {ns} ns"
        );
    }
    // Of 40 steps, forward and backward at least are two phases.
    assert!(marked["\"phases\""] >= 80, "{marked:?}");
}

fn go(arguments: &[&str], path: &Path) -> Option<String> {
    let Ok(done) = Command::new("go")
        .args(["tool", "pprof"])
        .args(arguments)
        .arg(path)
        .output()
    else {
        println!("skipped: no go, whose pprof would read the file");
        return None;
    };
    assert!(done.status.success(), "{done:?}");
    Some(String::from_utf8(done.stdout).unwrap())
}

#[test]
fn pprof_reads_stacks_and_tags() {
    let mut bytes = Vec::new();
    pprof::render(&training(), &ViewOptions::default(), &mut bytes).unwrap();
    let path = file("training.pb.gz", &bytes);
    let Some(tags) = go(&["-tags", "-unit=ms"], &path) else {
        return;
    };
    // `  9.6e+03ms (73.1%): rank 0 · MainThread`, below ` thread: Total …`.
    let mut sections: BTreeMap<&str, Vec<(f64, &str)>> = BTreeMap::new();
    let mut section = "";
    for line in tags.lines() {
        if let Some((name, _)) = line.trim().split_once(": Total") {
            section = name;
        } else if let Some((figure, name)) = line.split_once("): ") {
            let ms = figure.trim().split_once("ms").unwrap().0;
            let own = sections.entry(section).or_default();
            own.push((ms.parse().unwrap(), name));
        }
    }
    for key in ["thread", "rank", "phase", "activity"] {
        assert!(sections.contains_key(key), "{key}: {tags}");
    }
    for (name, ns) in drawn() {
        let of_thread = &sections["thread"];
        let found = of_thread.iter().find(|(_, label)| *label == name);
        let (ms, _) = found.unwrap_or_else(|| panic!("{name}: {tags}"));
        // It prints four digits.
        assert!((ms / (ns as f64 / 1e6) - 1.0).abs() < 1e-3, "{name}: {ms}");
    }
    let top = go(&["-top", "-lines"], &path).unwrap();
    assert!(top.contains("train.py:"), "{top}");
    assert!(top.contains("Type: wall"), "{top}");
}

#[test]
fn firefox_profiler_reads_threads_markers_and_counters() {
    let mut builder = crate::analysis_builder::Builder::trainer();
    let stack = [crate::analysis_builder::user("step", 5)];
    builder.ticks(0, 200, crate::analysis_builder::S::Running, &stack);
    let device = gpu(&mut builder, &[100]);
    let end_ns = 2_000_000_000;
    utilization(&mut builder, device, end_ns, |from, to| {
        (to - from) as f64 / 2.0
    });
    energy(&mut builder, device, end_ns, |from, to| {
        216.0 * (to - from) as f64 / 1e9
    });
    let mut bytes = Vec::new();
    firefox::render(&builder.profile(), &ViewOptions::default(), &mut bytes).unwrap();
    let Some(text) = checked("check-firefox", &[&file("trainer.firefox.json.gz", &bytes)]) else {
        return;
    };
    // 216 W over 19 windows of 100 ms.
    assert!(
        text.contains("Energy used in the visible range: 114 mWh"),
        "{text}"
    );
    assert!(
        text.contains("200   100.0%") || text.contains("200  100.0%"),
        "{text}"
    );
    assert!(text.contains("phases"), "{text}");
    assert!(text.contains("utilization, share"), "{text}");
}
