//! OTLP profiles, read by the messages of another implementation, which checks the rules of the
//! protocol as well.

use crate::faults::program;
use crate::installed::otlp_python;
use crate::report_profile::training::training;
use crate::report_profile::{Builder, rank};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use torchspy::model::profile::Role;
use torchspy::report::otlp;
use torchspy::report::view::{View, ViewOptions};

fn read(request: &[u8]) -> Option<Vec<Value>> {
    let python = otlp_python()?;
    let folder = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let file = folder.path().join("request");
    std::fs::write(&file, request).unwrap();
    let output = Command::new(python)
        .arg(program("read_otlp.py"))
        .arg(file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn each_process_is_a_resource_with_the_time_that_is_drawn() {
    let mut profile = training();
    profile.run.started_wall_ns = 1_800_000_000_000_000_000;
    let request = otlp::request(&profile, Some("42")).unwrap();
    let Some(resources) = read(&request) else {
        return;
    };
    let view = View::new(&profile, &ViewOptions::default());
    let mut drawn: BTreeMap<i64, u64> = BTreeMap::new();
    for root in view.roots() {
        *drawn.entry(root.pid.into()).or_default() += root.drawn_ns;
    }
    let mut sent: BTreeMap<i64, u64> = BTreeMap::new();
    for one in &resources {
        let resource = &one["resource"];
        let pid = resource["process.pid"].as_i64().unwrap();
        let role = if pid == 4242 {
            "trainer"
        } else {
            "dataloader_worker"
        };
        let expected = json!({
            "service.name": "torchspy", "host.name": profile.run.host, "process.pid": pid,
            "torchspy.role": role, "torchspy.job": "42", "torchspy.rank": 0,
        });
        assert_eq!(resource, &expected);
        assert_eq!(one["scope"], json!(["torchspy", profile.run.torchspy]));
        assert_eq!(one["type"], json!(["wall", "nanoseconds"]));
        assert_eq!(one["start_ns"].as_u64(), Some(profile.start_wall_ns()));
        assert_eq!(one["length_ns"], profile.end_ns - profile.start_ns);
        assert_eq!(one["period_ns"], (1e9 / profile.run.rate_hz) as u64);
        for sample in one["samples"].as_array().unwrap() {
            *sent.entry(pid).or_default() += sample["ns"].as_u64().unwrap();
        }
    }
    assert_eq!(sent, drawn);
    assert!(sent.len() > 1);
    let trainer = resources.iter();
    let mut trainer = trainer.filter(|one| one["resource"]["process.pid"] == 4242);
    let samples = trainer.next().unwrap()["samples"].as_array().unwrap();
    let phases = |thread: &str| -> Vec<&Value> {
        let of_thread = samples.iter().map(|sample| &sample["labels"]);
        let of_thread = of_thread.filter(|labels| labels["torchspy.thread"] == thread);
        of_thread.map(|labels| &labels["torchspy.phase"]).collect()
    };
    assert!(phases("training").contains(&&json!("forward")));
    assert!(!phases("other").is_empty());
    // A frame of Python has its file and line, a native one its library.
    let frames: Vec<&Value> = samples
        .iter()
        .flat_map(|sample| sample["frames"].as_array().unwrap())
        .collect();
    let of_kind = |kind: &str| frames.iter().find(|frame| frame[3] == kind).unwrap();
    let python = of_kind("cpython");
    assert!(python[1].as_str().unwrap().ends_with(".py") && python[2] != 0);
    assert!(of_kind("native")[1].as_str().unwrap().contains(".so"));
}

#[test]
fn what_is_not_known_is_not_sent() {
    let mut builder = Builder::new("python train.py");
    let nothing = builder.process(rank(0), 100);
    builder.thread(nothing, 100, "python", true);
    assert!(otlp::request(&builder.build(), Some("42")).is_none());
    let mut profile = training();
    for process in &mut profile.processes {
        process.role = Role::Other;
    }
    let request = otlp::request(&profile, None).unwrap();
    let Some(resources) = read(&request) else {
        return;
    };
    for one in resources {
        let resource = one["resource"].as_object().unwrap();
        assert!(!resource.contains_key("torchspy.job"));
        assert!(!resource.contains_key("torchspy.rank"));
        assert_eq!(resource["torchspy.role"], "other");
    }
}
