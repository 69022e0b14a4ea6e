//! Samples on one time axis: a thread does one thing at a time.
//!
//! A capture that failed, because its thread blocked before the stop landed, leaves its tick to the
//! next sample of the same kind. That sample is longer by it, and begins where others of the thread
//! are. The part that is too much belongs where nothing is: into the gap that the failed capture
//! left. Drawn one after the other such samples would shift all that follows.

use crate::model::profile::ProfileSample;
use crate::model::sample::Capture;

/// An interval without a sample.
#[derive(Clone, Copy)]
struct Gap {
    start_ns: u64,
    end_ns: u64,
}

/// Places `count` samples, those of each thread side by side; those of a thread follow each other.
/// They stay sorted by thread; sums do not change.
pub(super) fn lay_out(
    samples: impl Iterator<Item = ProfileSample>,
    count: usize,
) -> Vec<ProfileSample> {
    let mut laid = Vec::with_capacity(count);
    let mut own: Vec<ProfileSample> = Vec::new();
    for sample in samples {
        if own.last().is_some_and(|last| last.thread != sample.thread) {
            lay_out_thread(&own, &mut laid);
            own.clear();
        }
        own.push(sample);
    }
    lay_out_thread(&own, &mut laid);
    laid
}

fn lay_out_thread(own: &[ProfileSample], laid: &mut Vec<ProfileSample>) {
    let first = laid.len();
    let mut order: Vec<(u64, &ProfileSample)> =
        own.iter().map(|sample| (end_of(sample), sample)).collect();
    order.sort_by_key(|&(end_ns, _)| end_ns);
    let mut gaps: Vec<Gap> = Vec::new();
    let mut cursor_ns = own.iter().map(|sample| sample.start_ns).min().unwrap_or(0);
    for (end_ns, sample) in order {
        if sample.start_ns > cursor_ns {
            gaps.push(Gap {
                start_ns: cursor_ns,
                end_ns: sample.start_ns,
            });
        }
        let mut rest = *sample;
        let mut too_early_ns = cursor_ns
            .saturating_sub(sample.start_ns)
            .min(sample.weight_ns);
        while too_early_ns > 0
            && let Some(gap) = gaps.last_mut()
        {
            let length_ns = too_early_ns.min(gap.end_ns - gap.start_ns);
            gap.end_ns -= length_ns;
            laid.push(split_off(&mut rest, length_ns, gap.end_ns));
            if gap.start_ns == gap.end_ns {
                gaps.pop();
            }
            too_early_ns -= length_ns;
        }
        if rest.weight_ns > 0 {
            laid.push(rest);
        }
        cursor_ns = cursor_ns.max(end_ns);
    }
    if let Some(own) = laid.get_mut(first..) {
        // Samples are large: their keys are sorted, and each is moved once.
        own.sort_by_cached_key(|sample| sample.start_ns);
    }
}

fn end_of(sample: &ProfileSample) -> u64 {
    sample.start_ns.saturating_add(sample.weight_ns)
}

/// Takes the first `length_ns` of a sample, as a piece that begins at `start_ns`.
fn split_off(rest: &mut ProfileSample, length_ns: u64, start_ns: u64) -> ProfileSample {
    let share = |of: u64| {
        let part = u128::from(of) * u128::from(length_ns) / u128::from(rest.weight_ns.max(1));
        u64::try_from(part).unwrap_or(of)
    };
    let (queue_ns, ticks) = (share(rest.queue_ns), share(u64::from(rest.ticks)));
    let piece = ProfileSample {
        start_ns,
        weight_ns: length_ns,
        queue_ns,
        ticks: u32::try_from(ticks).unwrap_or(rest.ticks),
        // Its stack was read later, so it does not show this time.
        capture: match rest.capture.is_fresh() {
            true => Capture::Reused,
            false => rest.capture,
        },
        ..*rest
    };
    rest.start_ns = rest.start_ns.saturating_add(length_ns);
    rest.weight_ns -= length_ns;
    rest.queue_ns -= piece.queue_ns;
    rest.ticks -= piece.ticks;
    piece
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ThreadId;

    fn sample(thread: usize, start_ns: u64, weight_ns: u64, ticks: u32) -> ProfileSample {
        ProfileSample {
            thread: ThreadId::from_index(thread),
            start_ns,
            weight_ns,
            queue_ns: weight_ns / 10,
            ticks,
            capture: Capture::Stopped,
            ..ProfileSample::default()
        }
    }

    fn places(samples: &[ProfileSample]) -> Vec<(u64, u64, u32)> {
        let places = samples.iter();
        places
            .map(|sample| (sample.start_ns, sample.weight_ns, sample.ticks))
            .collect()
    }

    #[test]
    fn what_is_too_early_goes_to_the_gap_that_it_left() {
        // The capture at 20 failed; the sample at 50 stands for it, too.
        let samples = vec![
            sample(0, 0, 20, 2),
            sample(0, 30, 20, 2),
            sample(0, 40, 20, 2),
            sample(0, 60, 10, 1),
            sample(1, 5, 10, 1),
        ];
        let laid = lay_out(samples.clone().into_iter(), samples.len());
        assert_eq!(
            places(&laid),
            [
                (0, 20, 2),
                (20, 10, 1),
                (30, 20, 2),
                (50, 10, 1),
                (60, 10, 1),
                (5, 10, 1)
            ]
        );
        let sum = |samples: &[ProfileSample]| -> (u64, u64, u32) {
            let all = samples.iter();
            all.fold((0, 0, 0), |(weight, queue, ticks), each| {
                (
                    weight + each.weight_ns,
                    queue + each.queue_ns,
                    ticks + each.ticks,
                )
            })
        };
        assert_eq!(sum(&laid), sum(&samples));
    }

    #[test]
    fn what_has_no_length_is_left_out() {
        let samples = [
            sample(0, 0, 20, 2),
            sample(0, 20, 0, 0),
            sample(0, 20, 10, 1),
        ];
        let laid = lay_out(samples.into_iter(), samples.len());
        assert_eq!(places(&laid), [(0, 20, 2), (20, 10, 1)]);
    }

    #[test]
    fn where_no_gap_is_left_it_stays() {
        let laid = lay_out([sample(0, 0, 20, 2), sample(0, 10, 20, 2)].into_iter(), 2);
        assert_eq!(places(&laid), [(0, 20, 2), (10, 20, 2)]);
    }

    #[test]
    fn several_gaps_serve_one_sample() {
        let samples = [
            sample(0, 0, 10, 1),
            sample(0, 20, 10, 1),
            sample(0, 40, 10, 1),
            sample(0, 30, 30, 3),
        ];
        let laid = lay_out(samples.into_iter(), samples.len());
        assert_eq!(
            places(&laid),
            [
                (0, 10, 1),
                (10, 10, 1),
                (20, 10, 1),
                (30, 10, 1),
                (40, 10, 1),
                (50, 10, 1)
            ]
        );
    }
}
