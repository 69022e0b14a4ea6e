//! Which code raises memory, what holds it, and the peak, in a recording of a real trainer.

use crate::faults::{TORCHSPY, program};
use crate::native_live::torch_python;
use serde_json::Value;
use std::process::Command;

#[test]
fn a_list_that_keeps_a_tensor_of_each_step_is_seen_to_grow() {
    let Some(python) = torch_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let recorded = Command::new(TORCHSPY)
        .arg("record")
        .arg("-o")
        .arg(&recording)
        .arg("--")
        .arg(python)
        .args([&program("leaks.py"), "list", "--seconds", "20"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&recorded.stderr);
    assert!(recorded.status.success(), "{said}");
    let out = String::from_utf8(recorded.stdout).unwrap();
    let planted: Value = out
        .lines()
        .find_map(|line| line.starts_with('{').then(|| serde_json::from_str(line)))
        .unwrap()
        .unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(TORCHSPY);
        let output = command.args(arguments).arg(&recording).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let report: Value = serde_json::from_str(&run(&["report", "--json"])).unwrap();
    let memory = &report["memory"][0];
    let number = |key: &str| memory[key].as_f64().unwrap();
    // All that was planted in the timed steps stayed, and little else did.
    let each = planted["planted"].as_f64().unwrap() / planted["steps"].as_f64().unwrap();
    let kept = each * number("steps");
    let net = number("last_bytes") - number("first_bytes");
    assert!((0.7 * kept..1.5 * kept + 8e6).contains(&net), "{memory:#}");
    assert!(number("raised_bytes") >= net, "{memory:#}");
    assert!(memory["peak"]["bytes"].as_f64().unwrap() >= number("last_bytes"));
    // The end of the loop may take a little more, after the last step.
    let peak = &memory["peak"];
    let is_at_end = peak["bytes"].as_f64().unwrap() < number("last_bytes") + 1e6;
    assert!(peak["step"].is_u64() || is_at_end, "{memory:#}");
    let lines = memory["lines"].as_array().unwrap();
    let sum: f64 = lines
        .iter()
        .map(|line| line["raised_bytes"].as_f64().unwrap())
        .sum();
    assert!((sum - number("raised_bytes")).abs() < 1.0, "{memory:#}");
    let inspected = run(&["inspect"]);
    let grows = |line: &&str| line.contains("growing_containers") && line.contains("\"kept\"");
    let last = inspected.lines().rfind(grows);
    let last = last.unwrap_or_else(|| panic!("no container grows:\n{said}"));
    assert!(last.contains("\"function\":\"main\""), "{last}");
    let text = run(&["report", "--by", "memory"]);
    assert!(text.contains("MEMORY BY CODE of trainer"), "{text}");
    assert!(text.contains("\n  peak "), "{text}");
}
