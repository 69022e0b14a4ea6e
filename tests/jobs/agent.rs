//! `torchspy agent` on a real trainer, scraped by a real Prometheus: its figures are those that the
//! trainer counted itself.

use crate::STEADY;
use crate::faults::receiver;
use crate::faults::{PATIENCE, TORCHSPY, Target, get, program, start_agent, wait_until};
use crate::installed::prometheus;
use crate::installed::torch_python;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use regex::Regex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// An agent for one job, killed when this is dropped.
pub(crate) struct Agent {
    child: Child,
    address: String,
    started: Instant,
}

impl Agent {
    pub(crate) fn start(job: &str, options: &[&str]) -> Self {
        Self::start_with(job, options, &[])
    }

    fn start_with(job: &str, options: &[&str], variables: &[(&str, &str)]) -> Self {
        let started = Instant::now();
        let (child, address) = start_agent(job, options, |command| {
            command.envs(variables.iter().copied());
        });
        Self {
            child,
            address,
            started,
        }
    }

    /// What a scrape gives: values by name and labels.
    fn scrape(&self) -> Scrape {
        let body = get(&self.address, "/metrics").1;
        assert!(body.ends_with("# EOF\n"), "{body}");
        let lines = body.lines().filter(|line| !line.starts_with('#'));
        Scrape(
            lines
                .map(|line| {
                    let (series, value) = line.rsplit_once(' ').unwrap();
                    (series.to_owned(), value.parse().unwrap())
                })
                .collect(),
        )
    }

    /// Scrapes until a figure is as it should be.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Scrape) -> bool) -> Scrape {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let scrape = self.scrape();
            if is_so(&scrape) {
                return scrape;
            }
            assert!(Instant::now() < deadline, "{what}: {:#?}", scrape.0);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Time since it was started, s.
    pub(crate) fn age_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// A scrape that has all that happened before now: the training thread has been sampled since
    /// some time after the agent's start, and without a gap.
    fn up_to_now(&self) -> Scrape {
        let now = self.age_s();
        self.until("figures do not come", |scrape| {
            scrape.sum("torchspy_phase_seconds_total") > now
        })
    }

    pub(crate) fn end(mut self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    fn named<'s>(&'s self, name: &'s str) -> impl Iterator<Item = (&'s String, f64)> {
        let of_name = |series: &str| series.split('{').next() == Some(name);
        let all = self.0.iter().map(|(series, &value)| (series, value));
        all.filter(move |(series, _)| of_name(series))
    }

    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.named(name).map(|(_, value)| value).sum()
    }

    pub(crate) fn with(&self, name: &str, label: &str) -> f64 {
        let all = self.named(name);
        all.filter(|(series, _)| series.contains(label))
            .map(|(_, value)| value)
            .sum()
    }
}

/// A trainer of a job of its own, which trains when it is told to.
pub(crate) fn trainer(job: &str) -> Option<Target> {
    let python = torch_python()?;
    let mut command = Command::new(python);
    command
        .arg(program("many_threads.py"))
        .args([
            "--sleepers",
            "4",
            "--light",
            "1",
            "--omp",
            "1",
            "--steps",
            "60",
        ])
        .env("TORCHELASTIC_RUN_ID", job)
        .env("RANK", "3");
    let mut target = Target::spawn(&mut command);
    target.expect("ready");
    Some(target)
}

/// Trains; the steps and the seconds that the trainer counted.
pub(crate) fn train(target: &mut Target) -> (f64, f64) {
    target.tell("for 5");
    let counted: Value = serde_json::from_str(&target.line()).unwrap();
    (
        counted["steps"].as_f64().unwrap(),
        counted["wall_s"].as_f64().unwrap(),
    )
}

/// A Prometheus that scrapes an agent, killed when this is dropped.
struct Prometheus {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(agent: &Agent) -> Option<Self> {
        let program = prometheus()?;
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: torchspy\n    honor_labels: true\n    \
             static_configs: [{{targets: [\"{}\"]}}]\n",
            agent.address
        );
        std::fs::write(&config, text).unwrap();
        // It cannot be told to take a free port: one that was free a moment ago is tried.
        for _ in 0..20 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
            let address = address.unwrap().to_string();
            let mut child = Command::new(&program)
                .arg(format!("--config.file={}", config.display()))
                .arg(format!(
                    "--storage.tsdb.path={}",
                    folder.path().join("data").display()
                ))
                .arg(format!("--web.listen-address={address}"))
                .arg("--log.level=error")
                .spawn()
                .unwrap();
            let deadline = Instant::now() + PATIENCE;
            while child.try_wait().unwrap().is_none() {
                if TcpStream::connect(&address).is_ok() {
                    return Some(Self {
                        child,
                        address,
                        _folder: folder,
                    });
                }
                assert!(Instant::now() < deadline, "Prometheus does not answer");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        panic!("Prometheus found no free port");
    }

    /// The only value that a query gives; `None` while there is none.
    fn query(&self, query: &str) -> Option<f64> {
        let encoded: String = query
            .bytes()
            .map(|byte| match byte.is_ascii_alphanumeric() || byte == b'_' {
                true => char::from(byte).to_string(),
                false => format!("%{byte:02X}"),
            })
            .collect();
        let body = get(&self.address, &format!("/api/v1/query?query={encoded}")).1;
        let answer: Value = serde_json::from_str(&body).ok()?;
        let value = answer["data"]["result"][0]["value"][1].as_str()?;
        value.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn figures_are_those_of_the_trainer_also_in_prometheus() {
    let job = format!("agent-figures-{}", std::process::id());
    let Some(mut target) = trainer(&job) else {
        return;
    };
    let agent = Agent::start(&job, &STEADY);
    let prometheus = Prometheus::start(&agent);
    agent.until("no trainer was found", |scrape| {
        scrape.sum("torchspy_phase_seconds_total") > 0.0
    });
    // Counters of progress are found while it trains.
    let counts = |scrape: &Scrape| scrape.sum("torchspy_steps_total") > 0.0;
    let deadline = Instant::now() + PATIENCE;
    let mut before = agent.up_to_now();
    while !counts(&before) {
        assert!(Instant::now() < deadline, "{:#?}", before.0);
        train(&mut target);
        before = agent.up_to_now();
    }
    // What was sampled last may end so long before the training begins: a sample in it, if it is
    // late, stands for that time, too.
    let before_s = agent.age_s() - before.sum("torchspy_phase_seconds_total");
    let (steps, wall_s) = train(&mut target);
    let after = agent.up_to_now();
    let rise = |of: &dyn Fn(&Scrape) -> f64| of(&after) - of(&before);
    assert_eq!(rise(&|scrape| scrape.sum("torchspy_steps_total")), steps);
    let trained = rise(&|scrape| {
        scrape.sum("torchspy_phase_seconds_total")
            - scrape.with("torchspy_phase_seconds_total", "phase=\"user\"")
    });
    // The rest is its own code's, which waits for batches; a sample stands for its whole period.
    let within = (wall_s * 0.2, before_s + wall_s + 0.1);
    assert!(
        within.0 < trained && trained < within.1,
        "{trained} of {wall_s} s: {:#?}",
        after.0
    );
    let labels = format!("job=\"{job}\",rank=\"3\"");
    assert!(
        after
            .named("torchspy_steps_total")
            .all(|(series, _)| series.contains(&labels))
    );
    // What is not measured here is not there.
    for absent in [
        "torchspy_energy_joules_total",
        "torchspy_gpu_idle_seconds_total",
    ] {
        assert_eq!(after.named(absent).count(), 0, "{absent}");
    }
    assert_eq!(after.sum("torchspy_hang"), 0.0);
    let cost = |kind: &str| after.with("torchspy_overhead_seconds_total", kind);
    assert!(cost("cpu") > 0.0 && cost("stopped") > 0.0);
    if let Some(prometheus) = prometheus {
        // A scrape that takes too long says of all series that they have ended: an instant's query
        // finds nothing then.
        let last =
            |series: &str| format!("last_over_time({series}{{job=\"{job}\", rank=\"3\"}}[1h])");
        let deadline = Instant::now() + PATIENCE;
        // Steps stand still by now; seconds go on, and rise with each reading of the agent's.
        let (steps, seconds) = ("torchspy_steps_total", "torchspy_phase_seconds_total");
        let reached = |series: &str| {
            let total = prometheus.query(&format!("sum({})", last(series)));
            total.is_some_and(|total| total >= after.sum(series))
        };
        while !(reached(steps) && reached(seconds)) {
            assert!(Instant::now() < deadline, "{:#?}", after.0);
            std::thread::sleep(Duration::from_millis(100));
        }
        let value = |series: &str| prometheus.query(&last(series));
        let total = after.sum(steps);
        assert_eq!(value(steps), Some(total));
        // The start of the first step was not seen.
        let lengths = value("torchspy_step_seconds_count");
        assert!(lengths.is_some_and(|count| count < total && count > total * 0.5));
    }
    agent.end();
    // Another agent begins anew, and says so.
    let again = Agent::start(&job, &[]);
    let seconds = |scrape: &Scrape| scrape.sum("torchspy_phase_seconds_total");
    let first = again.until("no trainer was found", |scrape| seconds(scrape) > 0.0);
    assert!(seconds(&first) <= again.age_s());
    let started = |scrape: &Scrape| scrape.sum("torchspy_start_time_seconds");
    assert!(started(&first) > started(&after));
    again.end();
}

#[test]
fn series_of_a_trainer_that_ended_are_dropped() {
    let job = format!("agent-ends-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let ring = folder.path().to_str().unwrap();
    let agent = Agent::start(
        &job,
        // Nothing gets so old that it is removed.
        &["--keep", "1s", "--ring", ring, "--ring-minutes", "60"],
    );
    agent.until("it does not look for trainers", |scrape| {
        scrape.sum("torchspy_overhead_seconds_total") > 0.0
    });
    // One that starts later is found as well.
    let Some(target) = trainer(&job) else {
        return;
    };
    let sampled = |scrape: &Scrape| scrape.sum("torchspy_phase_seconds_total") > 0.0;
    let seconds = |scrape: &Scrape| scrape.sum("torchspy_phase_seconds_total");
    agent.until("no trainer was found", sampled);
    // What is sampled before the file is there is not in it.
    let files = || {
        let hosts = std::fs::read_dir(folder.path()).unwrap();
        let files = hosts.flat_map(|host| std::fs::read_dir(host.unwrap().path()).unwrap());
        files.map(|file| file.unwrap().path()).min()
    };
    wait_until("there is a recording", || files().is_some());
    let then = seconds(&agent.scrape());
    agent.until("it is not sampled", |scrape| seconds(scrape) > then + 5.0);
    drop(target);
    let left = agent.until("series stay", |scrape| !sampled(scrape));
    for name in left.0.keys() {
        assert!(!name.contains("job="), "{name}");
    }
    agent.until("it is sampled", |scrape| {
        scrape.sum("torchspy_trainers") == 0.0
    });
    agent.end();
    // What was recorded is a recording like any other, complete.
    let report = Command::new(TORCHSPY)
        .arg("report")
        .arg(files().unwrap())
        .arg("--json")
        .output();
    let report: Value = serde_json::from_slice(&report.unwrap().stdout).unwrap();
    assert_eq!(report["quality"]["asked_hz"], 19.0, "{report:#}");
}

/// Names of series in a text; of histograms those that a page gives.
fn names(text: &str) -> BTreeSet<String> {
    let name = Regex::new(r"torchspy_[a-z_]+").unwrap();
    let found = name.find_iter(text).map(|found| found.as_str());
    let parts = ["_bucket", "_sum", "_count"];
    found
        .map(|name| {
            let base = parts.iter().find_map(|part| name.strip_suffix(part));
            base.unwrap_or(name).to_owned()
        })
        .collect()
}

/// By the double of NVML: busy for three tenths of the time with 300 W, else idle with 100 W. All
/// series are there then, and only those are named by the dashboard and the page of the book.
#[test]
fn energy_and_idle_time_are_those_of_the_ranks_gpu() {
    let job = format!("agent-gpu-{}", std::process::id());
    let Some(mut target) = trainer(&job) else {
        return;
    };
    let (url, _profiles) = receiver("");
    let own = std::env::current_exe().unwrap();
    let library = own.parent().unwrap().join("libnvml_double.so");
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("scenario.json");
    let gpu = json!({
        "uuid": "GPU-22222222-bbbb", "power_idle_mw": 100_000, "power_busy_mw": 300_000,
        "activity": {"square": {"period_ms": 500, "busy_ms": 150}},
        "processes": [{"pid": target.pid(), "memory": 1 << 30}],
    });
    std::fs::write(&scenario, json!({"gpus": [gpu]}).to_string()).unwrap();
    let agent = Agent::start_with(
        &job,
        &[
            &STEADY[..],
            &["--nvml-lib", library.to_str().unwrap(), "--pyroscope", &url],
        ]
        .concat(),
        &[("TORCHSPY_NVML_SCENARIO", scenario.to_str().unwrap())],
    );
    let idle = |scrape: &Scrape| scrape.sum("torchspy_gpu_idle_seconds_total");
    let scrape = agent.until("no idle time", |scrape| idle(scrape) > 12.0);
    let watts = scrape.sum("torchspy_energy_joules_total") / (idle(&scrape) / 0.7);
    // Of the first second there may be no energy, or no idle time.
    assert!((130.0..190.0).contains(&watts), "{watts}: {:#?}", scrape.0);
    let labels = "gpu=\"0\",UUID=\"GPU-22222222-bbbb\"";
    for name in ["torchspy_gpu_info", "torchspy_energy_joules_total"] {
        let mut all = scrape.named(name);
        assert!(all.all(|(series, _)| series.contains(labels)), "{name}");
    }
    let deadline = Instant::now() + PATIENCE;
    while agent.scrape().sum("torchspy_steps_total") == 0.0 {
        assert!(Instant::now() < deadline, "no steps are counted");
        train(&mut target);
    }
    let scrape = agent.until("no profile is sent", |scrape| {
        scrape.sum("torchspy_pushes_total") > 0.0
    });
    agent.end();
    let series: Vec<&str> = scrape.0.keys().map(String::as_str).collect();
    let known = names(&series.join(" "));
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let board = std::fs::read_to_string(docs.join("agent/dashboard.json")).unwrap();
    let panels: Value = serde_json::from_str(&board).unwrap();
    assert!(
        panels["panels"]
            .as_array()
            .is_some_and(|all| all.len() > 10)
    );
    let page = std::fs::read_to_string(docs.join("src/agent.md")).unwrap();
    let used = names(&board);
    // tests/cuda has the others.
    let of_allocators = [
        "torchspy_allocator_bytes",
        "torchspy_allocator_refusals_total",
    ];
    let known = known
        .into_iter()
        .chain(of_allocators.map(str::to_owned))
        .collect();
    assert!(used.is_subset(&known), "{used:?} of {known:?}");
    assert_eq!(names(&page), known);
}
