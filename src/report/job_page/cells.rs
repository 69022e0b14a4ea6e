//! Figures by row and bin of steps, as planes of integers.

use super::rows::{Row, median};
use crate::analysis::job::Job;
use crate::analysis::job::ranks::{Class, Rank};
use crate::model::named::Named;
use crate::model::reduction::MOST_BINS;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};

/// Values below are not told apart well.
pub(super) const UNIT_MS: f64 = 0.001;
const MOST: f64 = 65534.0;
const NONE: u16 = u16::MAX;
/// Step, waits, own, typical.
const BEFORE_CLASSES: usize = 4;
const PLANES: usize = BEFORE_CLASSES + Class::COUNT;

/// Names of planes: length of a step, waits for others, the rest of a step, the median of that in
/// the rank's group, and classes; all in ms per step.
pub(super) fn planes() -> Vec<&'static str> {
    let classes = Class::ALL.iter().map(|class| class.stable_name());
    ["step", "waits", "own", "typical"]
        .into_iter()
        .chain(classes)
        .collect()
}

/// The figures of a rank in a column, ms per step.
#[derive(Clone, Copy, Debug)]
struct Cell {
    values: [f64; PLANES],
    /// Start by the aligned clock, ns since 1970.
    start_ns: i64,
}

/// All figures.
pub(super) struct Cells {
    pub(super) columns: usize,
    pub(super) shift: u32,
    /// Index of the first column.
    first: u64,
    pub(super) most_ms: f64,
    pub(super) first_ms: i64,
    /// By row and column.
    cells: Vec<Option<Cell>>,
}

impl Cells {
    pub(super) fn new(job: &Job, rows: &[Row]) -> Self {
        let (first, columns, shift) = columns(job);
        let more = shift - job.shift;
        let mut of_rank: Vec<Vec<Option<Cell>>> = Vec::with_capacity(job.ranks.len());
        for rank in &job.ranks {
            of_rank.push(cells_of(job, rank, first, columns, more));
        }
        for (group, _) in &job.groups {
            for column in 0..columns {
                let own = group.ranks.iter();
                let own = own.filter_map(|&at| Some(of_rank.get(at)?[column]?.values[2]));
                let typical = median(own).unwrap_or(0.0);
                for &at in &group.ranks {
                    if let Some(Some(cell)) = of_rank.get_mut(at).map(|own| &mut own[column]) {
                        cell.values[3] = typical;
                    }
                }
            }
        }
        let mut cells = Vec::with_capacity(rows.len() * columns);
        for row in rows {
            for column in 0..columns {
                let members = row.members.iter();
                let own: Vec<Cell> = members.filter_map(|&at| of_rank.get(at)?[column]).collect();
                cells.push(together(&own));
            }
        }
        let found = || cells.iter().flatten();
        let values = found().flat_map(|cell| cell.values);
        let first_ns = found().map(|cell| cell.start_ns).min().unwrap_or(0);
        Self {
            columns,
            shift,
            first,
            most_ms: values.fold(UNIT_MS, f64::max),
            first_ms: first_ns.div_euclid(1_000_000),
            cells,
        }
    }

    pub(super) fn first_step(&self) -> u64 {
        self.first.checked_shl(self.shift).unwrap_or(0)
    }

    /// Starts of cells in ms after `first_ms`, 32 bits each, then the planes, 16 bits each, all
    /// little-endian; compressed.
    pub(super) fn packed(&self) -> io::Result<Vec<u8>> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::new(6));
        let mut bytes = Vec::with_capacity(self.cells.len() * 4);
        for cell in &self.cells {
            let ms = cell.map_or(0, |cell| {
                cell.start_ns.div_euclid(1_000_000) - self.first_ms
            });
            bytes.extend(u32::try_from(ms).unwrap_or(u32::MAX).to_le_bytes());
        }
        packed.write_all(&bytes)?;
        for plane in 0..PLANES {
            bytes.clear();
            for cell in &self.cells {
                let value = cell.map_or(NONE, |cell| self.quantized(cell.values[plane]));
                bytes.extend(value.to_le_bytes());
            }
            packed.write_all(&bytes)?;
        }
        packed.finish()
    }

    /// By its logarithm: a stall of a minute and a step of a millisecond have the same relative
    /// error.
    fn quantized(&self, ms: f64) -> u16 {
        let part = (ms.max(0.0) / UNIT_MS).ln_1p() / (self.most_ms / UNIT_MS).ln_1p();
        (part * MOST).round().min(MOST) as u16
    }
}

/// Index of the first column, their number, and their shift. Ranks whose numbers of steps are far
/// from those of most have no columns.
fn columns(job: &Job) -> (u64, usize, u32) {
    let ends = job.ranks.iter().filter_map(|rank| {
        let bins = &rank.facts.bins;
        Some((bins.first()?.index, bins.last()?.index))
    });
    let ends: Vec<(u64, u64)> = ends.collect();
    let middle = |of: fn(&(u64, u64)) -> u64| {
        let mut all: Vec<u64> = ends.iter().map(of).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    };
    let (Some(from), Some(to)) = (middle(|ends| ends.0), middle(|ends| ends.1)) else {
        return (0, 0, job.shift);
    };
    let length = to.saturating_sub(from).min(MOST_BINS as u64).max(8);
    let near = |index: u64| {
        from.saturating_sub(length) <= index && index <= from.saturating_add(2 * length)
    };
    let near = |&&(first, last): &&(u64, u64)| near(first) && near(last);
    let first = ends.iter().filter(near).map(|ends| ends.0).min();
    let last = ends.iter().filter(near).map(|ends| ends.1).max();
    let (Some(first), Some(last)) = (first, last) else {
        return (0, 0, job.shift);
    };
    let mut more = 0;
    while (last >> more) - (first >> more) >= MOST_BINS as u64 {
        more += 1;
    }
    let (first, last) = (first >> more, last >> more);
    (first, (last - first) as usize + 1, job.shift + more)
}

fn cells_of(job: &Job, rank: &Rank, first: u64, columns: usize, more: u32) -> Vec<Option<Cell>> {
    #[derive(Clone, Copy, Default)]
    struct Sum {
        steps: f64,
        length_s: f64,
        waits_s: f64,
        classes_s: [f64; Class::COUNT],
        start_ns: u64,
    }
    let mut sums = vec![Sum::default(); columns];
    for (bin, times) in rank.bins() {
        let column = (bin.index >> more).checked_sub(first);
        let column = column.and_then(|column| usize::try_from(column).ok());
        let Some(sum) = column.and_then(|column| sums.get_mut(column)) else {
            continue;
        };
        if sum.steps == 0.0 {
            sum.start_ns = bin.start_ns;
        }
        sum.steps += f64::from(bin.steps);
        sum.length_s += Rank::length_s(bin);
        sum.waits_s += f64::from(times.waits);
        for (sum, seconds) in sum.classes_s.iter_mut().zip(times.classes) {
            *sum += f64::from(seconds);
        }
    }
    let clock = job.clock(rank.recording);
    let cells = sums.into_iter().map(|sum| {
        let ms = |seconds: f64| seconds * 1e3 / sum.steps;
        let mut values = [0.0; PLANES];
        values[0] = ms(sum.length_s);
        values[1] = ms(sum.waits_s);
        values[2] = ms((sum.length_s - sum.waits_s).max(0.0));
        for (value, seconds) in values[BEFORE_CLASSES..].iter_mut().zip(sum.classes_s) {
            *value = ms(seconds);
        }
        (sum.steps > 0.0).then(|| Cell {
            values,
            start_ns: clock.map_or(0, |clock| clock.reference_ns(sum.start_ns)),
        })
    });
    cells.collect()
}

/// The medians of several ranks.
fn together(own: &[Cell]) -> Option<Cell> {
    let &first = own.first()?;
    Some(match own.len() {
        1 => first,
        _ => Cell {
            values: std::array::from_fn(|plane| {
                median(own.iter().map(|cell| cell.values[plane])).unwrap_or(0.0)
            }),
            ..first
        },
    })
}
