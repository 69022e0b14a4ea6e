//! `record --trigger gpu:X`: a recording begins when the GPU was idle for long.

use crate::faults::Recorder;
use crate::gpu_machine::Machine;
use nvml_double::scenario::{Activity, Gpu, Scenario};

/// A recorder that waits for a utilization below 30 %, where it is `share`.
fn waiting(share: f64) -> Option<(Machine, Recorder)> {
    let machine = Machine::start(400, 600)?;
    let scenario = Scenario {
        gpus: vec![Gpu {
            activity: Activity::Constant(share),
            ..machine.gpu("GPU-44444444-dddd")
        }],
        ..Scenario::default()
    };
    let options = ["--trigger", "gpu:30", "--trigger-for", "2s"];
    let command = machine.command(&scenario, &options);
    let mut recorder = Recorder::spawn(command, tempfile::tempdir().unwrap());
    recorder.wait_for_message("waiting for: GPU utilization below 30 %");
    Some((machine, recorder))
}

#[test]
fn a_gpu_that_is_idle_begins_a_recording_and_a_busy_one_does_not() {
    let Some((_busy_machine, busy)) = waiting(0.6) else {
        return;
    };
    let Some((_idle_machine, mut idle)) = waiting(0.1) else {
        return;
    };
    idle.wait_for_message("% over 30 s: recording for 2s");
    let because = idle.messages.last().unwrap();
    assert!(because.contains("GPU utilization was 10 %"), "{because}");
    idle.wait_for_message("wrote run.tspy");
    let report = idle.interrupt().full_report();
    let because = "begun because GPU utilization was 10 % over 30 s";
    let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(report.contains(because), "{report}");
    let busy = busy.interrupt();
    assert!(!busy.path().exists(), "{}", busy.messages);
}
