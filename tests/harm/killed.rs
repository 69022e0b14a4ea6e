//! torchspy is killed with SIGKILL: the target computes on as if nothing had been, and the
//! recording is readable.

use crate::faults::{
    How, Recorded, Recorder, Target, any_python, faults_can_be_made, output_of, program, run,
    tracer_of,
};
use crate::so_far;
use nix::sys::signal::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

const FAST: &[&str] = &["--rate", "1000", "--max-stopped", "100"];

/// Hash chains on three threads: one wrong register anywhere, and the result is wrong.
struct Computation {
    target: Target,
    python: String,
}

impl Computation {
    fn start() -> Option<Self> {
        let python = any_python()?;
        let target = Target::start(&[&python, &program("fault_compute.py"), "--until-stdin"]);
        Some(Self { target, python })
    }

    fn assert_nothing_stopped(&self, context: &str) {
        let states = self.target.states();
        assert!(!states.is_empty(), "{context}: the target has ended");
        let stopped = states
            .iter()
            .filter(|state| matches!(state, b't' | b'T'))
            .count();
        assert_eq!(
            (stopped, tracer_of(self.target.pid())),
            (0, None),
            "{context}"
        );
    }

    /// Ends it and compares its result with that of a run that nobody looked at.
    fn finish(mut self) {
        self.target.tell("");
        let words = self.target.expect("result");
        assert!(self.target.wait().success());
        let (result, rounds, threads) = (&words[0], &words[2], &words[4]);
        let mut command = Command::new(&self.python);
        command.args([&program("fault_compute.py"), "--expect", rounds, threads]);
        assert_eq!(
            output_of(&mut command).stdout.trim(),
            result,
            "after {rounds} rounds"
        );
    }
}

#[test]
fn at_every_step_of_a_stop() {
    if !faults_can_be_made() {
        return;
    }
    let Some(computation) = Computation::start() else {
        return;
    };
    for point in ["chosen", "seized", "interrupted", "held", "read"] {
        for visit in [0, 1, 57] {
            let fault = format!("{point}:{visit}:1:die");
            let how = How {
                options: FAST,
                fault: Some(&fault),
            };
            let recorded = Recorder::attach(computation.target.pid(), how).finish();
            assert!(recorded.was_killed(), "{fault}: {}", recorded.messages);
            computation.assert_nothing_stopped(&fault);
        }
    }
    computation.finish();
}

#[test]
fn a_hundred_times_at_random() {
    let Some(computation) = Computation::start() else {
        return;
    };
    let pid = computation.target.pid();
    let seed = std::process::id();
    let mut random = u64::from(seed) | 1;
    let mut sampling = 0;
    for number in 0..100 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let recorder = Recorder::attach(
            pid,
            How {
                options: FAST,
                fault: None,
            },
        );
        // In three of four it is sampling by then, and may hold a thread.
        let mut has_stopped = false;
        if random % 4 != 0 {
            recorder.wait_for_a_stop(pid);
            has_stopped = true;
        }
        let deadline = Instant::now() + Duration::from_micros(random % 20_000);
        while Instant::now() < deadline {
            std::hint::spin_loop();
        }
        recorder.kill(Signal::SIGKILL);
        let recorded = recorder.finish();
        assert!(
            recorded.was_killed(),
            "{number}, seed {seed}: {}",
            recorded.messages
        );
        sampling += usize::from(has_stopped);
        computation.assert_nothing_stopped(&format!("{number}, seed {seed}"));
    }
    assert!(
        sampling >= 50,
        "{sampling} of 100 were killed while they sampled"
    );
    computation.finish();
}

/// All that was written is there, and the report says that the end is missing.
#[test]
fn the_recording_is_readable() {
    let Some(computation) = Computation::start() else {
        return;
    };
    let recorder = Recorder::attach(computation.target.pid(), How::default());
    let started = Instant::now();
    recorder.wait_for_a_stop(computation.target.pid());
    let mut length = 0;
    for _ in 0..3 {
        recorder.wait_for_bytes(length + 200);
        length = recorder.path().metadata().unwrap().len();
    }
    // Nothing that was written by now is lost.
    let written = so_far::report(&recorder.path())["duration_s"].as_f64();
    recorder.kill(Signal::SIGKILL);
    let recorded = recorder.finish();
    let killed = Instant::now();
    assert!(recorded.was_killed());
    computation.assert_nothing_stopped("killed");
    assert_readable(
        &recorded,
        written.unwrap(),
        (killed - started).as_secs_f64(),
    );
    computation.finish();
}

fn assert_readable(recorded: &Recorded, at_least_s: f64, at_most_s: f64) {
    let path = recorded.path().to_string_lossy().into_owned();
    let report = run(&["report", "--full", &path]);
    assert!(report.status.success(), "{}", report.stderr);
    assert!(
        report.stderr.contains("warning: the end is missing"),
        "{}",
        report.stderr
    );
    assert!(report.stdout.contains("main"), "{}", report.stdout);
    let json = recorded.report();
    assert!(
        json["missing"][0]
            .as_str()
            .unwrap()
            .starts_with("the end is missing"),
        "{json}"
    );
    let duration = json["duration_s"].as_f64().unwrap();
    assert!(
        duration >= at_least_s && duration < at_most_s,
        "{duration} of {at_least_s} s"
    );
    let dump = recorded.inspect();
    assert!(
        dump.contains("py one_round (") && dump.contains("na _PyEval"),
        "named: {dump}"
    );
    let folder = recorded
        .folder
        .path()
        .join("run.svg")
        .to_string_lossy()
        .into_owned();
    let convert = run(&["convert", &path, "-o", &folder]);
    assert!(
        convert.status.success() && convert.stderr.contains("warning: the end is missing"),
        "{}",
        convert.stderr
    );
}
