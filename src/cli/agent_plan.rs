//! The validated plan of `torchspy agent`.

use super::args::AgentArguments;
use super::failure::Failure;
use super::option_values::{
    parse_duration_of, parse_gpu, parse_max_stopped, parse_rate, redaction,
};
use super::plan::engine;
use super::regions;
use super::rules::Rules;
use crate::model::region::Region;
use crate::sampling::session::{IdleThreads, SEGMENT, SessionOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct AgentPlan {
    /// Where series are served.
    pub(crate) listen: SocketAddr,
    /// How each trainer is sampled. A segment is as long as the time between two figures.
    pub(crate) options: SessionOptions,
    pub(crate) job: Option<String>,
    pub(crate) most_trainers: usize,
    /// How long the series of a rank stay after its end.
    pub(crate) keep: Duration,
    pub(crate) hang_after: Duration,
    /// NCCL is asked when nothing moves for long.
    pub(crate) ras: bool,
    pub(crate) ring: Option<RingPlan>,
    /// Addresses of http or https.
    pub(crate) pyroscope: Option<String>,
    pub(crate) otlp: Option<String>,
    /// `None`: no end.
    pub(crate) duration: Option<Duration>,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
}

/// Recordings of the last minutes.
#[derive(Debug)]
pub(crate) struct RingPlan {
    pub(crate) folder: PathBuf,
    pub(crate) length: Duration,
    pub(crate) most_bytes: u64,
}

impl AgentPlan {
    pub(super) fn new(arguments: AgentArguments) -> Result<Self, Failure> {
        let listen = arguments.listen.parse().map_err(|_| {
            Failure::usage(
                format!("--listen {} is no address and port", arguments.listen),
                "127.0.0.1:9850 for this machine alone, 0.0.0.0:9850 for all, [::]:9850 with IPv6",
            )
        })?;
        let every = parse_duration_of("--every", &arguments.every)?;
        if every < SEGMENT {
            return Err(Failure::usage(
                format!("--every {} is too often", arguments.every),
                "1s at least: what is renewed costs CPU time",
            ));
        }
        check_url(
            "--pyroscope",
            arguments.pyroscope.as_deref(),
            "pyroscope:4040",
        )?;
        check_url("--otlp", arguments.otlp.as_deref(), "collector:4318")?;
        let rules = Rules::read(arguments.attribution.rules.as_deref())?;
        let duration = arguments.duration.as_deref();
        Ok(Self {
            listen,
            options: SessionOptions {
                rate_hz: parse_rate(arguments.rate)?,
                native: true,
                nonblocking: arguments.nonblocking,
                engine: engine(arguments.engine)?,
                gil_only: false,
                threads: None,
                ranks: None,
                subprocesses: true,
                stop_any_child: false,
                max_stopped: parse_max_stopped(&arguments.max_stopped)?,
                once: false,
                leave_out: i32::try_from(std::process::id()).into_iter().collect(),
                more_roots: Vec::new(),
                redaction: redaction(arguments.no_redact),
                rules: rules.set,
                gpu: parse_gpu(arguments.gpu.as_deref(), arguments.nvml_lib)?,
                segment: every,
                idle_threads: IdleThreads::Loose,
            },
            job: arguments.job,
            most_trainers: arguments.max_trainers.into(),
            keep: parse_duration_of("--keep", &arguments.keep)?,
            hang_after: parse_duration_of("--hang-after", &arguments.hang_after)?,
            ras: !arguments.no_ras,
            ring: arguments.ring.map(|folder| RingPlan {
                folder,
                length: Duration::from_secs(60 * arguments.ring_minutes),
                most_bytes: arguments.ring_mb.saturating_mul(1_000_000),
            }),
            pyroscope: arguments.pyroscope,
            otlp: arguments.otlp,
            duration: duration
                .map(|text| parse_duration_of("--duration", text))
                .transpose()?,
            regions: regions::parse(&arguments.attribution.region)?,
            rules,
        })
    }
}

fn check_url(option: &str, url: Option<&str>, server: &str) -> Result<(), Failure> {
    let is_url = |url: &str| url.starts_with("http://") || url.starts_with("https://");
    match url {
        Some(url) if !is_url(url) => Err(Failure::usage(
            format!("{option} {url} is no address of http or https"),
            format!("the address of the server: http://{server}"),
        )),
        _ => Ok(()),
    }
}
