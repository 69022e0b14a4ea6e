//! Device memory, against what torch's own allocator says at the end.

use crate::faults::{PATIENCE, Target, dump, get, marked, program, run, start_agent};
use crate::installed::torch_python;
use crate::node::{Node, alone};
use gpu_node::scenario::Scenario;
use serde_json::Value;
use std::process::Child;
use std::time::{Duration, Instant};

const PROGRAM: &str = "gpu_memory.py";

/// A process that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_allocators_figures_and_the_line_that_keeps_device_memory_are_told() {
    let Some(python) = torch_python() else { return };
    let node = Node::new(&Scenario::of_gpus(2));
    // What modules hold is read at most 12 s after it was read before.
    let ran = node.record(&python, &[PROGRAM, "13"], &[]);
    let devices = ran.report["device_memory"].as_array().unwrap();
    let told = format!("{devices:#?}\n{:#}\n{}", ran.said, ran.messages);
    // The other device was never used, and the forked process has used none.
    assert_eq!(devices.len(), 1, "{told}");
    let device = &devices[0];
    assert_eq!(device["device"], 0, "{told}");
    // The node has no part of the driver that torch's message of a failure needs: it fails before
    // that is counted.
    assert_eq!(device["retries"], 1, "{told}");
    assert_eq!(device["retries"], ran.said["num_alloc_retries"], "{told}");
    assert_eq!(device["failures"], ran.said["num_ooms"], "{told}");
    let said = |name: &str| ran.said[name].as_u64().unwrap();
    assert_eq!(
        device["peak_bytes"],
        said("allocated_bytes.all.peak"),
        "{told}"
    );
    // It grows until the end, and the last reading is up to a second before that.
    let reserved = device["reserved_peak_bytes"].as_u64().unwrap();
    let most = said("reserved_bytes.all.peak");
    assert!((most * 9 / 10..=most).contains(&reserved), "{told}");
    assert!(
        device["inactive_split_peak_bytes"].as_u64().unwrap() > 0,
        "{told}"
    );
    // The node's truth: a process has what it allocated, and its context.
    let context = device["beside_bytes"].as_u64().unwrap();
    assert!((400 << 20..500 << 20).contains(&context), "{told}");

    let by_code = &ran.report["device_memory_by_code"][0];
    let told = format!("{by_code:#}\n{}", ran.said);
    let line = |mark: &str| {
        let lines = by_code["lines"].as_array().unwrap();
        let line = lines
            .iter()
            .find(|line| line["line"] == marked(PROGRAM, mark));
        line.unwrap_or_else(|| panic!("{mark}: {told}")).clone()
    };
    let bytes = |line: &Value, name: &str| line[name].as_f64().unwrap();
    let steps = by_code["steps"].as_f64().unwrap();
    assert!(steps > 20.0, "{told}");
    let (kept, passing) = (65_536.0 * 4.0 * steps, 65_536.0 * 32.0 * steps);
    // Readings come at any moment of a step.
    let net = by_code["net_per_step_bytes"].as_f64().unwrap() * steps;
    assert!(
        (net - kept).abs() < 0.05 * kept + 2.0 * passing / steps,
        "{net} of {kept}: {told}"
    );
    let raised = bytes(&line("passing"), "raised_bytes");
    assert!(
        (0.2..1.2).contains(&(raised / passing)),
        "{raised} of {passing}: {told}"
    );
    let raised = bytes(&line("kept"), "raised_bytes");
    assert!(
        (0.1..5.0).contains(&(raised / kept)),
        "{raised} of {kept}: {told}"
    );
    // The peak came before the first step.
    let peak = bytes(&by_code["peak"], "bytes");
    assert!(peak <= said("allocated_bytes.all.peak") as f64, "{told}");
    assert!(
        peak > 0.5 * said("allocated_bytes.all.peak") as f64,
        "{told}"
    );

    // What the peak of a step is of: the modules are read after 4 s, and the optimizer's counts of
    // steps are on the CPU.
    let peaks = &by_code["step_peaks"];
    let figure = |name: &str| {
        peaks[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {told}"))
    };
    // The allocator is found up to a second after the first step.
    let of_steps = figure("steps") as f64 / steps;
    assert!((0.6..=1.0).contains(&of_steps), "{told}");
    assert!(
        figure("lowest_median_bytes") < figure("median_bytes")
            && figure("median_bytes") < figure("highest_bytes"),
        "{told}"
    );
    let part = |name: &str| {
        peaks["parts"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {told}"))
    };
    let weights = (256 * 256 + 256) * 4;
    assert_eq!(part("parameters_bytes"), weights, "{told}");
    assert_eq!(part("optimizer_state_bytes"), 2 * weights, "{told}");
    assert_eq!(part("buffers_bytes"), 0, "{told}");
    let gradients = part("gradients_most_bytes");
    assert!(gradients == 0 || gradients == weights, "{told}");
    assert!(part("bytes") <= figure("highest_bytes"), "{told}");
    let most = part("bytes") - 3 * weights;
    assert_eq!(part("others_most_bytes"), most, "{told}");
    assert_eq!(part("others_least_bytes"), most - gradients, "{told}");

    let path = ran.recording.to_string_lossy();
    let report = run(&["report", &path, "--by", "memory"]).stdout;
    let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in [
        "on cuda:0: tensors had at most",
        "DEVICE MEMORY BY CODE",
        "free between tensors",
        "found no memory on the device",
        "1 allocation",
        "highest reading of a step: median",
        "parameters 263 kB, optimizer state 526 kB, buffers 0 B",
    ] {
        assert!(words.contains(expected), "{expected}: {report}");
    }
    let table = run(&["report", &path, "--csv", "device_memory_lines"]).stdout;
    assert!(table.contains(PROGRAM), "{table}");
}

#[test]
fn modules_hold_what_the_allocator_gave() {
    let Some(python) = torch_python() else { return };
    let node = Node::new(&Scenario::of_gpus(1));
    let _alone = alone();
    let mut command = node.command(&python);
    let mut target = Target::spawn(command.args([&program("held_memory.py"), "cuda"]));
    for kept in [0, 100 << 20] {
        target.expect("ready");
        let truth: Value = serde_json::from_str(&target.line()).unwrap();
        let dumped = dump(target.pid(), &["--memory", "--json"]);
        let dumped: Value = serde_json::from_str(&dumped).unwrap();
        let memory = &dumped["looks"][0]["memory"][0];
        let told = format!("{memory:#}\n{truth:#}");
        let held = &memory["held"];
        for kind in ["parameters", "gradients", "optimizer_state", "buffers"] {
            assert_eq!(held[kind], truth[kind], "{kind}: {told}");
        }
        let device = &memory["devices"][0];
        assert_eq!(device["device"], "cuda:0", "{told}");
        assert_eq!(device["allocated_bytes"], truth["allocated"], "{told}");
        assert_eq!(device["reserved_bytes"], truth["reserved"], "{told}");
        // Each tensor's memory is rounded up to 512 bytes.
        let (allocated, beside) = (&device["allocated_bytes"], &device["beside_modules_bytes"]);
        let of_modules = allocated.as_u64().unwrap() - kept;
        let rest = beside.as_u64().unwrap() - kept;
        assert!(rest < of_modules / 50, "{rest} of {of_modules}: {told}");
        let shown = dump(target.pid(), &["--memory"]);
        assert!(
            shown.contains("on cuda:0 torch's allocator has given"),
            "{shown}"
        );
        target.tell("");
    }
    assert!(target.wait().success());
}

#[test]
fn the_agent_has_series_of_the_allocator() {
    let Some(python) = torch_python() else { return };
    let job = "cuda-memory";
    let (agent, address) = start_agent(job, &[], |_| ());
    let _agent = Killed(agent);
    let node = Node::new(&Scenario::of_gpus(1));
    let _alone = alone();
    let mut command = node.command(&python);
    command.args([&program(PROGRAM), "100"]);
    let mut target = Target::spawn(command.env("TORCHELASTIC_RUN_ID", job).env("RANK", "3"));
    target.expect("ready");
    let deadline = Instant::now() + PATIENCE;
    let value = |body: &str, wanted: &str| {
        let bytes = "torchspy_allocator_bytes{";
        let mut lines = body.lines().filter(|line| line.starts_with(bytes));
        let line = lines.find(|line| line.contains(wanted))?;
        line.rsplit_once(' ')?.1.parse::<u64>().ok()
    };
    let until = |count: u64| loop {
        let body = get(&address, "/metrics").1;
        let refusals = "torchspy_allocator_refusals_total{";
        let mut lines = body.lines().filter(|line| line.starts_with(refusals));
        let line = lines.find(|line| line.contains("device=\"cuda:0\",result=\"retried\""));
        if line.is_some_and(|line| line.ends_with(&format!(" {count}"))) {
            return body;
        }
        assert!(Instant::now() < deadline, "{body}");
        std::thread::sleep(Duration::from_millis(100));
    };
    until(0);
    target.tell("refuse");
    let body = until(1);
    let level = |state: &str| {
        let wanted = format!("rank=\"3\",device=\"cuda:0\",state=\"{state}\"}}");
        value(&body, &wanted).unwrap_or_else(|| panic!("{wanted}: {body}"))
    };
    let all = ["allocated", "active", "reserved", "peak"].map(level);
    // 300 tensors of 3 MiB, and a small model.
    assert!((900 << 20..920 << 20).contains(&all[3]), "{all:?}");
    assert!(
        all[0] > 0 && all[0] <= all[1] && all[1] <= all[2],
        "{all:?}"
    );
}
