//! A trainer, or a launcher with its ranks, that the agent samples.

use super::metrics::Metrics;
use super::push::{self, Interval, Push};
use super::ring::{Ring, RingFile};
use super::standstill::Standstill;
use crate::cli::agent_plan::AgentPlan;
use crate::cli::commands::live_sink::LiveSink;
use crate::cli::dump_plan::LookPlan;
use crate::cli::failure::Failure;
use crate::cli::outputs::resolve_recording;
use crate::cli::plan::Target;
use crate::cli::ras::{RasSink, answered};
use crate::cli::watch_plan::WatchPlan;
use crate::cli::{hints, messages, target};
use crate::live::follow::Follower;
use crate::model::dump::JobKey;
use crate::model::segment::Segment;
use crate::os::clock::clock_pair;
use crate::report::dump::ras::sentence;
use crate::report::naming::utc;
use crate::sampling::session::{SegmentSink, Session, SessionOptions};
use crate::torch::job::{JobPlace, job_key};
use crossbeam_channel::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Steps whose median time a hang lasts for at least, as of `torchspy watch`.
const TIMES: f64 = 20.0;

pub(crate) struct Watched {
    pub(crate) pid: i32,
    /// Until it ends.
    session: Option<Session>,
    sink: LiveSink,
    segments: Receiver<Segment>,
    follower: Follower,
    place: JobPlace,
    /// What tells its job from others: by its ranks, once one is known.
    job: Option<JobKey>,
    file: Option<RingFile>,
    /// The ring cannot be written to: said once.
    is_file_lost: bool,
    standstill: Standstill,
    /// What its job is called in series, once it has any.
    label: Option<String>,
    /// Segments of the profile that is sent next.
    unsent: Vec<Segment>,
    /// What NCCL answered last, as it was printed.
    nccl: Option<String>,
}

impl Watched {
    /// Begins to sample a process and what descends from it.
    ///
    /// # Errors
    /// It has ended, or may not be sampled.
    pub(crate) fn start(plan: &AgentPlan, ring: Option<&Ring>, pid: i32) -> Result<Self, Failure> {
        let info = target::attachable(pid, plan.options.redaction)?;
        let place = JobPlace::of(&info.environment, &info.command);
        let job = job_key(&info.environment);
        let run = target::run_info(
            &plan.options,
            &Target::Attach(pid),
            &plan.regions,
            pid,
            info.command,
        );
        let (sink, segments) = LiveSink::new();
        let options = SessionOptions::clone(&plan.options);
        let to: Box<dyn SegmentSink> = match plan.ras {
            true => Box::new(RasSink::of_ring(sink.clone())),
            false => Box::new(sink.clone()),
        };
        let session = Session::start(pid, options, to).map_err(hints::session_failure)?;
        let dump = ring.map(|ring| {
            let name = format!("hang-{pid}-{}", utc(run.started_wall_ns));
            ring.folder().join(name)
        });
        let standstill = Standstill::new(WatchPlan {
            look: LookPlan {
                memory: false,
                pids: vec![pid],
                tree: true,
                locals: false,
                native: true,
                nonblocking: true,
                ras: plan.ras,
                redaction: plan.options.redaction,
                rules: plan.rules.clone(),
            },
            job: None,
            machines: None,
            every: plan.options.segment,
            after: plan.hang_after,
            times: TIMES,
            duration: None,
            once: false,
            output: dump,
            on_hang: None,
        });
        let named = match (&place.job, place.rank) {
            (Some(job), Some(rank)) => format!("job {job}, rank {rank}"),
            (Some(job), None) => format!("job {job}"),
            (None, Some(rank)) => format!("rank {rank}"),
            (None, None) => "no job or rank in its environment".to_owned(),
        };
        messages::note(&format!("sampling process {pid}: {named}"));
        Ok(Self {
            pid,
            session: Some(session),
            sink,
            segments,
            follower: Follower::new(run, resolve_recording, plan.rules.set),
            place,
            job,
            file: None,
            is_file_lost: false,
            standstill,
            label: None,
            unsent: Vec::new(),
            nccl: None,
        })
    }

    /// What tells its job from others, if that is known.
    pub(crate) fn job(&self) -> Option<&JobKey> {
        self.job.as_ref()
    }

    /// Whether its job hangs, as far as was found out.
    pub(crate) fn hangs(&self) -> bool {
        self.standstill.hangs()
    }

    /// Takes the segments that have come. `job` has the pids of its job's sessions, of which the
    /// first finds out whether the job hangs: `hangs` is what it found.
    pub(crate) fn take(
        &mut self,
        metrics: &Mutex<Metrics>,
        pushes: &[Push],
        job: &[i32],
        mut hangs: bool,
    ) {
        while let Ok(segment) = self.segments.try_recv() {
            let stopped_ns = segment.sideband.quality.stops.total_ns();
            let (end_ns, is_last) = (segment.end_ns, segment.last);
            if let Some(said) = answered(&segment).and_then(|kept| sentence(&kept))
                && self.nccl.as_ref() != Some(&said)
            {
                messages::note(&format!("process {}: {said}", self.pid));
                self.nccl = Some(said);
            }
            if !pushes.is_empty() {
                self.unsent.push(segment.clone());
                self.send(pushes, segment.last);
            }
            let now = Instant::now();
            let ranks = self.follower.add(segment);
            // Those of a launcher say more than it does, and are started again with another
            // address.
            let living = ranks.iter().filter(|rank| !rank.info.exited);
            let mut jobs = living.filter_map(|rank| job_key(&rank.info.environment));
            if let Some(job) = jobs.next() {
                self.job = Some(job);
            }
            if is_last {
                hangs = false;
            } else if job.first() == Some(&self.pid) {
                self.standstill.take(&ranks, end_ns, now, job);
                hangs = self.standstill.hangs();
            }
            let mut metrics = metrics.lock().unwrap_or_else(PoisonError::into_inner);
            metrics.add_overhead("stopped", stopped_ns);
            for rank in &ranks {
                self.label = metrics.add(rank, hangs, is_last, now);
            }
        }
    }

    /// Sends a profile if its time is over.
    fn send(&mut self, pushes: &[Push], is_last: bool) {
        let (Some(first), Some(last)) = (self.unsent.first(), self.unsent.last()) else {
            return;
        };
        let length = Duration::from_nanos(last.end_ns.saturating_sub(first.start_ns));
        // Segments end a little late.
        if length.mul_f64(1.05) < push::EVERY && !is_last {
            return;
        }
        let mut run = self.follower.run().clone();
        let clocks = clock_pair();
        (run.started_ns, run.started_wall_ns) = (clocks.monotonic_ns, clocks.wall_ns);
        let interval = Arc::new(Interval {
            run,
            segments: std::mem::take(&mut self.unsent),
            job: self.label.clone().or_else(|| self.place.job.clone()),
        });
        for push in pushes {
            push.send(Arc::clone(&interval));
        }
    }

    /// Ends the file of the ring when its time is over, and begins the next.
    pub(crate) fn turn(&mut self, ring: &Ring) {
        let rank = self.place.rank;
        let turned = ring.turn(&self.sink, self.follower.run(), rank, &mut self.file);
        match turned {
            Err(failure) if !self.is_file_lost => {
                self.is_file_lost = true;
                messages::failed(&failure);
            }
            _ => {}
        }
    }

    /// The file that is written now.
    pub(crate) fn file(&self) -> Option<&RingFile> {
        self.file.as_ref()
    }

    /// Whether the processes have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(Session::finished)
    }

    /// Resumes every thread and stops sampling; whether it was done in time.
    pub(crate) fn pause(&self) -> bool {
        self.session.as_ref().is_none_or(Session::pause)
    }

    /// Continues after a pause.
    pub(crate) fn resume(&self) {
        if let Some(session) = &self.session {
            session.resume();
        }
    }

    /// Ends sampling, and takes what was sampled last.
    pub(crate) fn end(mut self, metrics: &Mutex<Metrics>, pushes: &[Push]) {
        if let Some(session) = self.session.take() {
            let ended = session.stop().map(|end| end.error);
            if let Ok(Some(error)) = ended {
                messages::warning(&format!("process {}: {error}", self.pid));
            }
        }
        self.take(metrics, pushes, &[], false);
        if let Err(error) = self.sink.end_recording()
            && !self.is_file_lost
        {
            messages::failed(&hints::writing_failure(error));
        }
    }
}
