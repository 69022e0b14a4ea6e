//! Answers for a job, of reductions that are made here from simulated polls of simulated ranks.

use crate::analysis_builder::*;
use torchspy::analysis::job::by_group::{ByGroup, by_group};
use torchspy::analysis::job::clocks::Alignment;
use torchspy::analysis::job::mesh::Mesh;
use torchspy::analysis::job::parallel::Parallel;
use torchspy::analysis::job::ranks::Rank;
use torchspy::analysis::job::reduce::reduce;
use torchspy::analysis::job::{Folded, Job};
use torchspy::model::category::{Activity, Phase, SummaryRow};
use torchspy::model::ids::ThreadId;
use torchspy::model::nccl_ras::{KeptRas, Member, RasFact, RasFinding, RasSummary};
use torchspy::model::parallel::{GroupSource, text_of};
use torchspy::model::reduction::{Bin, Place, ReducedRank, ReducedRow, Reduction, Still, SyncEnd};
use torchspy::model::sample::Sample;
use torchspy::model::wait::WaitKind;
use torchspy::report::csv;
use torchspy::report::json::job::job_report;
use torchspy::report::table::Sheet;
use torchspy::report::tables::job::{RANKS, all_ranks, ranks, straggler};
use torchspy::report::text::job::render_job;
use torchspy::resolve::{Samples, resolve, resolve_with};

const TICK_S: f64 = 0.01;
/// Time that a collective takes once all have arrived.
const TRANSFER_S: f64 = 0.001;

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A job that is simulated. Every rank has a recording of its own.
pub(crate) struct Simulated {
    pub(crate) ranks: u32,
    pub(crate) ranks_per_host: u32,
    pub(crate) steps: u64,
    /// The rank that takes so much longer in each step, from a step on.
    pub(crate) slow: Option<(u32, f64, u64)>,
    /// It does up to that step.
    pub(crate) slow_until: u64,
    /// Another rank that takes so much longer in each step, up to a step.
    pub(crate) before: Option<(u32, f64, u64)>,
    /// How much the work of ranks varies, s.
    pub(crate) varies_s: f64,
    /// How far wall clocks of hosts are ahead, s, and their drift.
    pub(crate) clocks: Vec<(f64, f64)>,
    /// What numbers of steps begin with, by host, if they do not count from the start.
    pub(crate) shifts: Option<Vec<u64>>,
    /// If it is known when ranks woke: how much later every other rank of the second host does, s.
    pub(crate) wakes_later_s: Option<f64>,
    pub(crate) seed: u64,
}

impl Default for Simulated {
    fn default() -> Self {
        Self {
            ranks: 8,
            ranks_per_host: 4,
            steps: 600,
            slow: Some((5, 0.02, 0)),
            slow_until: u64::MAX,
            before: None,
            varies_s: 0.004,
            clocks: vec![(0.0, 0.0), (0.030, 2e-5)],
            shifts: None,
            wakes_later_s: None,
            seed: 1,
        }
    }
}

/// A rank's time in a step: begin, arrival, end of the collective; s.
type StepTimes = (f64, f64, f64);

impl Simulated {
    fn times(&self) -> Vec<Vec<StepTimes>> {
        let mut random = Random(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut of_rank = vec![Vec::new(); self.ranks as usize];
        let mut begin = 1.0;
        for step in 0..self.steps {
            // What all do alike, and what each varies by itself.
            let common = 0.03 + self.varies_s * random.next();
            let own: Vec<f64> = (0..self.ranks)
                .map(|rank| {
                    let is_slow = |from: u64| (from..self.slow_until).contains(&step);
                    let slow = self.slow.filter(|slow| slow.0 == rank && is_slow(slow.2));
                    let before = self.before.filter(|it| it.0 == rank && step < it.2);
                    let more = slow.or(before).map_or(0.0, |slow| slow.1);
                    common + self.varies_s * random.next() + more
                })
                .collect();
            let end = begin + own.iter().copied().fold(0.0, f64::max) + TRANSFER_S;
            for (times, own) in of_rank.iter_mut().zip(own) {
                times.push((begin, begin + own, end));
            }
            begin = end;
        }
        of_rank
    }

    pub(crate) fn reductions(&self) -> Vec<Reduction> {
        let mut random = Random(self.seed.wrapping_mul(77) | 1);
        let times = self.times();
        let ranks = times.iter().enumerate();
        ranks
            .map(|(rank, times)| self.reduction(rank as u32, times, &mut random))
            .collect()
    }

    fn reduction(&self, rank: u32, times: &[StepTimes], random: &mut Random) -> Reduction {
        let host = rank / self.ranks_per_host;
        let (ahead_s, drift) = self.clocks[host as usize % self.clocks.len()];
        let booted_s = 1000.0 + 500.0 * f64::from(host);
        let clock = |at: f64| ((booted_s + at * (1.0 + drift)) * 1e9) as u64;
        let first = match &self.shifts {
            Some(shifts) => shifts[host as usize],
            None => 1,
        };
        let phase = TICK_S * random.next();
        let mut sync_ends = Vec::new();
        let (mut bins, mut rows) = (Vec::new(), Vec::new());
        let shift = 3;
        for (at, &(begin, arrives, end)) in times.iter().enumerate() {
            let step = first + at as u64;
            let number = |at: f64| ((at - phase) / TICK_S).floor();
            let polls: Vec<f64> = (number(arrives) as i64..=number(end) as i64)
                .filter(|&stratum| {
                    let poll = phase + (stratum as f64 + random.next()) * TICK_S;
                    (arrives..end).contains(&poll)
                })
                .map(|stratum| phase + stratum as f64 * TICK_S)
                .collect();
            let woke = self.wakes_later_s.map(|later_s| {
                let is_later = host == 1 && rank.is_multiple_of(2);
                let later_s = if is_later { later_s } else { 1e-4 };
                clock(end + later_s * 2.0 * random.next())
            });
            if let (Some(start), Some(last)) = (polls.first(), polls.last()) {
                sync_ends.push(SyncEnd {
                    step,
                    start_ns: clock(*start),
                    end_ns: clock(last + TICK_S),
                    ticks: polls.len() as u32,
                    woke_ns: woke,
                });
            }
            match bins
                .last_mut()
                .filter(|bin: &&mut Bin| bin.index == step >> shift)
            {
                Some(bin) => (bin.end_ns, bin.steps) = (clock(end), bin.steps + 1),
                None => bins.push(Bin {
                    index: step >> shift,
                    steps: 1,
                    start_ns: clock(begin),
                    end_ns: clock(end),
                    gap_ns: 0,
                }),
            }
            let slow = self
                .slow
                .filter(|slow| slow.0 == rank && at as u64 >= slow.2);
            let more = slow.map_or(0.0, |slow| slow.1);
            let row = ReducedRow {
                rank: 0,
                bin: Some(bins.len() as u16 - 1),
                phase: Phase::Forward,
                row: SummaryRow::HostComputation,
                activity: Activity::AtenCompute,
                wait: None,
                wait_label: None,
                place: Some(0),
                ns: ((arrives - begin - more) * 1e9) as u64,
            };
            rows.push(row);
            rows.push(ReducedRow {
                phase: Phase::User,
                place: Some(1),
                ns: (more * 1e9) as u64,
                ..row
            });
            rows.push(ReducedRow {
                row: SummaryRow::Communication,
                activity: Activity::CollectiveWait,
                wait: Some(WaitKind::Collective),
                wait_label: Some(0),
                ns: ((end - arrives) * 1e9) as u64,
                ..row
            });
        }
        let wall_s = times.last().unwrap().2 - 1.0;
        let place = |function: &str, line| Place {
            function: function.to_owned(),
            file: "train.py".to_owned(),
            line,
        };
        Reduction {
            torchspy: "0.1.0".to_owned(),
            host: format!("node{host}"),
            command: vec!["python".to_owned(), "train.py".to_owned()],
            started_ns: clock(0.0),
            started_wall_ns: ((1.8e9 + ahead_s) * 1e9) as u64,
            length_ns: (wall_s * 1e9) as u64,
            rate_hz: 1.0 / TICK_S,
            places: vec![place("forward", 10), place("read", 20)],
            waits: vec!["all_reduce".to_owned()],
            ranks: vec![ReducedRank {
                pid: 100 + rank as i32,
                rank: Some(rank),
                world_size: Some(self.ranks),
                local_rank: Some(rank % self.ranks_per_host),
                job: vec!["node0".to_owned()],
                counts_from_start: self.shifts.is_none(),
                steps: self.steps,
                shift,
                bins,
                sync_every: 1,
                sync_ends,
                wall_ns: (wall_s * 1e9) as u64,
                ticks: (wall_s / TICK_S) as u64,
                start_ns: clock(1.0),
                ..ReducedRank::default()
            }],
            rows,
            ..Reduction::default()
        }
    }

    pub(crate) fn job(&self) -> Job {
        answers(self.reductions(), None)
    }
}

pub(crate) fn answers(reductions: Vec<Reduction>, mesh: Option<&Mesh>) -> Job {
    let mut folded = Folded::default();
    for (at, reduction) in reductions.into_iter().enumerate() {
        folded.add(format!("{at:03}.tspy"), reduction);
    }
    folded.finish(mesh)
}

fn late_ranks(job: &Job) -> Vec<u32> {
    let found = job.stragglers();
    found
        .map(|(_, each)| job.ranks[each.rank].facts.rank.unwrap())
        .collect()
}

/// How far a host's clock is from the truth at the start and the end of the run, in ms, and the
/// stated error.
fn clock_error_ms(job: &Job, host: usize, simulated: &Simulated) -> (f64, f64) {
    let (ahead_s, drift) = simulated.clocks[host];
    let clock = &job.clocks[host];
    let Alignment::Ends { error_s, .. } = clock.alignment else {
        panic!("{clock:?}");
    };
    let booted_s = 1000.0 + 500.0 * host as f64;
    let end_s = job.ranks[0].seconds();
    let errors = [1.0, 1.0 + end_s].map(|at| {
        let monotonic = booted_s + at * (1.0 + drift);
        let wall_by_reference = clock.reference_ns((monotonic * 1e9) as u64) as f64 / 1e9;
        (wall_by_reference - (1.8e9 + at)).abs() * 1e3
    });
    assert!(ahead_s != 0.0 || drift != 0.0);
    (errors[0].max(errors[1]), error_s * 1e3)
}

#[test]
fn a_planted_straggler_is_named_with_its_line_in_every_run() {
    for seed in 1..=20 {
        let job = Simulated {
            seed,
            ..Simulated::default()
        }
        .job();
        assert_eq!(late_ranks(&job), [5], "{}", render_job(&job, false));
        let (_, found) = job.stragglers().next().unwrap();
        let (doing, share) = found.doing[0];
        let place = job.names.place(&doing).unwrap();
        assert_eq!((place.function.as_str(), place.line), ("read", 20));
        assert!((found.per_step_s - 0.02).abs() < 0.003, "{found:?}");
        assert!((share - found.less.value).abs() < 0.05, "{found:?}");
        assert_eq!(found.changes, [], "{found:?}");
        let compared = &job.groups[0].1;
        let (step, ideal) = (compared.step_s.unwrap(), compared.ideal_step_s.unwrap());
        assert!((step - ideal - 0.02).abs() < 0.003, "{step} {ideal}");
    }
}

#[test]
fn without_a_straggler_none_is_named_in_any_run() {
    for seed in 1..=20 {
        let job = Simulated {
            seed,
            slow: None,
            ..Simulated::default()
        }
        .job();
        assert_eq!(late_ranks(&job), [0; 0], "{}", render_job(&job, false));
    }
}

/// What wakes them waits for a CPU: the others of their host tell when the collective ended.
#[test]
fn ranks_that_wake_late_do_not_move_the_clock_of_their_host() {
    for seed in 1..=10 {
        let simulated = Simulated {
            seed,
            wakes_later_s: Some(0.006),
            ..Simulated::default()
        };
        let (error_ms, stated_ms) = clock_error_ms(&simulated.job(), 1, &simulated);
        assert!(error_ms < 0.5, "{error_ms} ms");
        assert!(error_ms < stated_ms, "{error_ms} ms of {stated_ms}");
    }
}

#[test]
fn the_step_since_which_a_rank_is_slow_is_found() {
    let job = Simulated {
        slow: Some((3, 0.02, 424)),
        ..Simulated::default()
    }
    .job();
    assert_eq!(late_ranks(&job), [3]);
    let (_, found) = job.stragglers().next().unwrap();
    let since = *found.changes.first().expect("a change");
    let bins = &job.ranks[found.rank].facts.bins;
    let step = |at: usize| bins[at].index << job.shift;
    assert!(since.began);
    assert!(since.chance <= 0.01);
    assert!(step(since.change.low) <= 425 && 425 <= step(since.change.high) + 8);
    assert!((found.per_step_s - 0.02).abs() < 0.003, "{found:?}");
    insta::assert_snapshot!(render_job(&job, false));
}

/// With NCCL, the idle time of its device shows that the others wait for it: utilization is of all
/// steps.
#[test]
fn with_nccl_a_rank_that_is_slow_for_a_part_is_named_by_its_devices_idle_time() {
    let simulated = Simulated {
        slow: Some((3, 0.02, 424)),
        ..Simulated::default()
    };
    let job = simulated.job();
    let (_, found) = job.stragglers().next().unwrap();
    let idles = found.less.value * found.slow_part;
    let with_nccl = |others: Option<f64>, own: f64| {
        let mut reductions = simulated.reductions();
        for (at, reduction) in reductions.iter_mut().enumerate() {
            let rank = &mut reduction.ranks[0];
            rank.nccl = true;
            rank.utilization = if at == 3 { Some(own) } else { others };
        }
        answers(reductions, None)
    };
    let job = with_nccl(Some(0.9), 0.9 - idles);
    assert_eq!(late_ranks(&job), [3]);
    // It hardly waits, and it is not known how busy their devices are.
    assert_eq!(late_ranks(&with_nccl(None, 0.9)), [3]);
    // Its device is as busy as theirs.
    {
        let job = with_nccl(Some(0.9), 0.9);
        assert_eq!(late_ranks(&job), [0; 0]);
        assert_eq!(job.groups[0].1.hidden, 1);
        let text = render_job(&job, false);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            text.contains("1 rank waits less than the others, but it is not seen"),
            "{text}"
        );
        assert!(!text.contains("about as long as the others"), "{text}");
        assert!(text.contains("nor how much they overlap"), "{text}");
        let json = job_report(&job);
        assert_eq!(json.overlap, Some("not_visible"));
        assert!(json.ranks.iter().all(|rank| rank.synchronizing.is_none()));
    }
    assert_eq!(job_report(&simulated.job()).overlap, None);
}

/// The slow rank is the last one of every step: what it waits is the transfer.
#[test]
fn waits_for_ranks_that_arrive_later_are_divided_from_the_transfer() {
    let job = Simulated::default().job();
    let rows = ranks(&job);
    for row in &rows {
        let (waits, transfer) = (row.synchronizing.unwrap(), row.transferring.unwrap());
        let step_s = row.step_ms.unwrap() / 1e3;
        assert!((transfer - TRANSFER_S / step_s).abs() < 1e-3, "{row:?}");
        assert!((waits + transfer - row.communication_wait).abs() < 1e-9);
        let is_last = row.rank == Some(5);
        assert_eq!(row.last_in, Some(if is_last { 1.0 } else { 0.0 }));
        assert!(is_last || waits > 0.3, "{row:?}");
    }
    let text = render_job(&job, false);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("or more for ranks that arrive later"),
        "{text}"
    );

    let mut alone = Simulated::default().reductions();
    alone.truncate(1);
    let alone = ranks(&answers(alone, None));
    assert_eq!((alone[0].synchronizing, alone[0].last_in), (None, None));
}

/// Now one rank is the last and now another: it is a lower bound, and the transfer an upper one.
#[test]
fn waits_for_later_ranks_are_never_more_than_they_were() {
    for seed in 1..=10 {
        let simulated = Simulated {
            seed,
            slow: None,
            ..Simulated::default()
        };
        for (row, times) in ranks(&simulated.job()).iter().zip(simulated.times()) {
            let all_s: f64 = times.iter().map(|(begin, _, end)| end - begin).sum();
            let waits = times
                .iter()
                .map(|(_, arrives, end)| end - TRANSFER_S - arrives);
            let waits = waits.sum::<f64>() / all_s;
            assert!(
                row.synchronizing.unwrap() <= waits + 1e-4,
                "{row:?} {waits}"
            );
            let transfers = TRANSFER_S * times.len() as f64 / all_s;
            assert!(row.transferring.unwrap() >= transfers - 1e-4, "{row:?}");
        }
    }
}

/// In each bin some rank was sampled in its waits less often than the others, by chance.
#[test]
fn the_chance_of_samples_is_no_wait_for_others() {
    let mut reductions = Simulated {
        slow: None,
        ..Simulated::default()
    }
    .reductions();
    let mut random = Random(7);
    let rows = reductions.iter_mut().flat_map(|each| &mut each.rows);
    for row in rows.filter(|row| row.wait.is_some()) {
        row.ns = if random.next() < 0.25 { 20_000_000 } else { 0 };
    }
    let job = answers(reductions, None);
    let all = all_ranks(&job, &ranks(&job)).unwrap();
    // The least of each bin would be hardly anything.
    assert!(
        all.transferring.unwrap() > all.synchronizing.unwrap(),
        "{all:?}"
    );
    assert!(all.synchronizing.unwrap() < 0.05, "{all:?}");
}

#[test]
fn all_ranks_have_a_row() {
    let mut reductions = Simulated::default().reductions();
    let devices = [("GPU-1", 5.0), ("GPU-1", 5.0), ("GPU-2", 7.0)];
    for (reduction, (device, energy_j)) in reductions.iter_mut().zip(devices) {
        let rank = &mut reduction.ranks[0];
        (rank.device, rank.energy_j) = (Some(device.to_owned()), Some(energy_j));
    }
    reductions[0].ranks[0].utilization = Some(0.5);
    reductions[1].ranks[0].utilization = Some(0.7);
    let job = answers(reductions, None);
    let json = job_report(&job);
    let all = json.all_ranks.unwrap();
    let waits = json.ranks.iter().map(|rank| rank.communication_wait);
    let mean = waits.sum::<f64>() / 8.0;
    assert!((all.communication_wait - mean).abs() < 1e-9, "{all:?}");
    assert_eq!((all.ranks, all.steps, all.energy_j), (8, 600, Some(12.0)));
    assert!((all.gpu_utilization.unwrap() - 0.6).abs() < 1e-9, "{all:?}");
    let text = render_job(&job, false);
    assert!(text.contains("\n   all "), "{text}");
    let mut rows = ranks(&job);
    rows.extend(all_ranks(&job, &rows));
    let table = csv::render(&Sheet::new(RANKS, &rows));
    assert_eq!(table.lines().count(), 10, "{table}");
    assert!(
        table.lines().last().unwrap().starts_with("all,,,,600,"),
        "{table}"
    );
}

#[test]
fn a_rank_that_is_slow_for_a_part_has_a_start_and_an_end() {
    let job = Simulated {
        slow: Some((3, 0.02, 200)),
        slow_until: 400,
        ..Simulated::default()
    }
    .job();
    assert_eq!(late_ranks(&job), [3]);
    let (_, found) = job.stragglers().next().unwrap();
    let bins = &job.ranks[found.rank].facts.bins;
    let step = |at: usize| (bins[at].index << job.shift) as i64;
    let [since, until] = &found.changes[..] else {
        panic!("{found:?}");
    };
    assert!(since.began && !until.began);
    assert!((step(since.change.at) - 200).abs() <= 16, "{since:?}");
    assert!((step(until.change.at) - 400).abs() <= 16, "{until:?}");
    assert!((found.per_step_s - 0.02).abs() < 0.003, "{found:?}");
    // It costs 20 ms in each third step.
    let (_, group) = &job.groups[0];
    let costs_s = group.step_s.unwrap() - group.ideal_step_s.unwrap();
    assert!((costs_s - 0.02 / 3.0).abs() < 0.001, "{costs_s}");
    let text = render_job(&job, false);
    assert!(text.contains("over the whole run a step takes"), "{text}");
}

#[test]
fn of_two_ranks_the_one_that_costs_most_is_named() {
    let job = Simulated {
        ranks: 2,
        slow: Some((1, 0.02, 200)),
        before: Some((0, 0.008, 200)),
        ..Simulated::default()
    }
    .job();
    assert_eq!(late_ranks(&job), [1]);
    assert_eq!(job.groups[0].1.unsure, []);
}

#[test]
fn numbers_of_steps_are_as_uncertain_as_their_counts() {
    let simulated = Simulated {
        slow: Some((3, 0.02, 424)),
        ..Simulated::default()
    };
    let mut reductions = simulated.reductions();
    let interval = |reductions: Vec<Reduction>| {
        let job = answers(reductions, None);
        let (_, found) = job.stragglers().next().unwrap();
        let change = &straggler(&job, found).unwrap().changes[0];
        (change.step_low, change.step_high)
    };
    let exact = interval(reductions.clone());
    assert!(exact.0 < exact.1, "within two bins");
    reductions[6].ranks[0].uncounted = 21;
    assert_eq!(interval(reductions), (exact.0, exact.1 + 21));
}

#[test]
fn a_rank_that_is_late_without_a_cpu_is_late_for_that() {
    let mut reductions = Simulated::default().reductions();
    assert!(!render_job(&answers(reductions.clone(), None), false).contains("without a CPU"));
    let rows = reductions.iter_mut().flat_map(|each| &mut each.rows);
    for row in rows.filter(|row| row.phase == Phase::User) {
        row.row = SummaryRow::CpuWait;
    }
    let text = render_job(&answers(reductions, None), false);
    assert!(text.contains("runnable and without a CPU for 20"), "{text}");
}

#[test]
fn a_run_that_ends_without_steps_says_so() {
    let mut reductions = Simulated::default().reductions();
    let running = answers(reductions.clone(), None);
    assert!(!render_job(&running, false).contains("no step ended"));
    assert!(job_report(&running).standstill.is_none());
    for (at, each) in reductions.iter_mut().enumerate() {
        each.ranks[0].wall_ns += 100_000_000_000;
        let (line, wait) = if at == 3 {
            (69, "lock")
        } else {
            (128, "collective")
        };
        each.ranks[0].still = Some(Still {
            place: Some(Place {
                line,
                file: "/home/u/train.py".to_owned(),
                ..Place::default()
            }),
            wait: Some(wait.to_owned()),
        });
    }
    let ranks = reductions.len();
    // What one rank was told is the job's.
    let member = Member {
        rank: 3,
        host: "10.0.0.1".to_owned(),
        pid: reductions[3].ranks[0].pid,
        is_here: false,
    };
    let finding = RasFinding {
        hash: "0x1".to_owned(),
        size: ranks as u32,
        what: RasFact::Missing {
            member,
            unresponsive: true,
            dead: false,
        },
    };
    let error = |why: &str| RasSummary {
        error: Some(why.to_owned()),
        ..RasSummary::default()
    };
    let answer = RasSummary {
        findings: vec![finding],
        ..RasSummary::default()
    };
    for (at, answer) in [error("another recorder asks"), answer]
        .into_iter()
        .enumerate()
    {
        reductions[at].ranks[0].nccl_ras = Some(KeptRas {
            time_ns: 1,
            answers: vec![answer],
        });
    }
    let job = answers(reductions, None);
    let json = job_report(&job);
    let still = json.standstill.unwrap();
    assert!((still.seconds - 100.0).abs() < 0.1, "{still:?}");
    assert_eq!(still.ranks.len(), ranks);
    assert_eq!(still.ranks[3].rank, Some(3));
    assert_eq!(still.ranks[3].line, Some(69));
    assert_eq!(still.ranks[3].wait.as_deref(), Some("lock"));
    let ras = json.nccl_ras.unwrap();
    assert_eq!(ras.rank, Some(1), "it has an answer");
    assert_eq!(ras.kept.answers[0].findings.len(), 1);
    let text = render_job(&job, false);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("rank 3 is missing, it does not respond"),
        "{text}"
    );
    assert!(
        words.contains("on 10.0.0.1: at train.py:69 (lock)"),
        "{text}"
    );
    assert!(!words.contains("another recorder"), "{text}");
    assert!(text.contains("no step ended in the last 100.0 s"), "{text}");
    assert!(
        text.contains("rank 3 was at train.py:69 (lock) then"),
        "{text}"
    );
    let most = format!(
        "{} of {ranks} ranks were at train.py:128 (collective) then",
        ranks - 1
    );
    assert!(text.contains(&most), "{text}");
}

/// What begins a run and ends it is no change of a rank's speed.
#[test]
fn a_slow_rank_whose_first_and_last_steps_differ_is_slow_all_the_time() {
    let job = Simulated {
        slow: Some((3, 0.02, 30)),
        slow_until: 575,
        ..Simulated::default()
    }
    .job();
    let (_, found) = job.stragglers().next().unwrap();
    assert_eq!(found.changes, [], "{found:?}");
}

/// Its steps are counted by an eighth too few, so that it is not compared.
#[test]
fn a_late_rank_whose_steps_differ_is_no_all_clear() {
    let mut all = Simulated {
        slow: Some((3, 0.02, 0)),
        ..Simulated::default()
    }
    .reductions();
    for bin in &mut all[3].ranks[0].bins {
        bin.steps -= bin.steps / 8;
    }
    let job = answers(all, None);
    let text = render_job(&job, false);
    assert_eq!(late_ranks(&job), [0; 0], "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("perhaps rank 3: it waits for"), "{text}");
    assert!(words.contains("its steps have another length"), "{text}");
    assert!(!words.contains("about as long as the others"), "{text}");
}

/// Samples of threads of communication and of other processes are left out.
#[test]
fn a_reduction_is_the_same_of_fewer_samples() {
    let mut builder = Builder::trainer();
    builder.environment(0, &[("RANK", "0"), ("WORLD_SIZE", "2")]);
    let engine = builder.thread(0, 101, "pt_autograd_0", false);
    let gloo = builder.thread(0, 102, "pt_gloo_runloop", false);
    let worker = builder.process(200, 100, &["python", "train.py"]);
    let worker = builder.thread(worker, 200, "pt_data_worker", true);
    let backward = user("main", 30);
    let call = torch("torch::autograd::Engine::execute(std::vector<torch::autograd::Edge>&)");
    let node = torch("torch::autograd::Engine::evaluate_function(std::shared_ptr<Node>&)");
    let add = torch("at::native::add(at::Tensor const&)");
    let read = lib("/site/torch/utils/data/_utils/worker.py", "_worker_loop");
    for _ in 0..20 {
        builder.ticks(0, 3, S::Running, &[user("main", 20), add.clone()]);
        builder.ticks(
            0,
            4,
            S::Futex,
            &[backward.clone(), call.clone(), libc("poll")],
        );
        builder.ticks(engine, 3, S::Futex, &[libc("poll")]);
        builder.ticks(engine, 4, S::Running, &[node.clone(), add.clone()]);
        builder.ticks(
            gloo,
            7,
            S::Running,
            &[native("libtorch_cpu.so", "gloo::loop()")],
        );
        builder.ticks(worker, 7, S::Running, &[read.clone(), user("load", 5)]);
    }
    let mut recording = builder.recording(140 * TICK_NS);
    let order = |sample: &Sample| (sample.thread, sample.start_ns);
    recording.samples.sort_by_key(order);
    // A training thread may have any name.
    for name in ["python", "pt_gloo_main"] {
        let main = recording.tables.threads.get_mut(&ThreadId(0)).unwrap();
        main.name = name.to_owned();
        let all = resolve(&recording, names());
        let few = resolve_with(&recording, names(), Samples::OfRanks);
        assert_eq!(reduce(&few), reduce(&all));
        let has = |thread: usize| {
            let id = ThreadId::from_index(thread);
            few.samples.iter().any(|sample| sample.thread == id)
        };
        assert_eq!(
            [0, engine, gloo, worker].map(has),
            [true, true, false, false]
        );
        assert!(reduce(&few).rows.len() >= 2);
    }
}

/// The first steps are slow on all ranks, and of one of them they were not seen.
#[test]
fn a_rank_whose_first_steps_were_not_seen_is_compared() {
    const UNSEEN_STEPS: u64 = 80;
    let simulated = Simulated {
        slow: Some((5, 0.02, UNSEEN_STEPS)),
        before: Some((3, 0.06, UNSEEN_STEPS)),
        ..Simulated::default()
    };
    let mut all = simulated.reductions();
    let late = &mut all[5];
    let rank = &mut late.ranks[0];
    let is_unseen = |bin: &Bin| bin.index < UNSEEN_STEPS >> rank.shift;
    let unseen = rank.bins.iter().filter(|bin| is_unseen(bin)).count();
    rank.bins.drain(..unseen);
    rank.steps -= UNSEEN_STEPS;
    rank.sync_ends.retain(|end| end.step >= UNSEEN_STEPS);
    for row in &mut late.rows {
        row.bin = row.bin.and_then(|bin| bin.checked_sub(unseen as u16));
    }
    late.rows.retain(|row| row.bin.is_some());
    let job = answers(all, None);
    let compared = &job.groups[0].1;
    assert_eq!((compared.compared, &compared.out_of_step[..]), (8, &[][..]));
    assert!(late_ranks(&job).contains(&5), "{}", render_job(&job, false));
}

#[test]
fn ranks_that_were_recorded_at_another_time_are_left_out() {
    let mut all = Simulated {
        slow: None,
        ..Simulated::default()
    }
    .reductions();
    all[1].started_wall_ns -= 3_600_000_000_000;
    // A little later is the same time.
    all[2].started_wall_ns += all[2].length_ns / 4;
    let job = answers(all, None);
    let ranks: Vec<Option<u32>> = job.ranks.iter().map(|rank| rank.facts.rank).collect();
    assert!(!ranks.contains(&Some(1)) && ranks.contains(&Some(2)));
    let why = &job.left_out[0].why;
    assert!(
        why.contains("rank 1") && why.contains("another time"),
        "{why}"
    );
    assert_eq!(job.missing_ranks, [1]);
}

#[test]
fn clocks_are_aligned_by_the_ends_of_collectives() {
    for seed in 1..=10 {
        let simulated = Simulated {
            seed,
            slow: Some((1, 0.03, 0)),
            clocks: vec![(0.0, 0.0), (0.030, 2e-5), (-0.007, -3e-5)],
            ranks: 12,
            ..Simulated::default()
        };
        let job = simulated.job();
        for host in 1..3 {
            let (error_ms, stated_ms) = clock_error_ms(&job, host, &simulated);
            assert!(error_ms < 1.0, "seed {seed} host {host}: {error_ms} ms");
            // A 95 % interval, and each seed has two of them.
            assert!(error_ms < 2.0 * stated_ms, "{error_ms} of {stated_ms}");
        }
    }
}

/// The rank that arrives last is in a collective for a tenth of a tick.
#[test]
fn the_clock_of_a_host_whose_only_rank_arrives_last_is_aligned() {
    for seed in 1..=5 {
        let simulated = Simulated {
            seed,
            ranks: 2,
            ranks_per_host: 1,
            steps: 2000,
            slow: Some((1, 0.04, 0)),
            ..Simulated::default()
        };
        let job = simulated.job();
        let (error_ms, _) = clock_error_ms(&job, 1, &simulated);
        assert!(
            error_ms < 1.0,
            "seed {seed}: {error_ms} ms {:?}",
            job.clocks
        );
    }
}

/// Of recordings that begin in the middle of a run it is not known which steps are the same: their
/// lengths show it, if they vary.
#[test]
fn steps_that_are_counted_from_anywhere_are_matched_by_their_lengths() {
    let mut simulated = Simulated {
        varies_s: 0.02,
        shifts: Some(vec![1, 138]),
        ..Simulated::default()
    };
    let job = simulated.job();
    let (error_ms, _) = clock_error_ms(&job, 1, &simulated);
    assert!(error_ms < 1.0, "{error_ms} ms");
    simulated.varies_s = 0.0;
    let job = simulated.job();
    let alignment = &job.clocks[1].alignment;
    assert!(
        matches!(alignment, Alignment::WallClock(_)),
        "{alignment:?}"
    );
}

/// Steps that are all equally long, in recordings that begin anywhere.
#[test]
fn steps_are_matched_by_what_counts_them_on_all_ranks() {
    let simulated = Simulated {
        varies_s: 0.0,
        shifts: Some(vec![1, 138]),
        ..Simulated::default()
    };
    let counted = |names: [&str; 2]| {
        let mut reductions = simulated.reductions();
        for (at, reduction) in reductions.iter_mut().enumerate() {
            let host = at / simulated.ranks_per_host as usize;
            let first = simulated.shifts.as_ref().unwrap()[host] as i64;
            // The first step of the recording is the job's 1,000th.
            reduction.ranks[0].counted = Some((names[host].to_owned(), 1000 - first));
        }
        answers(reductions, None)
    };
    let job = counted(["state of AdamW", "state of AdamW"]);
    let (error_ms, _) = clock_error_ms(&job, 1, &simulated);
    assert!(error_ms < 1.0, "{error_ms} ms");
    let job = counted(["state of AdamW", "state of Muon"]);
    let alignment = &job.clocks[1].alignment;
    assert!(
        matches!(alignment, Alignment::WallClock(_)),
        "{alignment:?}"
    );
}

/// With NCCL: it has still to launch what follows, and waits for that, too.
#[test]
fn a_rank_that_arrives_last_and_waits_later_does_not_move_its_hosts_clock() {
    let simulated = Simulated::default();
    let mut reductions = simulated.reductions();
    let late = &mut reductions[simulated.ranks_per_host as usize].ranks[0];
    for end in &mut late.sync_ends {
        end.end_ns += (1.5 * TICK_S * 1e9) as u64;
    }
    let mut number = 0;
    late.sync_ends.retain(|_| {
        number += 1;
        number % 3 == 0
    });
    let job = answers(reductions, None);
    let (error_ms, _) = clock_error_ms(&job, 1, &simulated);
    assert!(error_ms < 1.0, "{error_ms} ms");
}

/// A step of one rank was counted twice.
#[test]
fn steps_of_a_rank_that_are_numbered_too_high_from_the_middle_on_are_matched_by_time() {
    let simulated = Simulated::default();
    let mut reductions = simulated.reductions();
    let one = &mut reductions[simulated.ranks_per_host as usize].ranks[0];
    for end in &mut one.sync_ends {
        end.step += u64::from(end.step > simulated.steps / 2);
    }
    // It is not the rank by whose numbers the host counts: that has the most.
    one.sync_ends.truncate(simulated.steps as usize * 9 / 10);
    let job = answers(reductions, None);
    let (error_ms, stated_ms) = clock_error_ms(&job, 1, &simulated);
    assert!(
        error_ms < 1.0 && stated_ms < 5.0,
        "{error_ms} ms, {stated_ms}"
    );
}

#[test]
fn what_is_no_part_of_the_answer_is_named() {
    let simulated = Simulated::default();
    let mut reductions = simulated.reductions();
    let mut again = reductions[2].clone();
    again.started_wall_ns -= 3_600_000_000_000;
    let mut other = reductions[3].clone();
    other.ranks[0].job = vec!["another".to_owned()];
    reductions.remove(7);
    reductions.extend([again, other, Reduction::default()]);
    let job = answers(reductions, None);
    let ranks: Vec<u32> = job
        .ranks
        .iter()
        .filter_map(|rank| rank.facts.rank)
        .collect();
    assert_eq!(ranks, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(job.missing_ranks, [7]);
    assert_eq!(job.other_jobs.len(), 1);
    assert_eq!(job.other_jobs[0].files, ["008.tspy"]);
    let text = render_job(&job, false);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "recordings of 2 jobs are in this folder",
        "left out: another (1 rank: 008.tspy). To choose another, name a folder",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let left_out: Vec<String> = job
        .left_out
        .iter()
        .map(|each| format!("{}: {}", each.file, each.why))
        .collect();
    assert_eq!(
        left_out,
        [
            "007.tspy: rank 2 (pid 102) is left out: there is a later or longer recording of the same rank",
            "008.tspy: rank 3 (pid 103) is left out: it is of another job",
            "009.tspy: no trainer was sampled in it",
        ]
    );
}

/// Two agents, or one and `record`. A process without a rank counts once, too.
#[test]
fn of_recordings_of_a_process_at_the_same_time_the_longest_counts() {
    let simulated = Simulated::default();
    let mut reductions = simulated.reductions();
    // It began last, and is short.
    let mut short = reductions[2].clone();
    short.ranks[0].start_ns += short.length_ns / 2;
    short.ranks[0].wall_ns = short.length_ns / 10;
    short.started_wall_ns += short.length_ns / 2;
    short.started_ns += short.length_ns / 2;
    // Its recorder asked NCCL, and the other one did not.
    let asked = |time_ns, error: Option<&str>| {
        let answers = vec![RasSummary {
            error: error.map(str::to_owned),
            ..RasSummary::default()
        }];
        Some(KeptRas { time_ns, answers })
    };
    short.ranks[0].nccl_ras = asked(u64::MAX, None);
    reductions[2].ranks[0].nccl_ras = asked(0, Some("another recorder asks"));
    // As long but for a little, with more samples.
    let mut dense = reductions[3].clone();
    dense.ranks[0].wall_ns -= dense.ranks[0].wall_ns / 20;
    dense.ranks[0].ticks *= 2;
    // A step has ended since.
    reductions[3].ranks[0].nccl_ras = asked(0, None);
    let mut unnamed = reductions.pop().unwrap();
    unnamed.ranks[0].rank = None;
    let mut later = unnamed.clone();
    later.ranks[0].ticks -= 1;
    reductions.extend([unnamed, short, dense, later]);
    let job = answers(reductions, None);
    let pids: Vec<i32> = job.ranks.iter().map(|rank| rank.facts.pid).collect();
    assert_eq!(pids, [100, 101, 102, 103, 104, 105, 106, 107]);
    let answer = |at: usize| job.ranks[at].facts.nccl_ras.clone();
    assert_eq!((answer(2), answer(3)), (asked(u64::MAX, None), None));
    let left_out = job.left_out.iter();
    let left_out: Vec<String> = left_out
        .map(|each| format!("{}: {}", each.file, each.why))
        .collect();
    let why = |name: &str, file: &str| {
        format!("{name} is left out: {file} has more of the same process at the same time")
    };
    assert_eq!(
        left_out,
        [
            format!("003.tspy: {}", why("rank 3 (pid 103)", "009.tspy")),
            format!("008.tspy: {}", why("rank 2 (pid 102)", "002.tspy")),
            format!("010.tspy: {}", why("pid 107", "007.tspy")),
        ]
    );
}

/// Of jobs with as many ranks the last one is reported.
#[test]
fn of_equal_jobs_the_last_is_reported() {
    let mut reductions = Simulated::default().reductions();
    let mut again = reductions.clone();
    for each in &mut again {
        each.started_wall_ns += 3_600_000_000_000;
        each.ranks[0].job = vec!["a".to_owned()];
    }
    reductions.splice(0..0, again);
    assert_eq!(answers(reductions.clone(), None).job, ["a"]);
    for each in &mut reductions[8..] {
        each.started_wall_ns += 7_200_000_000_000;
    }
    let job = answers(reductions, None);
    assert_ne!(job.job, ["a"]);
    assert_eq!(job.other_jobs[0].job, ["a"]);
    assert_eq!(job.other_jobs[0].ranks, 8);
}

/// Stages of a pipeline do different work: they wait differently without anybody being late.
#[test]
fn stages_of_a_pipeline_are_compared_with_themselves() {
    let simulated = Simulated {
        slow: None,
        ..Simulated::default()
    };
    // Ranks 4 to 7 work half as long, and wait for the rest.
    let reductions = with_less_work(simulated.reductions(), |rank| rank >= 4);
    let mesh = Mesh::parse("pp=2,dp=4").unwrap();
    let job = answers(reductions, Some(&mesh));
    let names: Vec<&str> = job
        .groups
        .iter()
        .map(|(group, _)| group.name.as_str())
        .collect();
    assert_eq!(names, ["pp=0", "pp=1"]);
    assert_eq!(late_ranks(&job), [0; 0]);
}

/// Ranks with the groups that each of them holds.
fn with_groups(mut all: Vec<Reduction>, mesh: &Mesh) -> Vec<Reduction> {
    for (rank, reduction) in (0..).zip(&mut all) {
        let groups = text_of(&mesh.groups_of(rank).unwrap());
        reduction.ranks[0].groups = Some((GroupSource::DeviceMesh, groups));
    }
    all
}

#[test]
fn ranks_are_compared_in_the_groups_that_they_hold() {
    let simulated = Simulated::default();
    let mesh = Mesh::parse("pp=2,dp=2,tp=2").unwrap();
    let mut all = with_groups(simulated.reductions(), &mesh);
    let job = answers(all.clone(), None);
    assert_eq!(job.parallel.source, GroupSource::DeviceMesh);
    let groups = |job: &Job| -> Vec<(String, usize)> {
        let all = job.groups.iter();
        all.map(|(group, _)| (group.name.clone(), group.ranks.len()))
            .collect()
    };
    let stages = [("pp=0".to_owned(), 4), ("pp=1".to_owned(), 4)];
    assert_eq!(groups(&job), stages);
    assert_eq!(late_ranks(&job), [5]);
    let text = render_job(&job, false);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("parallel groups: pp=2, dp=2, tp=2 (device mesh)"),
        "{text}"
    );
    assert!(
        words.contains("rank 5 (pid 105 on node1; pp=1, dp=0, tp=1) arrives last"),
        "{text}"
    );

    // Where ranks are that did not say it follows from their peers.
    for rank in [1, 2, 4, 7] {
        all[rank].ranks[0].groups = None;
    }
    assert_eq!(groups(&answers(all.clone(), None)), stages);

    // Another mesh, and other ranks in a group: nothing is guessed.
    for (other, why) in [
        (
            "pp=0,4;dp=5,7",
            "rank 0 is on a mesh of pp=2, dp=2, tp=2, and rank 5 on one of pp=2, dp=2",
        ),
        (
            "pp=1,5;dp=5,7;tp=4,7",
            "rank 5 has the tp group 4,7, which is not what other ranks have",
        ),
        (
            "pp=1,5;dp=4,6;tp=4,5",
            "rank 5 has the dp group 4,6, which is not what other ranks have",
        ),
    ] {
        let mut all = with_groups(simulated.reductions(), &mesh);
        all[5].ranks[0].groups = Some((GroupSource::DeviceMesh, other.to_owned()));
        let job = answers(all, None);
        assert_eq!(job.parallel.source, GroupSource::None);
        assert_eq!(job.parallel.conflict.as_deref(), Some(why));
        assert_eq!(job.groups.len(), 1);
        let text = render_job(&job, false);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains("ranks contradict each other: rank"),
            "{text}"
        );
    }
}

/// 10,000 ranks: what each holds is short, and all of it is put together in little time and memory.
#[test]
fn ten_thousand_ranks_hold_short_groups() {
    let mesh = Mesh::parse("dp=625,pp=4,tp=4").unwrap();
    let ranks: Vec<Rank> = (0..10_000)
        .map(|number| Rank {
            recording: 0,
            host: String::new(),
            facts: ReducedRank {
                rank: Some(number),
                groups: Some((
                    GroupSource::DeviceMesh,
                    text_of(&mesh.groups_of(number).unwrap()),
                )),
                ..ReducedRank::default()
            },
            times: Vec::new(),
            own: Default::default(),
            totals: Default::default(),
        })
        .collect();
    let longest = ranks
        .iter()
        .map(|rank| rank.facts.groups.as_ref().unwrap().1.len());
    assert!(longest.max().unwrap() < 64);
    let found = Parallel::of(&ranks, None);
    assert_eq!(found.dimensions, mesh.dimensions);
    for rank in [0, 17, 5_000, 9_999] {
        assert_eq!(found.coordinates(rank), mesh.coordinates(rank));
    }
    // A dimension of more than 64 groups has no rows.
    let found = by_group(&ranks, &found, &[]);
    let shape = |along: &ByGroup| (along.dimension.clone(), along.groups.len());
    let shapes: Vec<(String, usize)> = found.iter().map(shape).collect();
    assert_eq!(shapes, [("pp".to_owned(), 4), ("tp".to_owned(), 4)]);
    let sizes = found.iter().flat_map(|along| &along.groups);
    assert!(
        sizes
            .map(|group| group.ranks.len())
            .all(|size| size == 2_500)
    );
}

/// The chosen ranks work 15 ms a step less, and wait for the others instead.
pub(crate) fn with_less_work(
    mut all: Vec<Reduction>,
    is_chosen: fn(usize) -> bool,
) -> Vec<Reduction> {
    let chosen = all.iter_mut().enumerate().filter(|(at, _)| is_chosen(*at));
    for row in chosen.flat_map(|(_, reduction)| &mut reduction.rows) {
        let less_ns = 15_000_000;
        match row.wait {
            Some(_) => row.ns += less_ns,
            None => row.ns = row.ns.saturating_sub(less_ns),
        }
    }
    all
}

#[test]
fn hostile_reductions_do_no_harm() {
    let mut all = Simulated::default().reductions();
    all[0].ranks[0].world_size = Some(u32::MAX);
    all[1].ranks[0].shift = 200;
    all[2].ranks[0].bins[3].end_ns = u64::MAX;
    all[3].rows[0].rank = 99;
    all[4].rows[0].place = Some(u32::MAX);
    all[5].started_wall_ns = u64::MAX;
    all[6].ranks[0].bins.clear();
    let groups = "pp=0-4294967295:2;pp=1".to_owned();
    all[7].ranks[0].groups = Some((GroupSource::DeviceMesh, groups));
    let job = answers(all, None);
    render_job(&job, true);
}
