//! Made-up steps whose idle time is known.

use super::*;

const TICK_NS: u64 = 10_000_000;

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}

/// Where in a phase the device is idle.
#[derive(Clone, Copy, Debug)]
enum Place {
    Throughout,
    Begin,
    End,
    Edges,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    ns: f64,
    jitter: f64,
    idle: f64,
    place: Place,
}

#[derive(Debug)]
struct Case {
    phases: Vec<Planned>,
    /// Of whole steps.
    jitter: f64,
    /// Probability that the first phase takes up to two steps longer.
    stalls: f64,
    seconds: f64,
    /// Idle shares in the second half, less those in the first.
    drift: f64,
    window_jitter: f64,
}

impl Case {
    fn any(random: &mut Random) -> Self {
        let step_ns = 20e6 * 7.5_f64.powf(random.next());
        let shares: Vec<f64> = (0..3 + (random.next() * 3.0) as usize)
            .map(|_| random.between(0.05, 1.0))
            .collect();
        let total: f64 = shares.iter().sum();
        let phase = |share: &f64| Planned {
            ns: step_ns * share / total,
            jitter: random.between(0.0, 0.2),
            idle: random.between(-0.3, 1.3).clamp(0.0, 1.0),
            place: [Place::Throughout, Place::Begin, Place::End, Place::Edges]
                [(random.next() * 4.0) as usize],
        };
        Self {
            phases: shares.iter().map(phase).collect(),
            jitter: random.between(0.0, 0.15),
            stalls: if random.next() < 0.2 { 0.05 } else { 0.0 },
            seconds: random.between(15.0, 90.0),
            drift: 0.0,
            window_jitter: 0.002,
        }
    }
}

/// What the driver and a sampler at 100 Hz see of a case, and the truth.
struct Seen {
    polls: Vec<(u64, usize)>,
    steps: Vec<(u64, u64)>,
    windows: Windows,
    truth: Vec<f64>,
}

fn seen(case: &Case, random: &mut Random) -> Seen {
    let end_ns = case.seconds * 1e9;
    let mut spans: Vec<(f64, usize)> = Vec::new();
    let mut idle: Vec<(f64, f64)> = Vec::new();
    let mut ends: Vec<f64> = Vec::new();
    let mut sums = vec![(0.0, 0.0); case.phases.len()];
    let mut now = 0.0;
    while now < end_ns {
        let all = (1.0 + case.jitter * random.normal()).max(0.4);
        for (number, phase) in case.phases.iter().enumerate() {
            let mut length = phase.ns * all * (1.0 + phase.jitter * random.normal()).max(0.2);
            if number == 0 && random.next() < case.stalls {
                let step: f64 = case.phases.iter().map(|phase| phase.ns).sum();
                length += step * random.between(0.2, 2.0);
            }
            let drift = if now > end_ns / 2.0 { case.drift } else { 0.0 };
            let none = length * (phase.idle + drift).clamp(0.0, 1.0);
            match phase.place {
                Place::Throughout => idle.extend((0..20).map(|part| {
                    let from = now + length * f64::from(part) / 20.0;
                    (from, from + none / 20.0)
                })),
                Place::Begin => idle.push((now, now + none)),
                Place::End => idle.push((now + length - none, now + length)),
                Place::Edges => {
                    idle.push((now, now + none / 2.0));
                    idle.push((now + length - none / 2.0, now + length));
                }
            }
            sums[number].0 += none;
            sums[number].1 += length;
            now += length;
            spans.push((now, number));
        }
        ends.push(now);
    }
    let until: Vec<f64> = std::iter::once(0.0)
        .chain(idle.iter().scan(0.0, |sum, (from, to)| {
            *sum += to - from;
            Some(*sum)
        }))
        .collect();
    let idle_until = |at: f64| {
        let number = idle.partition_point(|span| span.0 < at);
        let last = idle[..number]
            .last()
            .map_or(0.0, |span| at.min(span.1) - span.0);
        until[number.saturating_sub(1)] + last
    };
    let polled: Vec<f64> = (0..(end_ns / TICK_NS as f64) as u64)
        .map(|tick| (tick as f64 + random.next()) * TICK_NS as f64)
        .collect();
    let polls = polled.iter().map(|&at| {
        let span = spans.partition_point(|span| span.0 <= at);
        ((at / TICK_NS as f64) as u64 * TICK_NS, spans[span].1)
    });
    // A step ended between two polls; several are spread evenly.
    let mut known: Vec<u64> = Vec::new();
    for pair in polled.windows(2) {
        let between = |at: f64| ends.partition_point(|end| *end <= at);
        let count = between(pair[1]) - between(pair[0]);
        let end = f64::midpoint(pair[0], pair[1]);
        let last = known.last().map_or(0.0, |&last| last as f64);
        known.extend((1..=count).map(|at| (last + (end - last) * at as f64 / count as f64) as u64));
    }
    let mut windows = Vec::new();
    let mut from = 0.2e9;
    while from < end_ns - 0.5e9 {
        let to = from + 0.1667e9 * (1.0 + case.window_jitter * random.normal());
        let busy = 1.0 - (idle_until(to) - idle_until(from)) / (to - from);
        windows.push(Window {
            start_ns: from as u64,
            end_ns: to as u64,
            amount: (1.0 - (busy * 100.0).round() / 100.0) * (to - from),
            error: 0.006 * (to - from),
        });
        from = to;
    }
    Seen {
        polls: polls.collect(),
        steps: known.windows(2).map(|pair| (pair[0], pair[1])).collect(),
        windows: Windows::new(windows, (0.0, 1.0), TICK_NS, 0).unwrap(),
        truth: sums.into_iter().map(|(idle, all)| idle / all).collect(),
    }
}

/// Estimates by phase.
fn estimated(seen: &Seen) -> Result<Vec<Estimate>, Refused> {
    let usual = Usual::of(&seen.steps, TICK_NS)?;
    let inside = |start_ns: u64| start_ns >= usual.start_ns && start_ns + TICK_NS <= usual.end_ns;
    let kept: Vec<&(u64, usize)> = seen.polls.iter().filter(|poll| inside(poll.0)).collect();
    let polls: Vec<Poll> = kept
        .iter()
        .map(|poll| usual.poll(poll.0, poll.0 + TICK_NS, poll.1))
        .collect();
    let lists: Vec<Vec<usize>> = (0..seen.truth.len())
        .map(|phase| {
            (0..kept.len())
                .filter(|&poll| kept[poll].1 == phase)
                .collect()
        })
        .collect();
    let lists: Vec<&[usize]> = lists.iter().map(Vec::as_slice).collect();
    Ok(estimate(&polls, &usual, &seen.windows, &lists)?.1)
}

#[test]
fn intervals_hold_the_truth_and_estimates_are_near_it() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let cases: Vec<(Case, Seen)> = (0..300)
        .map(|_| {
            let case = Case::any(&mut random);
            let seen = seen(&case, &mut random);
            (case, seen)
        })
        .collect();
    let (mut phases, mut given, mut held, mut error, mut refused) = (0, 0, 0, 0.0, 0);
    let halves: Vec<&[(Case, Seen)]> = cases.chunks(cases.len().div_ceil(4)).collect();
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = halves
            .iter()
            .map(|half| scope.spawn(|| half.iter().map(|(_, seen)| estimated(seen)).collect()))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.flat_map(|results: Vec<_>| results).collect()
    });
    for ((case, seen), result) in cases.iter().zip(&results) {
        let Ok(estimates) = result else {
            refused += 1;
            continue;
        };
        for (estimate, truth) in estimates.iter().zip(&seen.truth) {
            phases += 1;
            if estimate.half > WIDEST {
                continue;
            }
            given += 1;
            let off = (estimate.share - truth).abs();
            error += off;
            held += usize::from(off <= estimate.half);
            if off > estimate.half {
                println!("{truth}: {estimate:?} of {case:?}");
            }
        }
    }
    let mean = error / f64::from(given);
    println!("{phases} phases, {given} given, {held} hold, off by {mean:.4}; {refused} refused");
    assert!(given * 4 >= phases, "{given} of {phases}");
    assert!(held * 100 >= given as usize * 95, "{held} of {given}");
    assert!(mean <= 0.03, "{mean}");
}

fn even(step_ms: f64, jitter: f64) -> Case {
    let phase = |share: f64, idle: f64| Planned {
        ns: step_ms * 1e6 * share,
        jitter,
        idle,
        place: Place::Throughout,
    };
    Case {
        phases: vec![phase(0.2, 1.0), phase(0.5, 0.1), phase(0.3, 0.5)],
        jitter,
        stalls: 0.0,
        seconds: 60.0,
        drift: 0.0,
        window_jitter: 0.0,
    }
}

#[test]
fn windows_that_are_multiples_of_the_step_are_refused() {
    let mut random = Random(3);
    for steps in [1.0, 2.0, 4.0] {
        let seen = seen(&even(166.7 / steps, 0.0), &mut random);
        let estimates = estimated(&seen).unwrap();
        for estimate in &estimates {
            assert!(estimate.half > WIDEST, "{steps}: {estimates:?}");
        }
    }
    // Steps that are no fraction of a window.
    let seen = seen(&even(70.0, 0.0), &mut random);
    let estimates = estimated(&seen).unwrap();
    for (estimate, truth) in estimates.iter().zip([1.0, 0.1, 0.5]) {
        assert!(estimate.half <= WIDEST, "{estimates:?}");
        assert!(
            (estimate.share - truth).abs() <= estimate.half,
            "{estimates:?}"
        );
    }
}

#[test]
fn what_does_not_repeat_is_refused() {
    let mut random = Random(5);
    let mut of = |case: Case| estimated(&seen(&case, &mut random)).unwrap_err();
    let drifts = Case {
        drift: 0.4,
        ..even(70.0, 0.05)
    };
    assert_eq!(of(drifts), Refused::Drift);
    let stalls = Case {
        stalls: 0.4,
        ..even(70.0, 0.05)
    };
    assert_eq!(of(stalls), Refused::Uneven);
    let short = Case {
        seconds: 8.0,
        ..even(70.0, 0.05)
    };
    assert!(matches!(of(short), Refused::Few(_)));
    assert_eq!(of(even(12.0, 0.05)), Refused::Short);
    assert_eq!(Usual::of(&[], TICK_NS).err(), Some(Refused::NoSteps));
}
