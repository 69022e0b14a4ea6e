//! Regions that the user names: which time is theirs, and what every report calls them.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod analysis_builder;

use analysis_builder::*;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use torchspy::analysis::analyze;
use torchspy::model::category::Phase as P;
use torchspy::model::region::Region;
use torchspy::report::flamegraph;
use torchspy::report::json::render_json;
use torchspy::report::speedscope::{self, SpeedscopeOptions};
use torchspy::report::text::{TextOptions, render_summary};
use torchspy::report::view::ViewOptions;

const MODULE: &str = "torch/nn/modules/module.py";

fn builder(regions: &[&str]) -> Builder {
    let mut builder = Builder::trainer();
    builder.run.regions = regions
        .iter()
        .map(|text| Region::parse(text).unwrap())
        .collect();
    builder
}

fn main_calls(more: &[F]) -> Vec<F> {
    let mut frames = vec![user("<module>", 90), user("main", 41)];
    frames.extend_from_slice(more);
    frames
}

/// 40 ticks in a region, 20 in a module that it calls, 10 in a region that a module calls, 10 in
/// the compiler below it, 20 in an import, 20 in the script.
fn profile() -> torchspy::model::profile::Profile {
    let mut builder = builder(&["augment=train.py:augment", "loss=train.py:Net.loss"]);
    let augment = user("augment", 12);
    let call = lib(MODULE, "Module._call_impl");
    let loss = user("Net.loss", 30);
    builder.ticks(
        0,
        40,
        S::Running,
        &main_calls(std::slice::from_ref(&augment)),
    );
    builder.ticks(0, 20, S::Running, &main_calls(&[augment, call.clone()]));
    builder.ticks(0, 10, S::Running, &main_calls(&[call, loss.clone()]));
    let compiler = lib("torch/_dynamo/convert_frame.py", "_compile");
    builder.ticks(0, 10, S::Running, &main_calls(&[loss.clone(), compiler]));
    let import = std_lib("<frozen importlib._bootstrap>", "_find_and_load");
    builder.ticks(0, 20, S::Running, &main_calls(&[loss, import]));
    builder.ticks(0, 20, S::Running, &main_calls(&[]));
    builder.profile()
}

#[test]
fn the_nearest_strong_mark_decides() {
    let profile = profile();
    let phases: Vec<P> = profile.samples.iter().map(|sample| sample.phase).collect();
    let wanted = [
        (40, P::Region1),
        (20, P::Forward),
        (10, P::Region2),
        (10, P::Compile),
        (20, P::Region2),
        (20, P::User),
    ];
    let wanted: Vec<P> = wanted
        .iter()
        .flat_map(|&(ticks, phase)| vec![phase; ticks])
        .collect();
    assert_eq!(phases, wanted);
    // `importlib` has a row of its own, but a region outward of it is the phase that imports.
    assert_eq!(profile.phase_name(P::Region1), "augment");
    assert_eq!(profile.phase_name(P::Region3), "region_3");
    assert_eq!(profile.phases().count(), P::BUILT_IN.len() + 2);
}

#[test]
fn every_report_has_the_user_s_names() {
    let profile = profile();
    let analysis = analyze(&profile);
    let json: Value = serde_json::from_str(&render_json(&profile, &analysis).unwrap()).unwrap();
    let share = |at: &Value| at.as_f64().unwrap();
    assert!((share(&json["phases"]["augment"]) - 40.0 / 120.0).abs() < 1e-9);
    assert!((share(&json["matrix"]["loss"]["python"]) - 30.0 / 120.0).abs() < 1e-9);
    assert_eq!(json["intervals"]["phases"]["augment"]["samples"], 40);
    assert_eq!(
        json["processes"][0]["phases"]["loss"],
        json["phases"]["loss"]
    );
    let keys = json["phases"].as_object().unwrap();
    assert!(
        !keys.keys().any(|name| name.starts_with("region_")),
        "{keys:?}"
    );

    let text = render_summary(&profile, &analysis, TextOptions::default());
    let row = text.lines().find(|line| line.starts_with("  augment "));
    assert!(row.unwrap().contains("33.3"), "{text}");
    let mut svg = Vec::new();
    flamegraph::render(&profile, &ViewOptions::default(), &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    assert!(svg.contains("phase: augment"), "no tooltip names it");
    assert!(!svg.contains("region_1"));
    let mut file = Vec::new();
    speedscope::render(&profile, &SpeedscopeOptions::default(), &mut file).unwrap();
    let file = String::from_utf8(file).unwrap();
    assert!(file.contains("\"[augment]\"") && !file.contains("region_1"));
}

#[test]
fn a_region_takes_the_place_of_its_function_s_own_rule() {
    let mut builder = builder(&["mine=torch/nn/modules/module.py:_call_impl"]);
    let call = lib(MODULE, "Module._call_impl");
    builder.ticks(0, 1, S::Running, &main_calls(&[call]));
    assert_eq!(builder.profile().samples[0].phase, P::Region1);
}

fn torchspy(arguments: &[&str], recording: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(arguments)
        .arg(recording)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn json_of(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A recording keeps the regions that it was made with, and a report adds to them.
#[test]
fn regions_are_recorded_and_added() {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/regions.py");
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let recorded = Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(["record", "--region", "augment=programs/regions.py:augment"])
        .args(["--region", "gone=programs/regions.py:Trainer.gone", "-o"])
        .arg(&recording)
        .args(["--", "python3", program, "600"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&recorded.stderr);
    if said.contains("no such program") || said.contains("not found") {
        println!("skipped: no python3");
        return;
    }
    assert!(recorded.status.success(), "{said}");
    let lacks = "warning: no sample was in region gone=programs/regions.py:Trainer.gone\nhint: functions that were seen in";
    assert!(said.contains(lacks), "{said}");

    let report = json_of(&torchspy(&["report", "--json"], &recording));
    let share = |report: &Value, name: &str| report["phases"][name].as_f64();
    let augment = share(&report, "augment").unwrap();
    assert!((0.15..0.5).contains(&augment), "{}", report["phases"]);
    assert_eq!(share(&report, "gone"), Some(0.0));
    assert_eq!(share(&report, "rest"), None);

    let with_rest = ["report", "--json", "--region", "rest=regions.py:rest"];
    let report = json_of(&torchspy(&with_rest, &recording));
    let rest = share(&report, "rest").unwrap();
    assert!(rest > augment, "{}", report["phases"]);
    assert_eq!(share(&report, "augment"), Some(augment));

    let inspected = torchspy(&["inspect"], &recording);
    let inspected = String::from_utf8_lossy(&inspected.stdout).into_owned();
    assert!(inspected.contains("region: augment=programs/regions.py:augment\n"));
}

#[test]
fn what_is_no_region_is_refused_before_anything_is_read() {
    for (text, hint) in [
        ("augment", "hint: give a name"),
        ("region_1=train.py:f", "hint: choose another name"),
        ("a=train.py:12", "hint: give a name"),
    ] {
        let output = torchspy(&["report", "--region", text], Path::new("no.tspy"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.starts_with("error: --region ") && said.contains(hint),
            "{said}"
        );
    }
}
