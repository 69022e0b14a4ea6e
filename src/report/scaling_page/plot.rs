//! Plots as inline SVG: points with their intervals on logarithmic axes, and bars.

use crate::analysis::scaling::mean::Estimate;
use crate::report::job_page::escaped;
use std::fmt::Write;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;
/// Colours; more series repeat them.
const COLOURS: usize = 6;
/// Labels on an axis, at most.
const MOST_TICKS: usize = 12;

/// Points, or a line.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) colour: usize,
    pub(super) points: Vec<(f64, Estimate)>,
    /// Dashed, without points: what is not measured.
    pub(super) is_line: bool,
}

/// A plot with both axes logarithmic.
pub(super) struct Plot<'p> {
    pub(super) title: &'p str,
    pub(super) x: &'p str,
    pub(super) y: &'p str,
    pub(super) series: Vec<Series>,
    pub(super) shown: fn(f64) -> String,
}

struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// `values` from `from` to `to`, with room at both ends.
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let (mut low, mut high) = (f64::MAX, 0.0_f64);
        for value in values.filter(|value| *value > 0.0 && value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        let room = (high / low).powf(0.06).max(1.08);
        (low < f64::MAX).then_some(Self {
            low: low / room,
            high: high * room,
            from,
            to,
        })
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        self.from + part.min(1.0) * (self.to - self.from)
    }

    /// 1, 2 and 5 times powers of ten; powers alone where those are too many.
    fn ticks(&self) -> Vec<f64> {
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let of = |factors: &[f64]| -> Vec<f64> {
            let powers = (first..=last).map(|power| 10_f64.powi(power));
            let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
            all.filter(|tick| (self.low..=self.high).contains(tick))
                .collect()
        };
        let fine = of(&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0]);
        let usual = of(&[1.0, 2.0, 5.0]);
        match (usual.len(), usual.len() <= MOST_TICKS) {
            (0..=2, _) => fine,
            (_, true) => usual,
            _ => of(&[1.0]),
        }
    }
}

impl Plot<'_> {
    pub(super) fn render(&self, out: &mut String) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let values =
            points().flat_map(|(_, it)| [Some(it.value), it.low, it.high].into_iter().flatten());
        let x = Axis::new(points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Axis::new(values, HEIGHT - BOTTOM, TOP);
        let (Some(x), Some(y)) = (x, y) else { return };
        let _ = writeln!(
            out,
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{}\">",
            escaped(self.title),
            escaped(self.title)
        );
        self.axes(out, &x, &y);
        for series in &self.series {
            self.series(out, &x, &y, series);
        }
        out.push_str("</svg>");
        legend(
            out,
            self.series
                .iter()
                .map(|it| (it.name.as_str(), it.colour, it.is_line)),
        );
        out.push_str("</figure>\n");
    }

    fn axes(&self, out: &mut String, x: &Axis, y: &Axis) {
        // What was measured, and the ends of lines.
        let mut sizes: Vec<f64> = Vec::new();
        for series in &self.series {
            let inner = if series.is_line {
                series.points.len().saturating_sub(1)
            } else {
                1
            };
            let marked = series.points.iter().step_by(inner.max(1));
            sizes.extend(marked.map(|point| point.0.round()));
        }
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        let every = sizes.len().div_ceil(MOST_TICKS);
        let (left, right, bottom) = (LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in y.ticks() {
            let at = y.at(tick);
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                at + 4.0,
                (self.shown)(tick)
            );
        }
        for tick in sizes.iter().step_by(every.max(1)) {
            let at = x.at(*tick);
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick:.0}</text>",
                bottom + 16.0
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(13 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(left, right),
            HEIGHT - 8.0,
            escaped(self.x),
            f64::midpoint(TOP, bottom),
            escaped(self.y)
        );
    }

    fn series(&self, out: &mut String, x: &Axis, y: &Axis, series: &Series) {
        let class = series.colour % COLOURS;
        let places: Vec<String> = series
            .points
            .iter()
            .map(|(at, value)| format!("{:.1},{:.1}", x.at(*at), y.at(value.value)))
            .collect();
        let dashed = if series.is_line { " dashed" } else { "" };
        let _ = writeln!(
            out,
            "<polyline class=\"s{class}{dashed}\" points=\"{}\"/>",
            places.join(" ")
        );
        if series.is_line {
            return;
        }
        for (at, value) in &series.points {
            let (cx, cy) = (x.at(*at), y.at(value.value));
            if let (Some(low), Some(high)) = (value.low, value.high) {
                let (low, high) = (y.at(low), y.at(high));
                let _ = writeln!(
                    out,
                    "<path class=\"s{class}\" d=\"M{cx:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h8M{:.1} \
                     {high:.1}h8\"/>",
                    cx - 4.0,
                    cx - 4.0
                );
            }
            let _ = writeln!(
                out,
                "<circle class=\"f{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\"><title>{}, {at:.0} \
                 ranks: {}</title></circle>",
                escaped(&series.name),
                (self.shown)(value.value)
            );
        }
    }
}

fn legend<'s>(out: &mut String, names: impl Iterator<Item = (&'s str, usize, bool)>) {
    out.push_str("<p class=\"legend\">");
    for (name, colour, is_line) in names {
        let class = if is_line { " line" } else { "" };
        let _ = write!(
            out,
            "<span><i class=\"b{}{class}\"></i>{}</span>",
            colour % COLOURS,
            escaped(name)
        );
    }
    out.push_str("</p>");
}

/// A bar: its parts by colour, and a whisker.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) parts: Vec<(usize, f64)>,
    /// Ends of the interval of the first part.
    pub(super) interval: Option<(f64, f64)>,
    pub(super) text: String,
}

/// Horizontal bars from 0 to `most`.
pub(super) fn bars(out: &mut String, title: &str, names: &[&str], most: f64, bars: &[Bar]) {
    const ROW: f64 = 26.0;
    const NAME: f64 = 120.0;
    const TEXT: f64 = 156.0;
    let height = ROW * bars.len() as f64 + 6.0;
    let scale = (WIDTH - NAME - TEXT) / most.max(f64::MIN_POSITIVE);
    let _ = writeln!(
        out,
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{}\">",
        escaped(title),
        escaped(title)
    );
    for (at, bar) in bars.iter().enumerate() {
        let top = ROW * at as f64 + 4.0;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            NAME - 8.0,
            top + 14.0,
            escaped(&bar.name)
        );
        let mut left = NAME;
        for &(colour, part) in &bar.parts {
            let width = (part * scale).max(0.0);
            let _ = writeln!(
                out,
                "<rect class=\"f{}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"18\"/>",
                colour % COLOURS
            );
            left += width;
        }
        if let Some((low, high)) = bar.interval {
            let (low, high, middle) = (NAME + low * scale, NAME + high * scale, top + 9.0);
            let _ = writeln!(
                out,
                "<path class=\"whisker\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v8M{high:.1} \
                 {:.1}v8\"/>",
                middle - 4.0,
                middle - 4.0
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - TEXT + 8.0,
            top + 14.0,
            escaped(&bar.text)
        );
    }
    out.push_str("</svg>");
    if names.len() > 1 {
        legend(
            out,
            names
                .iter()
                .enumerate()
                .map(|(at, &name)| (name, at, false)),
        );
    }
    out.push_str("</figure>\n");
}
