//! Parts of two sides, compared.

use crate::analysis::diff::keys::Key;
use crate::analysis::diff::{Diff, Figure, Row, Verdict};
use crate::model::text::printable;
use crate::report::part::{part_label, part_name};
use crate::report::table::{Column, Cut, Kind, Value};
use schemars::JsonSchema;
use serde::Serialize;

/// Milliseconds with as many decimals as the figures' precision allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    decimals: usize,
}

impl Scale {
    pub(crate) fn new(diff: &Diff) -> Self {
        let whole_ns = diff.step.as_ref().map_or(1e9, |step| step.a.mean_ns);
        let decimals = match whole_ns / 1e6 {
            10_000.0.. => 0,
            10.0.. => 1,
            1.0.. => 2,
            _ => 3,
        };
        Self { decimals }
    }

    pub(crate) fn ms(self, ns: f64) -> String {
        format!("{:.*}", self.decimals, ns / 1e6)
    }

    pub(crate) fn signed(self, ns: f64) -> String {
        format!("{:+.*}", self.decimals, ns / 1e6)
    }

    /// A side's figure; if it was seen in too few ticks, only its upper bound.
    fn figure(self, figure: &Figure) -> String {
        if figure.is_uncertain() {
            let unit = 10_f64.powi(i32::try_from(self.decimals).unwrap_or(0));
            let above = (figure.mean_ns + figure.half_ns) / 1e6;
            return format!("<{:.*}", self.decimals, (above * unit).ceil() / unit);
        }
        self.ms(figure.mean_ns)
    }
}

/// A part, compared.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Part {
    /// `row`, `phase`, `activity`, `module`, `module_self`, `operator`, `line`, `function`,
    /// `native`; `step`.
    pub kind: &'static str,
    /// Its name: `Net.layers.2`, `train.py:88`.
    pub name: String,
    /// Class of a module; null for others.
    pub class: Option<String>,
    /// Source file, or library; null where it has none.
    pub file: Option<String>,
    /// Function that contains a line; null for others.
    pub function: Option<String>,
    /// Source line in B, or in A if B lacks it; null if there is none.
    pub line: Option<u32>,
    /// In A.
    pub a: Figure,
    /// In B.
    pub b: Figure,
    /// B minus A.
    pub difference_s: f64,
    /// Half of its 95 % interval.
    pub half_s: f64,
    /// B relative to A, minus one; null if A has no time in it.
    pub relative: Option<f64>,
    /// Half of its 95 % interval.
    pub relative_half: Option<f64>,
    /// Probability of a difference at least as large by chance, for this part alone.
    pub chance: f64,
    /// `slower`, `faster`, or `no difference beyond noise`, with all parts taken into account. Per
    /// second: `larger share`, `smaller share`.
    pub verdict: &'static str,
    /// Whether it differs beyond noise.
    pub beyond_noise: bool,
    /// The name with what distinguishes it from others.
    #[serde(skip)]
    pub shown: String,
    #[serde(skip)]
    pub(crate) scale: Scale,
}

type Col = Column<Part>;

pub const PARTS: &[Col] = &[
    figure("A", |row| row.scale.figure(&row.a).into()),
    figure("B", |row| row.scale.figure(&row.b).into()),
    figure("B - A", |row| {
        row.scale.signed(row.difference_s * 1e9).into()
    }),
    Col::words("±95 %   beyond noise", |row| {
        let half = row.scale.ms(row.half_s * 1e9);
        let verdict = match row.beyond_noise {
            true => row.verdict,
            false => "noise",
        };
        format!("±{half:<6} {verdict:<7} {}", row.shown).into()
    })
    .cut(Cut::End),
];

const fn figure(label: &'static str, value: fn(&Part) -> Value) -> Col {
    Col::new(Kind::Milliseconds, "", label, value)
}

/// All of `rows`.
pub fn parts<'r>(diff: &Diff, rows: impl IntoIterator<Item = &'r Row>) -> Vec<Part> {
    rows.into_iter().map(|row| part(diff, row)).collect()
}

/// A part with its names.
pub fn part(diff: &Diff, row: &Row) -> Part {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Part {
        kind: row.key.kind(),
        name: part_name(&row.key, &row.about),
        class: some(&row.about.class),
        file: some(&row.about.file),
        function: match &row.key {
            Key::Line { function, .. } => Some(function.clone()),
            _ => None,
        },
        line: (row.about.line > 0).then_some(row.about.line),
        a: row.a,
        b: row.b,
        difference_s: row.difference_ns / 1e9,
        half_s: row.half_ns / 1e9,
        relative: row.relative.map(|(value, _)| value),
        relative_half: row.relative.map(|(_, half)| half),
        chance: row.chance,
        verdict: row.verdict.name(diff.unit),
        beyond_noise: row.verdict != Verdict::Noise,
        shown: shown(row),
        scale: Scale::new(diff),
    }
}

fn shown(row: &Row) -> String {
    let label = part_label(&row.key, &row.about);
    match row.key {
        Key::Phase(_) | Key::Region(_) => format!("phase {label}"),
        Key::Activity(_) => format!("activity {label}"),
        Key::Row(_) => format!("{label} (summary row)"),
        _ => printable(&label).into_owned(),
    }
}
