//! `torchspy agent`: samples the trainers of this machine, and serves figures.

use crate::cli::agent::metrics::Metrics;
use crate::cli::agent::otlp::OTLP;
use crate::cli::agent::push::Push;
use crate::cli::agent::pyroscope::PYROSCOPE;
use crate::cli::agent::ring::Ring;
use crate::cli::agent::server::serve;
use crate::cli::agent::watched::Watched;
use crate::cli::agent_plan::AgentPlan;
use crate::cli::failure::Failure;
use crate::cli::trainers::running;
use crate::cli::{hints, messages};
use crate::gpu::collector;
use crate::model::dump::JobKey;
use crate::os::allocator::give_back_free_memory;
use crate::os::clock::{own_cpu_ns, wall_ns};
use crate::os::host::host_name;
use crate::os::process_info::read_stat;
use crate::os::signals::{self, Signals};
use nix::sys::signal::Signal;
use rustc_hash::FxHashMap;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often segments are taken, and the end of the server is polled.
const POLL: Duration = Duration::from_millis(500);
/// The share of a CPU that the search for trainers may take, and the shortest and longest time
/// between two searches.
const SEARCH_SHARE: f64 = 0.0005;
const SEARCH: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
/// How often files that are old are searched for.
const TIDY: Duration = Duration::from_secs(10);
/// How often free memory is given back: buffers that come and go leave gaps, by a megabyte in ten
/// minutes.
const TRIM: Duration = Duration::from_secs(60);
/// When a process that could not be sampled is tried again.
const AGAIN: Duration = Duration::from_secs(60);

pub(crate) fn run(plan: AgentPlan) -> Result<ExitCode, Failure> {
    // First of all, so that every thread made later has them blocked.
    let mut signals = Signals::install().map_err(Failure::new)?;
    collector::check(&plan.options.gpu).map_err(hints::gpu_failure)?;
    let host = host_name();
    let ring = plan
        .ring
        .as_ref()
        .map(|ring| Ring::open(&ring.folder, &host, ring.length, ring.most_bytes));
    let ring = ring.transpose()?;
    let listener = TcpListener::bind(plan.listen).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("cannot listen on {}", plan.listen));
        Failure::new(error)
            .hint("another agent may run: --listen takes another address, and port 0 a free port")
    })?;
    let address = listener.local_addr().map_err(Failure::new)?;
    let metrics = Metrics::new(host, plan.most_trainers, wall_ns());
    let metrics = Arc::new(Mutex::new(metrics));
    signals.listen().map_err(Failure::new)?;
    let served = Arc::clone(&metrics);
    let server = std::thread::Builder::new()
        .name("torchspy-serve".to_owned())
        .spawn(move || serve(listener, served))
        .map_err(Failure::new)?;
    let receivers = [(PYROSCOPE, &plan.pyroscope), (OTLP, &plan.otlp)];
    let pushes = receivers.into_iter().filter_map(|(receiver, url)| {
        let url = url.as_ref()?;
        Some(Push::start(receiver, url, plan.rules.set, &metrics))
    });
    let agent = Agent {
        pushes: pushes.collect::<Result<_, _>>()?,
        plan,
        signals,
        metrics,
        ring,
        watched: Vec::new(),
        refused: FxHashMap::default(),
        own_cpu_ns: 0,
        tidy: Instant::now(),
        trim: Instant::now() + TRIM,
    };
    messages::data(|out| writeln!(out, "http://{address}/metrics"))?;
    agent.run(server)
}

struct Agent {
    plan: AgentPlan,
    signals: Signals,
    metrics: Arc<Mutex<Metrics>>,
    ring: Option<Ring>,
    pushes: Vec<Push>,
    watched: Vec<Watched>,
    /// Processes that could not be sampled, with what names them besides the pid, and when.
    refused: FxHashMap<i32, (u64, Instant)>,
    /// CPU time of torchspy that was counted.
    own_cpu_ns: u64,
    /// When the ring is tidied next.
    tidy: Instant,
    /// When free memory is given back next.
    trim: Instant,
}

impl Agent {
    fn run(mut self, server: JoinHandle<std::io::Result<()>>) -> Result<ExitCode, Failure> {
        let begun = Instant::now();
        let mut search = begun;
        while !server.is_finished() {
            if self.is_told_to_end()
                || self
                    .plan
                    .duration
                    .is_some_and(|most| begun.elapsed() >= most)
            {
                self.end();
                return Ok(ExitCode::SUCCESS);
            }
            self.take();
            if Instant::now() >= search {
                let cpu_ns = self.search();
                let pause = Duration::from_nanos(cpu_ns).div_f64(SEARCH_SHARE);
                search = Instant::now() + pause.clamp(SEARCH.0, SEARCH.1);
            }
            signals::wait_readable(&self.signals, None, POLL);
        }
        self.end();
        match server.join() {
            Ok(Err(error)) => Err(Failure::new(error)),
            _ => Err(Failure::message("the server has ended")),
        }
    }

    fn is_told_to_end(&mut self) -> bool {
        while let Some(received) = self.signals.next() {
            match received.signal {
                Signal::SIGTSTP => self.stop_self(),
                Signal::SIGUSR1 | Signal::SIGUSR2 => {}
                _ => return true,
            }
        }
        false
    }

    /// Stops until it is continued, while no thread of a trainer is stopped.
    fn stop_self(&self) {
        let is_released = self.watched.iter().all(Watched::pause);
        match is_released {
            // If stopping fails it goes on.
            true => drop(self.signals.stop_self()),
            false => messages::warning(messages::NOT_STOPPED),
        }
        self.watched.iter().for_each(Watched::resume);
    }

    /// Takes what was sampled, and ends what is over.
    fn take(&mut self) {
        let (metrics, pushes) = (&self.metrics, &self.pushes);
        let all = self.watched.iter();
        let all: Vec<(i32, Option<JobKey>, bool)> = all
            .map(|watched| (watched.pid, watched.job().cloned(), watched.hangs()))
            .collect();
        for watched in &mut self.watched {
            let job = watched.job();
            let is_of_job = |other: &&(i32, Option<JobKey>, bool)| {
                let both = job.zip(other.1.as_ref());
                other.0 == watched.pid || both.is_some_and(|(own, other)| own.agrees(other))
            };
            let pids: Vec<i32> = all.iter().filter(is_of_job).map(|other| other.0).collect();
            let hangs = all.iter().find(is_of_job).is_some_and(|first| first.2);
            watched.take(metrics, pushes, &pids, hangs);
            if let Some(ring) = &self.ring {
                watched.turn(ring);
            }
        }
        let ended: Vec<Watched> = self
            .watched
            .extract_if(.., |watched| watched.has_ended())
            .collect();
        for watched in ended {
            messages::note(&format!("process {} has ended", watched.pid));
            watched.end(metrics, pushes);
        }
        if let Some(ring) = &self.ring
            && Instant::now() >= self.tidy
        {
            ring.tidy(self.watched.iter().filter_map(Watched::file));
            self.tidy = Instant::now() + TIDY;
        }
        if Instant::now() >= self.trim {
            give_back_free_memory();
            self.trim = Instant::now() + TRIM;
        }
        let cpu_ns = own_cpu_ns();
        let mut metrics = metrics.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.add_overhead("cpu", cpu_ns.saturating_sub(self.own_cpu_ns));
        metrics.set_trainers(self.watched.len());
        metrics.forget(Instant::now(), self.plan.keep);
        self.own_cpu_ns = cpu_ns;
    }

    /// Begins to sample trainers that are new; returns the CPU time of the search, ns.
    fn search(&mut self) -> u64 {
        let before_ns = own_cpu_ns();
        let found = running(self.plan.job.as_deref());
        let cpu_ns = own_cpu_ns().saturating_sub(before_ns);
        let now = Instant::now();
        self.refused
            .retain(|pid, (_, at)| found.contains(pid) && now < *at + AGAIN);
        for pid in found {
            let is_watched = self.watched.iter().any(|watched| watched.pid == pid);
            if is_watched || self.watched.len() >= self.plan.most_trainers {
                continue;
            }
            let start_ticks = read_stat(pid).map_or(0, |stat| stat.start_ticks);
            let refused = self.refused.get(&pid);
            if refused.is_some_and(|(known, _)| *known == start_ticks) {
                continue;
            }
            match Watched::start(&self.plan, self.ring.as_ref(), pid) {
                Ok(watched) => self.watched.push(watched),
                Err(failure) => {
                    messages::failed(&failure);
                    self.refused.insert(pid, (start_ticks, now));
                }
            }
        }
        cpu_ns
    }

    fn end(&mut self) {
        for watched in self.watched.drain(..) {
            watched.end(&self.metrics, &self.pushes);
        }
    }
}
