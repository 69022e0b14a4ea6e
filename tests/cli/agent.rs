//! `torchspy agent` on processes without torch, and the examples of how it is run. Its figures of
//! real trainers are in tests/jobs.

use crate::faults::{PATIENCE, TORCHSPY, Target, any_python, get, program, receiver, start_agent};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;
use yaml_rust2::{Yaml, YamlLoader};

/// An agent for one job, killed when this is dropped.
struct Agent {
    child: Child,
    address: String,
    log: NamedTempFile,
}

impl Agent {
    fn start(job: &str, options: &[&str]) -> Self {
        let log = NamedTempFile::new().unwrap();
        let errors = log.reopen().unwrap();
        let (child, address) = start_agent(job, options, |command| {
            command.stderr(errors);
        });
        Self {
            child,
            address,
            log,
        }
    }

    /// Status line and body.
    fn get(&self, path: &str) -> (String, String) {
        get(&self.address, path)
    }

    /// Scrapes until the series are as they should be.
    fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (_, text) = self.get("/metrics");
            if is_so(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "{what}: {text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What it said until its end.
    fn end(mut self) -> String {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        std::fs::read_to_string(self.log.path()).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ranks that wait, of a job of this name that meets at this port.
fn ranks(job: &str, port: &str, how: &str) -> Option<Target> {
    let python = any_python()?;
    let mut command = Command::new(python);
    command.args([&program("waiting_ranks.py"), "2", how]);
    command.env("TORCHELASTIC_RUN_ID", job);
    let mut target = Target::spawn(command.env("MASTER_PORT", port));
    target.ready = target.expect("ready");
    Some(target)
}

/// The values of a name's series, with their labels.
fn series<'t>(text: &'t str, name: &str) -> Vec<(&'t str, f64)> {
    let lines = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let labels = series.strip_prefix(name)?.strip_prefix('{')?;
        Some((labels, value.parse().ok()?))
    });
    lines.collect()
}

#[test]
fn a_hang_of_a_job_is_found() {
    let job = format!("agent-hangs-{}", std::process::id());
    let Some(target) = ranks(&job, "29500", "lock") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ring = folder.path().to_str().unwrap();
    let agent = Agent::start(&job, &["--hang-after", "2s", "--ring", ring]);
    let text = agent.until("no hang", |text| {
        let found = series(text, "torchspy_hang");
        found.len() == 2 && found.iter().all(|&(_, value)| value == 1.0)
    });
    for (labels, seconds) in series(&text, "torchspy_wait_seconds_total") {
        assert!(labels.contains("cause=\"lock\"") && seconds > 0.0, "{text}");
    }
    // It hangs until its processes end, and then no more.
    drop(target);
    agent.until("it hangs after its end", |text| {
        let found = series(text, "torchspy_hang");
        found.len() == 2 && found.iter().all(|&(_, value)| value == 0.0)
    });
    let log = agent.end();
    assert!(
        log.contains(" has ended") && !log.contains("goes on"),
        "{log}"
    );
    let host = std::fs::read_dir(folder.path()).unwrap().next();
    let files = std::fs::read_dir(host.unwrap().unwrap().path()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let is_dump = |name: &String| name.starts_with("hang-") && name.ends_with(".txt");
    assert_eq!(names.filter(is_dump).count(), 1);
}

#[test]
fn two_jobs_of_one_name_are_two_jobs() {
    let job = format!("agent-twice-{}", std::process::id());
    let Some(_waits) = ranks(&job, "29500", "timed") else {
        return;
    };
    let (url, profiles) = receiver("");
    let agent = Agent::start(&job, &["--hang-after", "2s", "--pyroscope", &url]);
    let values = |text: &str, label: &str| -> Vec<f64> {
        let label = format!("job=\"{label}\"");
        let found = series(text, "torchspy_hang").into_iter();
        let found = found.filter(|(labels, _)| labels.contains(&label));
        found.map(|(_, value)| value).collect()
    };
    agent.until("no series", |text| values(text, &job).len() == 2);
    // The other one goes on, and this one hangs.
    let hangs = ranks(&job, "29501", "lock").unwrap();
    let other = format!("{job}, port 29501");
    let text = agent.until("no hang", |text| values(text, &other) == [1.0, 1.0]);
    assert_eq!(values(&text, &job), [0.0, 0.0], "{text}");
    // Neither takes the other's series when it ends.
    drop(hangs);
    let text = agent.until("it hangs after its end", |text| {
        values(text, &other) == [0.0, 0.0]
    });
    assert_eq!(values(&text, &job).len(), 2, "{text}");
    agent.end();
    // Profiles have the same names, and the last of each is sent at its end.
    let mut named = std::iter::from_fn(|| Some(profiles.recv_timeout(PATIENCE).ok()?.0));
    let name = format!("job%3D{job}__port_29501%2C");
    assert!(named.any(|request| request.contains(&name)));
}

/// What `report DIR` has of ranks that two agents sample at the same time, and one of them `record`
/// besides.
#[test]
fn a_rank_that_several_sample_is_reported_once() {
    let job = format!("agents-{}", std::process::id());
    let Some(target) = ranks(&job, "29500", "timed") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let agents = [(); 2].map(|()| Agent::start(&job, &["--ring", path]));
    for agent in &agents {
        agent.until("nothing is sampled", |text| {
            let seconds = series(text, "torchspy_phase_seconds_total");
            let labels: BTreeSet<&str> = seconds
                .iter()
                .filter(|&&(_, value)| value > 4.0)
                .map(|&(labels, _)| labels)
                .collect();
            labels.len() == 2
        });
    }
    let mut recorder = Command::new(TORCHSPY);
    recorder.args([
        "record",
        "--duration",
        "1s",
        "--pid",
        &target.ready[0],
        "-o",
    ]);
    let recorded = recorder.arg(folder.path().join("0.tspy")).output().unwrap();
    assert!(recorded.status.success(), "{recorded:?}");
    for agent in agents {
        agent.end();
    }
    let report = |options: &[&str]| {
        let mut command = Command::new(TORCHSPY);
        let output = command.args(["report", path]).args(options).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let found: serde_json::Value = serde_json::from_str(&report(&["--json"])).unwrap();
    let ranks = found["ranks"].as_array().unwrap().iter();
    let pids = ranks.map(|rank| rank["pid"].to_string());
    assert_eq!(pids.collect::<Vec<_>>(), target.ready, "{found}");
    // One of the other agent for each rank, and that of `record`, which is not longer.
    let left_out = found["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 3, "{found}");
    for (rank, pid) in target.ready.iter().enumerate() {
        let begins = format!("rank {rank} (pid {pid}) is left out: ");
        let of_rank = left_out.iter().filter(|each| {
            let why = each["why"].as_str().unwrap();
            why.starts_with(&begins)
                && why.ends_with(" has more of the same process at the same time")
        });
        assert_eq!(of_rank.count(), 2 - rank, "{found}");
    }
    let text = report(&[]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("2 of 2 ranks on 1 host, 2 recordings"),
        "{text}"
    );
    let why = "has more of the same process at the same time";
    assert_eq!(text.matches(why).count(), 3, "{text}");
}

#[test]
fn a_sleep_is_no_hang_and_ranks_above_the_limit_have_no_series() {
    let job = format!("agent-sleeps-{}", std::process::id());
    let Some(_target) = ranks(&job, "29500", "timed") else {
        return;
    };
    let options = ["--hang-after", "1s", "--max-trainers", "1"];
    let agent = Agent::start(&job, &options);
    // Far more than a second: seconds of the one rank that is sampled.
    let text = agent.until("nothing is sampled", |text| {
        let seconds = series(text, "torchspy_phase_seconds_total");
        seconds.iter().map(|&(_, value)| value).sum::<f64>() > 8.0
    });
    let ranks: BTreeSet<&str> = series(&text, "torchspy_unclassified_ratio")
        .into_iter()
        .map(|(labels, _)| labels)
        .collect();
    assert_eq!(ranks.len(), 1, "{text}");
    assert_eq!(series(&text, "torchspy_trainers")[0].1, 1.0);
    agent.end();
}

#[test]
fn other_addresses_are_not_found_and_wrong_options_have_hints() {
    let agent = Agent::start("no such job", &[]);
    let (head, _) = agent.get("/");
    assert!(head.starts_with("HTTP/1.0 404"), "{head}");
    let (head, _) = agent.get("/metrics");
    assert!(head.contains("application/openmetrics-text"), "{head}");
    let taken = agent.address.clone();
    for (options, status) in [
        (vec!["--listen", &taken], 1),
        (vec!["--listen", "9850"], 2),
        (vec!["--every", "10ms"], 2),
        (vec!["--rate", "0"], 2),
        (vec!["--pyroscope", "pyroscope:4040"], 2),
        (vec!["--otlp", "collector:4318"], 2),
        (vec!["--ring", "/proc/none"], 1),
    ] {
        let mut command = Command::new(TORCHSPY);
        command.args(["agent", "--duration", "1ms"]).args(&options);
        if options[0] != "--listen" {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{options:?} {said}");
        assert!(said.contains("hint: "), "{options:?} {said}");
    }
    agent.end();
}

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/agent");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// The options are those of the command.
fn is_taken(words: &[&str]) {
    let mut command = Command::new(TORCHSPY);
    // Asked for the help, it refuses options that it does not know, and does nothing.
    let output = command.args(words).arg("--help").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
}

#[test]
fn the_unit_and_the_daemon_set_run_the_agent() {
    let unit = example("torchspy-agent.service");
    let mut section = "";
    let mut keys = BTreeSet::new();
    for line in unit
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(name) = line.strip_prefix('[') {
            section = name.strip_suffix(']').unwrap();
            continue;
        }
        let (key, value) = line.split_once('=').unwrap();
        keys.insert(format!("{section}.{key}"));
        if key == "ExecStart" {
            let words: Vec<&str> = value.split(' ').skip(1).collect();
            is_taken(&words);
        }
    }
    for key in [
        "Service.ExecStart",
        "Install.WantedBy",
        "Service.CapabilityBoundingSet",
    ] {
        assert!(keys.contains(key), "{keys:?}");
    }
    let text = example("daemonset.yaml");
    let documents = YamlLoader::load_from_str(&text).unwrap();
    let [set] = &documents[..] else {
        panic!("{} documents", documents.len());
    };
    let at = |yaml: &Yaml, path: &str| {
        path.split('.')
            .fold(yaml.clone(), |at, key| at[key].clone())
    };
    assert_eq!(at(set, "kind").as_str(), Some("DaemonSet"));
    assert_eq!(
        at(set, "spec.selector.matchLabels"),
        at(set, "spec.template.metadata.labels")
    );
    let pod = at(set, "spec.template.spec");
    assert_eq!(pod["hostPID"].as_bool(), Some(true));
    let container = &pod["containers"][0];
    let words: Vec<&str> = container["command"]
        .as_vec()
        .unwrap()
        .iter()
        .filter_map(Yaml::as_str)
        .collect();
    is_taken(&words[1..]);
    let added = at(container, "securityContext.capabilities.add");
    assert!(
        added
            .as_vec()
            .unwrap()
            .contains(&Yaml::String("SYS_PTRACE".to_owned()))
    );
    let volumes = pod["volumes"].as_vec().unwrap();
    for mount in container["volumeMounts"].as_vec().unwrap() {
        assert!(
            volumes.iter().any(|volume| volume["name"] == mount["name"]),
            "{mount:?}"
        );
    }
}
