//! Differential flame graph: the training thread of B, with widths per step, coloured by the change
//! from A.
//!
//! A box that differs beyond noise is red if it takes longer and blue if it takes less; all others
//! are grey, because a tint on every box would invite to read noise. A box that only A has no
//! width; it is listed. Red and blue can be distinguished with every common kind of colour
//! blindness (ColorBrewer's RdBu, Harrower and Brewer 2003).

use super::palette::Rgb;
use super::redraw::{Inscription, Swatch, Wording, redraw};
use super::{Drawn, FlamegraphError, MAX_WIDTH_NS, MIN_SHARE, lay_out};
use crate::analysis::diff::keys::{FileNames, Key, function_name};
use crate::analysis::diff::nodes::{Node, compare_nodes};
use crate::analysis::diff::units::Unit;
use crate::analysis::diff::{Diff, DiffError, Options, Run, Verdict};
use crate::model::ids::StackId;
use crate::model::profile::Profile;
use crate::report::command::shown_command;
use crate::report::label::{self, SHORT};
use crate::report::part::{part_label, unit_name};
use crate::report::view::{Shown, View, ViewOptions};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::Write;

/// Maximum number of boxes: a recording is untrusted input.
const MAX_BOXES: usize = 1_000_000;
/// Maximum number of listed functions that only A has.
const MOST_GONE: usize = 6;

/// A frame with the frames from the root up to it, in both sides.
#[derive(Clone, Debug)]
struct Place {
    /// The text of the box.
    label: String,
    file: String,
    children: Vec<usize>,
}

/// A box for formats that draw it themselves. Times are ms per unit.
#[derive(Debug, Serialize)]
pub(in crate::report) struct ComparedBox<'a> {
    /// 0 for the thread.
    depth: usize,
    label: &'a str,
    file: &'a str,
    a_ms: f64,
    b_ms: f64,
    /// B minus A, and half of its 95 % interval; null if it was seen too seldom.
    difference_ms: Option<(f64, f64)>,
    /// 0 for noise; 1 to 3 slower, 4 to 6 faster, by up to 10 %, 50 %, more.
    change: usize,
}

/// The stacks of both sides' training threads, merged into one tree.
#[derive(Debug)]
pub struct Difference {
    places: Vec<Place>,
    known: FxHashMap<(usize, String), usize>,
    nodes: Vec<Node>,
    unit: Unit,
}

impl Difference {
    /// Merges the stacks of all runs, and compares them. `diff` is the result of
    /// [`compare`](crate::analysis::diff::compare) for the same runs.
    ///
    /// # Errors
    /// As `compare`.
    pub fn new(
        diff: &Diff,
        a: &[Run<'_>],
        b: &[Run<'_>],
        options: &ViewOptions,
        noise: &Options,
    ) -> Result<Self, DiffError> {
        let names = FileNames::new(
            a.iter().map(|run| run.profile),
            b.iter().map(|run| run.profile),
        );
        let options = ViewOptions {
            lines: false,
            ..options.clone()
        };
        let views: Vec<View<'_>> = a
            .iter()
            .chain(b)
            .map(|run| View::new(run.profile, &options))
            .collect();
        let mut tree = Self {
            places: Vec::new(),
            known: FxHashMap::default(),
            nodes: Vec::new(),
            unit: diff.unit,
        };
        tree.place("training thread".to_owned(), String::new());
        let mut groups = |profile: &Profile, run: usize, stack: StackId| {
            let view = views.get(run);
            view.map_or(vec![0], |view| tree.path(profile, view, &names, stack))
        };
        let nodes = compare_nodes(a, b, diff.unit, noise, &mut groups)?;
        tree.nodes = nodes;
        tree.sort();
        Ok(tree)
    }

    fn place(&mut self, label: String, file: String) -> usize {
        self.places.push(Place {
            label,
            file,
            children: Vec::new(),
        });
        self.places.len() - 1
    }

    /// The nodes of a stack, from the thread on.
    fn path(
        &mut self,
        profile: &Profile,
        view: &View<'_>,
        names: &FileNames,
        stack: StackId,
    ) -> Vec<usize> {
        let mut at = 0;
        let mut path = vec![at];
        for frame in view.frames(Some(stack), false) {
            let name = match frame.shown {
                Shown::Code { function, .. } => function_name(profile, names, function),
                other => view.label(other),
            };
            at = match self.known.get(&(at, name.clone())) {
                Some(&known) => known,
                // Deeper frames count for the box reached so far.
                None if self.places.len() >= MAX_BOXES => break,
                None => {
                    let function = view.function(frame.shown);
                    let label = function.map_or_else(
                        || view.label(frame.shown),
                        |function| label::function_label(function, 0),
                    );
                    let file = function
                        .map_or_else(String::new, |function| label::clean(&function.file, SHORT));
                    let new = self.place(label, file);
                    self.places[at].children.push(new);
                    self.known.insert((at, name), new);
                    new
                }
            };
            path.push(at);
        }
        path
    }

    fn sort(&mut self) {
        let width = |nodes: &[Node], at: usize| nodes.get(at).map_or(0.0, |node| node.b.mean_ns);
        for place in &mut self.places {
            let nodes = &self.nodes;
            place
                .children
                .sort_by(|&one, &other| width(nodes, other).total_cmp(&width(nodes, one)));
        }
    }

    /// Every frame path with its own time in A and in B, ns per unit, without the root.
    pub(crate) fn own_times(&self) -> Vec<(Vec<&str>, f64, f64)> {
        let mut rows = Vec::new();
        let mut path: Vec<&str> = Vec::new();
        let mut open: Vec<(usize, usize)> = vec![(0, 0)];
        while let Some((at, depth)) = open.pop() {
            let (Some(place), Some(node)) = (self.places.get(at), self.nodes.get(at)) else {
                continue;
            };
            path.truncate(depth);
            path.push(&place.label);
            let below = |side: fn(&Node) -> f64| -> f64 {
                let children = place
                    .children
                    .iter()
                    .filter_map(|&child| self.nodes.get(child));
                children.map(side).sum()
            };
            let a = node.a.mean_ns - below(|node| node.a.mean_ns);
            let b = node.b.mean_ns - below(|node| node.b.mean_ns);
            rows.push((path.clone(), a.max(0.0), b.max(0.0)));
            open.extend(place.children.iter().rev().map(|&child| (child, depth + 1)));
        }
        rows
    }

    /// Boxes that are wide enough to be visible, each before those that it calls.
    pub(in crate::report) fn listed(&self) -> Vec<ComparedBox<'_>> {
        let boxes = self.boxes().into_iter();
        let listed = boxes.filter_map(|(at, depth)| {
            let (place, node) = (self.places.get(at)?, self.nodes.get(at)?);
            let ms = |ns: f64| ns / 1e6;
            Some(ComparedBox {
                depth,
                label: &place.label,
                file: &place.file,
                a_ms: ms(node.a.mean_ns),
                b_ms: ms(node.b.mean_ns),
                difference_ms: node.difference_ns.map(|(mean, half)| (ms(mean), ms(half))),
                change: swatch(node, self.unit).order,
            })
        });
        listed.collect()
    }

    /// Boxes wide enough to be visible, each before its children.
    fn boxes(&self) -> Vec<(usize, usize)> {
        let width = |at: usize| self.nodes.get(at).map_or(0.0, |node| node.b.mean_ns);
        let least = (width(0) * MIN_SHARE).max(1.0);
        let mut order = Vec::new();
        let mut open = vec![(0, 0)];
        while let Some((at, depth)) = open.pop() {
            if width(at) < least {
                continue;
            }
            order.push((at, depth));
            if let Some(place) = self.places.get(at) {
                open.extend(place.children.iter().rev().map(|&child| (child, depth + 1)));
            }
        }
        order
    }
}

/// Draws the differential flame graph as SVG into `out`.
///
/// # Errors
/// As for a flame graph.
pub fn render(tree: &Difference, diff: &Diff, out: &mut dyn Write) -> Result<(), FlamegraphError> {
    let boxes = tree.boxes();
    let drawn: Vec<Drawn> = boxes
        .iter()
        .filter_map(|&(at, depth)| {
            let node = tree.nodes.get(at)?;
            Some(Drawn {
                depth,
                total_ns: node.b.mean_ns as u64,
                colour: swatch(node, tree.unit).colour,
            })
        })
        .collect();
    if drawn
        .first()
        .is_none_or(|root| root.total_ns > MAX_WIDTH_NS)
    {
        return Err(FlamegraphError::Times);
    }
    let svg = lay_out(title(diff), subtitle(diff), &drawn)?;
    let svg = redraw(&svg, &wording(diff), |number| {
        let &(at, depth) = boxes.get(number)?;
        let (place, node) = (tree.places.get(at)?, tree.nodes.get(at)?);
        Some(Inscription {
            caption: place.label.clone(),
            tooltip: tooltip(place, node, tree.unit),
            swatch: Some(swatch(node, tree.unit)),
            is_thread: depth == 0,
        })
    })?;
    Ok(out.write_all(svg.as_bytes())?)
}

/// Colours from blue to red, light to strong.
const NOISE: Rgb = (236, 236, 236);
const RED: [Rgb; 3] = [(253, 219, 199), (244, 165, 130), (222, 110, 90)];
const BLUE: [Rgb; 3] = [(209, 229, 240), (146, 197, 222), (84, 160, 203)];
/// Up to these relative changes a colour is light, or medium.
const LIGHT: f64 = 0.1;
const MIDDLING: f64 = 0.5;

fn swatch(node: &Node, unit: Unit) -> Swatch {
    let (small, large) = match node.verdict {
        Verdict::Slower => (node.a.mean_ns, node.b.mean_ns),
        _ => (node.b.mean_ns, node.a.mean_ns),
    };
    let change = if small > 0.0 {
        large / small - 1.0
    } else {
        f64::INFINITY
    };
    let strength = match change {
        ..LIGHT => 0,
        ..MIDDLING => 1,
        _ => 2,
    };
    let names = match (node.verdict, unit) {
        (Verdict::Noise, _) => {
            return Swatch {
                order: 0,
                name: "no difference beyond noise",
                colour: NOISE,
            };
        }
        (Verdict::Slower, Unit::Step) => [
            "slower by up to 10 %",
            "slower by up to 50 %",
            "slower by more, or new",
        ],
        (Verdict::Faster, Unit::Step) => [
            "faster by up to 10 %",
            "faster by up to 50 %",
            "faster by more",
        ],
        (Verdict::Slower, Unit::Second) => [
            "share larger by up to 10 %",
            "share larger by up to 50 %",
            "share larger by more, or new",
        ],
        (Verdict::Faster, Unit::Second) => [
            "share smaller by up to 10 %",
            "share smaller by up to 50 %",
            "share smaller by more",
        ],
    };
    let (first, colours) = match node.verdict {
        Verdict::Slower => (1, RED),
        _ => (4, BLUE),
    };
    Swatch {
        order: first + strength,
        name: names[strength],
        colour: colours[strength],
    }
}

fn tooltip(place: &Place, node: &Node, unit: Unit) -> String {
    let ms = |ns: f64| format!("{:.3}", ns / 1e6);
    let unit_text = unit_name(unit);
    let mut text = place.label.clone();
    if !place.file.is_empty() {
        text.push_str(&format!("\n{}", place.file));
    }
    text.push_str(&format!(
        "\n\nB {} {unit_text}, A {}",
        ms(node.b.mean_ns),
        ms(node.a.mean_ns)
    ));
    match node.difference_ns {
        Some((difference, half)) => text.push_str(&format!(
            "\nB - A {:+.3} ±{} (95 %): {}",
            difference / 1e6,
            ms(half),
            node.verdict.name(unit)
        )),
        None => text.push_str("\nseen too seldom to compare (fewer than 30 samples)"),
    }
    text
}

fn title(diff: &Diff) -> String {
    let name = |runs: &[crate::analysis::diff::RunFacts]| {
        let command = runs.first().map(|run| shown_command(&run.command, 45));
        label::clean(&command.unwrap_or_default(), 45)
    };
    let (a, b) = (name(&diff.a), name(&diff.b));
    if a == b {
        format!("{b}: B against A")
    } else {
        format!("B: {b} · against A: {a}")
    }
}

fn subtitle(diff: &Diff) -> String {
    match &diff.step {
        Some(step) => {
            let (relative, half) = step.relative.unwrap_or_default();
            format!(
                "{:.1} against {:.1} ms per step ({:+.1} % ±{:.1}: {})",
                step.b.mean_ns / 1e6,
                step.a.mean_ns / 1e6,
                relative * 100.0,
                half * 100.0,
                step.verdict.name(diff.unit)
            )
        }
        None => "no steps are known: shares of wall time are compared".to_owned(),
    }
}

fn wording(diff: &Diff) -> Wording {
    let gone: Vec<String> = diff
        .rows
        .iter()
        .filter(|row| row.b.samples == 0 && row.verdict == Verdict::Faster)
        .filter(|row| {
            matches!(
                row.key,
                Key::Function { .. } | Key::Native { .. } | Key::Module { .. }
            )
        })
        .map(|row| {
            let name = label::clean(&part_label(&row.key, &row.about), 60);
            format!("{name} ({:.2} ms)", row.a.mean_ns / 1e6)
        })
        .collect();
    let width = unit_name(diff.unit);
    let mut notes = vec![format!(
        "training thread, host time; the width of a box is {width} of B"
    )];
    if !gone.is_empty() {
        let more = gone.len().saturating_sub(MOST_GONE);
        let more = match more {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let listed: Vec<String> = gone.into_iter().take(MOST_GONE).collect();
        for (index, name) in listed.iter().enumerate() {
            let head = if index == 0 { "Gone in B: " } else { "  " };
            notes.push(format!("{head}{name}"));
        }
        if let Some(last) = notes.last_mut() {
            last.push_str(&more);
        }
    }
    let (base_caption, matched) = match diff.unit {
        Unit::Step => (
            "B, per step (click: show all)",
            r#"(width / 1e6).toFixed(2) + " ms per step""#,
        ),
        Unit::Second => (
            "B, per second of wall time (click: show all)",
            r#"(width / 1e6).toFixed(2) + " ms per second""#,
        ),
    };
    Wording {
        base_caption,
        base_tooltip: "Widths are B's. Red takes longer than in A, blue less; grey does not differ beyond noise.",
        matched,
        notes,
    }
}
