//! Where in a step a thread was at any time, from polls that are further apart than phases.
//!
//! A hidden Markov model (Rabiner 1989): the state is one of [`POSITIONS`] positions in a step,
//! which follow each other in a circle, and a poll shows the phase. Each position has its own mean
//! time and its own distribution of phases; both are learned (Baum-Welch). A poll was made at a
//! random time in its interval, which the model sums over.

/// Positions in a step.
pub(super) const POSITIONS: usize = 24;
/// Phases that are told apart.
pub(super) const LABELS: usize = 8;
/// Cells of time in a step: more than positions, so that a step can be shorter than usual.
const CELLS_A_STEP: usize = 30;
/// Probability that a position is skipped.
const SKIP: f64 = 0.05;
/// Probability of a phase that was never seen at a position.
const UNSEEN: f64 = 0.0002;
/// Rounds of learning in which the phases of positions are driven apart, and by which power; rounds
/// in which they are then only adapted.
const SHARPENING: usize = 10;
const SHARPER: f64 = 1.5;
const ADAPTING: usize = 6;
/// Steps from which the model is learned, at most.
const LEARNED: usize = 600;
/// Cells that are smoothed together: bounds memory.
const CHUNK: usize = 1 << 14;
/// Cells at most: a recording is untrusted input.
const MOST_CELLS: usize = 1 << 20;

pub(super) type ByPosition = [f64; POSITIONS];

/// A poll: the phase at a random time of its interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poll {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// Number of the phase, below [`LABELS`].
    pub(super) label: usize,
    /// First guess of the position in the step, 0 to 1; `None` outside of steps.
    pub(super) at: Option<f64>,
}

/// A cell of time: the probability that its poll is made in it if it was not made before, and the
/// poll's number.
#[derive(Clone, Copy)]
struct Cell {
    hazard: f64,
    poll: usize,
}

/// What a thread did in a cell: probabilities that it was at a position, and that it left it.
#[derive(Clone, Copy, Default)]
pub(super) struct Moment {
    pub(super) at: [f32; POSITIONS],
    pub(super) left: [f32; POSITIONS],
}

/// Positions over time.
pub(super) struct Positions {
    pub(super) start_ns: f64,
    pub(super) cell_ns: f64,
    pub(super) moments: Vec<Moment>,
    /// By poll: where it was made.
    pub(super) polls: Vec<ByPosition>,
    /// Mean time at a position, cells.
    pub(super) dwell: ByPosition,
}

struct Model {
    /// By position: probability of each phase.
    shows: Vec<[f64; LABELS]>,
    /// By position: probability that it is not left within a cell.
    stay: ByPosition,
}

/// Sums over cells.
struct Sums {
    time: ByPosition,
    stay: ByPosition,
    shown: Vec<[f64; LABELS]>,
}

/// The positions in successive `polls` of steps that usually last `step_ns`.
pub(super) fn positions(polls: &[Poll], step_ns: f64) -> Positions {
    let cell_ns = step_ns / CELLS_A_STEP as f64;
    let start_ns = polls.first().map_or(0.0, |poll| poll.start_ns as f64);
    let cells = cells(polls, start_ns, cell_ns);
    let mut model = Model::guess(polls);
    let learned = &cells[..cells.len().min(LEARNED * CELLS_A_STEP)];
    for round in 0..SHARPENING + ADAPTING {
        let mut sums = Sums::new();
        for chunk in learned.chunks(CHUNK) {
            model.smooth(chunk, polls, &mut sums, |_, _| {});
        }
        // The first guess of where steps end may be wrong by a tick.
        model.learn(&sums, (2..SHARPENING).contains(&round));
    }
    let mut sums = Sums::new();
    let mut moments = Vec::with_capacity(cells.len());
    let mut found = vec![[0.0; POSITIONS]; polls.len()];
    for chunk in cells.chunks(CHUNK) {
        let own = model.smooth(chunk, polls, &mut sums, |poll, at| {
            for (sum, part) in found[poll].iter_mut().zip(at) {
                *sum += part;
            }
        });
        moments.extend(own);
    }
    let left = |at: usize| 1.0 - sums.stay[at] / sums.time[at].max(f64::MIN_POSITIVE);
    Positions {
        start_ns,
        cell_ns,
        moments,
        polls: found,
        dwell: std::array::from_fn(|at| 1.0 / left(at).max(1e-3)),
    }
}

/// Cells of equal length; those between polls have none.
fn cells(polls: &[Poll], start_ns: f64, cell_ns: f64) -> Vec<Cell> {
    let mut cells = Vec::new();
    let number = |at_ns: u64| {
        let number = (at_ns as f64 - start_ns) / cell_ns;
        (number.round() as usize).min(MOST_CELLS)
    };
    for (poll, each) in polls.iter().enumerate() {
        let bare = number(each.start_ns).saturating_sub(cells.len());
        cells.extend((0..bare).map(|_| Cell { hazard: 0.0, poll }));
        let own = number(each.end_ns).saturating_sub(cells.len());
        cells.extend((0..own).rev().map(|left| Cell {
            hazard: 1.0 / (left + 1) as f64,
            poll,
        }));
    }
    cells
}

impl Sums {
    fn new() -> Self {
        Self {
            time: [0.0; POSITIONS],
            stay: [0.0; POSITIONS],
            shown: vec![[0.0; LABELS]; POSITIONS],
        }
    }
}

impl Model {
    fn guess(polls: &[Poll]) -> Self {
        let mut shows = vec![[0.0; LABELS]; POSITIONS];
        for poll in polls {
            if let Some(at) = poll.at {
                let at = (at * POSITIONS as f64) as usize;
                shows[at.min(POSITIONS - 1)][poll.label] += 1.0;
            }
        }
        for row in &mut shows {
            probabilities(row);
        }
        let stay = 1.0 + SKIP - POSITIONS as f64 / CELLS_A_STEP as f64;
        Self {
            shows,
            stay: [stay; POSITIONS],
        }
    }

    /// From a cell to the next.
    fn forward(&self, from: &ByPosition) -> ByPosition {
        let mut to = [0.0; POSITIONS];
        for (at, mass) in from.iter().enumerate() {
            let leaves = mass * (1.0 - self.stay[at]);
            to[at] += mass - leaves;
            to[(at + 1) % POSITIONS] += leaves * (1.0 - SKIP);
            to[(at + 2) % POSITIONS] += leaves * SKIP;
        }
        to
    }

    /// Likelihood of what follows, before the transition.
    fn backward(&self, next: &ByPosition) -> ByPosition {
        std::array::from_fn(|at| {
            let (one, two) = (next[(at + 1) % POSITIONS], next[(at + 2) % POSITIONS]);
            self.stay[at] * next[at] + (1.0 - self.stay[at]) * ((1.0 - SKIP) * one + SKIP * two)
        })
    }

    /// Forward-backward over cells. The state is the position, and whether the poll of the current
    /// interval was made. `poll` gets where polls were made.
    fn smooth(
        &self,
        cells: &[Cell],
        polls: &[Poll],
        sums: &mut Sums,
        mut poll: impl FnMut(usize, &ByPosition),
    ) -> Vec<Moment> {
        let (mut open, mut made) = ([1.0 / POSITIONS as f64; POSITIONS], [0.0; POSITIONS]);
        let mut before = Vec::with_capacity(cells.len());
        for cell in cells {
            before.push((open, made));
            let label = polls[cell.poll].label;
            for at in 0..POSITIONS {
                made[at] += open[at] * cell.hazard * self.shows[at][label];
                open[at] *= 1.0 - cell.hazard;
            }
            if cell.hazard >= 1.0 {
                (open, made) = (made, [0.0; POSITIONS]);
            }
            let total: f64 = open.iter().chain(&made).sum();
            let scale = 1.0 / total.max(f64::MIN_POSITIVE);
            open = self.forward(&open.map(|mass| mass * scale));
            made = self.forward(&made.map(|mass| mass * scale));
        }
        let mut moments = vec![Moment::default(); cells.len()];
        let (mut open, mut made) = ([1.0; POSITIONS], [1.0; POSITIONS]);
        for (number, cell) in cells.iter().enumerate().rev() {
            let label = polls[cell.poll].label;
            let (open_then, made_then) = (self.backward(&open), self.backward(&made));
            let (open_before, made_before) = &before[number];
            let (mut at_now, mut stays, mut polled) =
                ([0.0; POSITIONS], [0.0; POSITIONS], [0.0; POSITIONS]);
            for at in 0..POSITIONS {
                // After the last cell of an interval the next one's poll is open.
                let (rest, then, rest_stays, then_stays) = match cell.hazard >= 1.0 {
                    true => (0.0, open_then[at], 0.0, open[at]),
                    false => (open_then[at], made_then[at], open[at], made[at]),
                };
                let now = cell.hazard * self.shows[at][label];
                let later = 1.0 - cell.hazard;
                polled[at] = open_before[at] * now * then;
                at_now[at] = polled[at] + open_before[at] * later * rest + made_before[at] * then;
                let stay = open_before[at] * (now * then_stays + later * rest_stays);
                stays[at] = self.stay[at] * (stay + made_before[at] * then_stays);
                (open[at], made[at]) = (now * then + later * rest, then);
            }
            let scale = 1.0 / at_now.iter().sum::<f64>().max(f64::MIN_POSITIVE);
            polled = polled.map(|mass| mass * scale);
            for at in 0..POSITIONS {
                let (time, stay) = (at_now[at] * scale, stays[at] * scale);
                moments[number].at[at] = time as f32;
                moments[number].left[at] = (time - stay) as f32;
                sums.time[at] += time;
                sums.stay[at] += stay;
                sums.shown[at][label] += polled[at];
            }
            poll(cell.poll, &polled);
            let total: f64 = open.iter().chain(&made).sum();
            let scale = 1.0 / total.max(f64::MIN_POSITIVE);
            open = open.map(|likelihood| likelihood * scale);
            made = made.map(|likelihood| likelihood * scale);
        }
        moments
    }

    /// One round of Baum-Welch. Sharpening keeps the total of each phase.
    fn learn(&mut self, sums: &Sums, sharpen: bool) {
        for at in 0..POSITIONS {
            let stay = (sums.stay[at] + 2.0 * self.stay[at]) / (sums.time[at] + 2.0);
            self.stay[at] = stay.clamp(0.02, 0.98);
        }
        self.shows.clone_from(&sums.shown);
        if sharpen {
            for shown in self.shows.iter_mut().flatten() {
                *shown = shown.powf(SHARPER);
            }
            // Sinkhorn's iteration: sums of rows and columns as they were.
            for _ in 0..20 {
                for label in 0..LABELS {
                    let of = |rows: &[[f64; LABELS]]| rows.iter().map(|row| row[label]).sum();
                    let (wanted, found): (f64, f64) = (of(&sums.shown), of(&self.shows));
                    for row in &mut self.shows {
                        row[label] *= wanted / found.max(f64::MIN_POSITIVE);
                    }
                }
                for (row, wanted) in self.shows.iter_mut().zip(&sums.shown) {
                    let found: f64 = row.iter().sum();
                    let wanted: f64 = wanted.iter().sum();
                    *row = row.map(|shown| shown * wanted / found.max(f64::MIN_POSITIVE));
                }
            }
        }
        for row in &mut self.shows {
            probabilities(row);
        }
    }
}

fn probabilities(row: &mut [f64; LABELS]) {
    let total: f64 = row.iter().sum();
    let even = 1.0 / LABELS as f64;
    *row = row.map(|each| match total > 0.0 {
        true => (1.0 - UNSEEN * LABELS as f64) * each / total + UNSEEN,
        false => even,
    });
}
