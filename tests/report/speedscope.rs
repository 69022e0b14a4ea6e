//! speedscope: golden output, true durations on one time axis, the real speedscope opens it.

use crate::report_profile::{At, Builder, MS, rank, small};
use serde_json::Value;
use torchspy::model::category::{Activity, FrameKind, Phase};
use torchspy::model::profile::Profile;
use torchspy::report::speedscope::{SpeedscopeOptions, render};
use torchspy::report::view::{Idle, ViewOptions};

fn write(profile: &Profile, options: &SpeedscopeOptions) -> Value {
    let mut json = Vec::new();
    render(profile, options, &mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn everything() -> SpeedscopeOptions {
    let view = ViewOptions {
        idle: Idle::Everywhere,
        plumbing: true,
        ..ViewOptions::default()
    };
    SpeedscopeOptions {
        view,
        ..SpeedscopeOptions::default()
    }
}

#[test]
fn golden() {
    insta::assert_snapshot!(
        serde_json::to_string_pretty(&write(&small(), &SpeedscopeOptions::default())).unwrap()
    );
}

#[test]
fn every_thread_fills_the_recordings_time_axis() {
    for options in [SpeedscopeOptions::default(), everything()] {
        let file = write(&small(), &options);
        for profile in file["profiles"].as_array().unwrap() {
            let weights: Vec<u64> = profile["weights"]
                .as_array()
                .unwrap()
                .iter()
                .map(|w| w.as_u64().unwrap())
                .collect();
            assert_eq!(weights.len(), profile["samples"].as_array().unwrap().len());
            assert_eq!(weights.iter().sum::<u64>(), 57 * MS, "{}", profile["name"]);
            assert!(weights.iter().all(|&weight| weight > 0));
            assert_eq!(profile["endValue"], 57 * MS);
        }
    }
}

#[test]
fn gaps_and_undrawn_waits_are_empty_stacks() {
    let file = write(&small(), &SpeedscopeOptions::default());
    let empty = |index: usize| {
        let profile = &file["profiles"][index];
        let pairs = profile["samples"]
            .as_array()
            .unwrap()
            .iter()
            .zip(profile["weights"].as_array().unwrap());
        pairs
            .filter(|(stack, _)| stack.as_array().unwrap().is_empty())
            .map(|(_, weight)| weight.as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(empty(0), [7 * MS]);
    assert_eq!(empty(1), [27 * MS]);
    assert_eq!(empty(2), [39 * MS]);
}

#[test]
fn frames_are_known_and_stacks_begin_with_a_phase() {
    let file = write(&small(), &everything());
    let frames = file["shared"]["frames"].as_array().unwrap();
    for profile in file["profiles"].as_array().unwrap() {
        for stack in profile["samples"].as_array().unwrap() {
            let stack: Vec<&str> = stack
                .as_array()
                .unwrap()
                .iter()
                .map(|at| {
                    frames[at.as_u64().unwrap() as usize]["name"]
                        .as_str()
                        .unwrap()
                })
                .collect();
            let phase = stack.first().map(|name| name.trim_matches(['[', ']']));
            assert!(
                phase.is_none_or(|phase| Phase::ALL.iter().any(|known| known.name() == phase)),
                "{stack:?}"
            );
        }
    }
    let plain = write(
        &small(),
        &SpeedscopeOptions {
            categories: false,
            ..SpeedscopeOptions::default()
        },
    );
    let names: Vec<&str> = plain["shared"]["frames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["name"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"train") && !names.contains(&"[forward]"),
        "{names:?}"
    );
}

#[test]
fn overlapping_samples_do_not_break_the_axis() {
    let mut profile = small();
    for sample in &mut profile.samples {
        sample.start_ns -= 3 * MS;
    }
    profile.end_ns = profile.start_ns;
    let file = write(&profile, &everything());
    for profile in file["profiles"].as_array().unwrap() {
        let sum: u64 = profile["weights"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_u64().unwrap())
            .sum();
        assert_eq!(profile["endValue"].as_u64(), Some(sum));
    }
}

#[test]
fn hostile_names_are_neutral() {
    let mut builder = Builder::new("python \x1b[2J");
    let process = builder.process(rank(0), 1);
    let thread = builder.thread(process, 1, "\x07</script>", false);
    let name = format!("\x1b]0;x\x07{}", "T<".repeat(100_000));
    let function = builder.python(&name, &name, 1, FrameKind::PythonUser);
    builder.sample(
        thread,
        10 * MS,
        &[At::Python(function, 3)],
        Phase::User,
        Activity::Python,
    );
    let mut json = Vec::new();
    render(&builder.build(), &SpeedscopeOptions::default(), &mut json).unwrap();
    assert!(json.len() < 20_000, "{}", json.len());
    let text = String::from_utf8(json).unwrap();
    assert!(!text.contains("\\u00"), "control characters");
}

#[test]
fn an_empty_profile_is_a_valid_file() {
    let file = write(&Profile::default(), &SpeedscopeOptions::default());
    assert_eq!(file["profiles"], serde_json::json!([]));
}
