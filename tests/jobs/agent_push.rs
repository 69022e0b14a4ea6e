//! What `torchspy agent` sends to receivers of profiles.

use crate::STEADY;
use crate::agent::{Agent, train, trainer};
use crate::faults::{PATIENCE, program, receiver};
use crate::installed::otlp_python;
use flate2::read::GzDecoder;
use serde_json::Value;
use std::io::Read;
use std::process::Command;
use std::sync::mpsc::Receiver;

/// Samples a trainer of this job until it ends, which is before the 15 s of a profile are over
/// unless the machine is busy.
fn sample(job: &str, options: &[&str]) -> Option<Agent> {
    let mut target = trainer(job)?;
    let agent = Agent::start(job, &[&STEADY[..], options].concat());
    agent.until("no trainer was found", |scrape| {
        scrape.sum("torchspy_phase_seconds_total") > 0.0
    });
    train(&mut target);
    Some(agent)
}

fn plain(body: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    GzDecoder::new(body).read_to_end(&mut plain).unwrap();
    plain
}

/// The first request with a profile of the training, and the profile: on a busy machine there is
/// one of the time before.
fn of_training(received: &Receiver<(String, Vec<u8>)>) -> (String, Vec<u8>) {
    loop {
        let (request, body) = received.recv_timeout(PATIENCE).unwrap();
        let profile = plain(&body);
        if has(&profile, "backward") {
            return (request, profile);
        }
    }
}

fn has(profile: &[u8], text: &str) -> bool {
    let mut parts = profile.windows(text.len());
    parts.any(|part| part == text.as_bytes())
}

#[test]
fn profiles_come_to_pyroscope() {
    let job = format!("agent-push-{}", std::process::id());
    let (url, received) = receiver("");
    let Some(agent) = sample(&job, &["--pyroscope", &url]) else {
        return;
    };
    let (request, profile) = of_training(&received);
    let line = request.lines().next().unwrap();
    assert!(line.starts_with("POST /ingest?name=torchspy%7B"), "{line}");
    for part in [
        job.as_str(),
        "rank%3D3",
        "&from=",
        "&until=",
        "&format=pprof",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    // The strings of the profile: labels of closed sets only, and the trainer's own function.
    let has = |text: &str| has(&profile, text);
    assert!(has("main") && has("phase"));
    assert!(!has("thread\u{12}") && has("nanoseconds"));
    let sent = "receiver=\"pyroscope\",result=\"sent\"";
    agent.until("it is not counted", |scrape| {
        scrape.with("torchspy_pushes_total", sent) > 0.0
    });
    agent.end();
}

/// One receiver takes it, the other says that it does not.
#[test]
fn profiles_come_to_a_receiver_of_otlp_whatever_another_says() {
    let job = format!("agent-otlp-{}", std::process::id());
    let (url, received) = receiver("");
    // No answer of OTLP's, but Pyroscope's does not matter.
    let (other, _received) = receiver("<html>");
    let options = ["--otlp", &url, "--pyroscope", &other];
    let Some(agent) = sample(&job, &options) else {
        return;
    };
    let (request, profile) = of_training(&received);
    let head = request.to_lowercase();
    let line = head.lines().next().unwrap();
    assert!(line.starts_with("post /v1development/profiles "), "{line}");
    for field in [
        "content-type: application/x-protobuf",
        "content-encoding: gzip",
    ] {
        assert!(head.contains(field), "{head}");
    }
    for receiver in ["otlp", "pyroscope"] {
        let sent = format!("receiver=\"{receiver}\",result=\"sent\"");
        agent.until("it is not counted", |scrape| {
            scrape.with("torchspy_pushes_total", &sent) > 0.0
        });
    }
    let age_ns = (agent.age_s() * 1e9) as u64;
    agent.end();
    let Some(python) = otlp_python() else {
        return;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), profile).unwrap();
    let output = Command::new(python)
        .arg(program("read_otlp.py"))
        .arg(file.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let resources: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let [trainer] = &resources[..] else {
        panic!("{resources:#?}");
    };
    assert_eq!(trainer["resource"]["torchspy.job"], job);
    assert_eq!(trainer["resource"]["torchspy.rank"], 3);
    // All of the training thread's time, once. What its first sample stands for may have begun
    // before, though not before the agent did.
    let samples = trainer["samples"].as_array().unwrap();
    let of_training = samples
        .iter()
        .filter(|sample| sample["labels"]["torchspy.thread"] == "training");
    let ns: u64 = of_training
        .map(|sample| sample["ns"].as_u64().unwrap())
        .sum();
    let length = trainer["length_ns"].as_u64().unwrap();
    assert!(
        ns > length / 2 && ns < age_ns,
        "{ns} of {length} of {age_ns}"
    );
}

/// What is not taken is counted for the receiver that did not take it.
#[test]
fn what_a_receiver_of_otlp_rejects_has_failed() {
    let job = format!("agent-reject-{}", std::process::id());
    // partial_success: rejected_profiles 1, error_message "full".
    let (url, _received) = receiver("\x0a\x08\x08\x01\x12\x04full");
    let Some(agent) = sample(&job, &["--otlp", &url]) else {
        return;
    };
    let failed = "receiver=\"otlp\",result=\"failed\"";
    let scrape = agent.until("it is not counted", |scrape| {
        scrape.with("torchspy_pushes_total", failed) > 0.0
    });
    assert_eq!(scrape.with("torchspy_pushes_total", "\"sent\""), 0.0);
    agent.end();
}
