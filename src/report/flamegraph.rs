//! Flame graph: an SVG drawn by inferno, with annotations.
//!
//! Each thread has its own root: the training thread first, with its entire wall time, then the
//! others with the time in which they did something. Widths are seconds of the thread's own time,
//! at the same scale for all. Python frames are distinguished by line, `func (file:line)`, as in
//! py-spy's flame graphs; native frames by function. Roots are at the top (py-spy's "icicle"), and
//! wide boxes on the left.

pub mod difference;
mod palette;
mod redraw;
mod tooltip;
mod tree;

use super::command::shown_command;
use super::label;
use super::view::{View, ViewOptions};
use crate::analysis::gpu_overlay::idle_windows;
use crate::analysis::tracks;
use crate::model::category::FrameKind;
use crate::model::profile::Profile;
use inferno::flamegraph::color::{BackgroundColor, PaletteMap};
use inferno::flamegraph::{Direction, Options, TextTruncateDirection, from_lines};
use std::fmt::Write as _;
use std::io::{self, Write};
use tree::{Node, Tree};

/// Boxes below this share of the drawing's width are omitted: one pixel of a screen of 2,000
/// pixels.
const MIN_SHARE: f64 = 0.0005;

/// inferno adds widths without an overflow check; this bound leaves it room.
const MAX_WIDTH_NS: u64 = u64::MAX >> 1;

/// Why no flame graph was drawn.
#[derive(Debug, thiserror::Error)]
pub enum FlamegraphError {
    /// Writing failed.
    #[error("cannot write the flamegraph: {0}")]
    Write(#[from] io::Error),
    /// The layout of inferno's drawing is not the one that this version of torchspy knows.
    #[error("unexpected layout of inferno's drawing: {0}")]
    Layout(&'static str),
    /// The samples' times add up to more than 200 years: the recording is corrupt.
    #[error("the recording's times are corrupt: they add up to more than 200 years")]
    Times,
}

/// The meaning of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colours {
    /// The kind of code.
    #[default]
    Code,
    /// How idle the process's GPU was at the same time.
    Gpu,
}

/// Draws `profile` as SVG into `out`, coloured by the kind of code. Without samples, the SVG says
/// so.
///
/// # Errors
/// See [`FlamegraphError`].
pub fn render(
    profile: &Profile,
    options: &ViewOptions,
    out: &mut dyn Write,
) -> Result<(), FlamegraphError> {
    render_in(profile, options, Colours::Code, out)
}

/// [`render`] with other colours.
///
/// # Errors
/// See [`FlamegraphError`].
pub fn render_in(
    profile: &Profile,
    options: &ViewOptions,
    colours: Colours,
    out: &mut dyn Write,
) -> Result<(), FlamegraphError> {
    let view = View::new(profile, options);
    let gpus = idle_windows(profile, &tracks::summarize(profile));
    let tree = Tree::build(&view, &gpus);
    if tree.width_ns() > MAX_WIDTH_NS {
        return Err(FlamegraphError::Times);
    }
    let min_ns = (tree.width_ns() as f64 * MIN_SHARE) as u64;
    let boxes = tree.walk(min_ns);
    if boxes.is_empty() {
        return Ok(out.write_all(nothing_to_draw(&view).as_bytes())?);
    }
    let drawn: Vec<Drawn> = boxes
        .iter()
        .map(|&(node, depth)| Drawn {
            depth,
            total_ns: node.total_ns,
            colour: swatch(&view, node, colours).colour,
        })
        .collect();
    let svg = lay_out(title(&view), subtitle(&view), &drawn)?;
    let svg = redraw::redraw(&svg, &wording(), |number| {
        let &(node, _) = boxes.get(number)?;
        Some(redraw::Inscription {
            caption: tooltip::caption(&view, node),
            tooltip: tooltip::tooltip(&view, node),
            swatch: Some(swatch(&view, node, colours)),
            is_thread: node.shown.is_none(),
        })
    })?;
    Ok(out.write_all(svg.as_bytes())?)
}

fn kind(view: &View<'_>, node: &Node) -> FrameKind {
    node.shown
        .map_or(FrameKind::Marker, |shown| view.kind(shown))
}

fn swatch(view: &View<'_>, node: &Node, colours: Colours) -> redraw::Swatch {
    match colours {
        Colours::Code => {
            let kind = kind(view, node);
            redraw::Swatch {
                order: kind as usize,
                name: kind.name(),
                colour: palette::colour(kind),
            }
        }
        Colours::Gpu => {
            let idle = palette::Idle::of(node.gpu_idle.as_ref().map(|part| part.share()));
            redraw::Swatch {
                order: idle as usize,
                name: idle.name(),
                colour: idle.colour(),
            }
        }
    }
}

/// The box below all roots is no sum, and its text must not suggest one.
fn wording() -> redraw::Wording {
    redraw::Wording {
        base_caption: "threads side by side, one scale (click: show all)",
        base_tooltip: "Each box below is one thread. Widths are that thread's own time; this bar is no sum of wall time.",
        matched: r#"(width / 1e9).toFixed(2) + " s""#,
        notes: vec!["host time; the width of a box is seconds of its own thread".to_owned()],
    }
}

/// A box without a position yet.
struct Drawn {
    depth: usize,
    total_ns: u64,
    colour: palette::Rgb,
}

/// inferno's drawing of `boxes`, each before its children, with their numbers as names.
fn lay_out(title: String, subtitle: String, boxes: &[Drawn]) -> Result<String, FlamegraphError> {
    let mut colours = PaletteMap::default();
    // The box that inferno draws below all others has an empty name.
    colours.insert("", palette::colour(FrameKind::Marker).into());
    let mut lines = Vec::with_capacity(boxes.len());
    let mut path: Vec<String> = Vec::new();
    for (number, each) in boxes.iter().enumerate() {
        // Of equal width, so that the order of names, which inferno checks, is the order of
        // numbers.
        let name = format!("{number:09}");
        colours.insert(&name, each.colour.into());
        path.truncate(each.depth);
        path.push(name);
        let drawn_children = boxes[number + 1..]
            .iter()
            .take_while(|below| below.depth > each.depth);
        let children_ns = drawn_children
            .filter(|below| below.depth == each.depth + 1)
            .map(|child| child.total_ns);
        let own_ns = each
            .total_ns
            .saturating_sub(children_ns.fold(0, u64::saturating_add));
        if own_ns > 0 {
            lines.push(format!("{} {own_ns}", path.join(";")));
        }
    }
    let mut inferno = Options::default();
    inferno.title = title;
    inferno.subtitle = Some(subtitle);
    inferno.count_name = "ns".to_owned();
    inferno.name_type = String::new();
    inferno.direction = Direction::Inverted;
    inferno.text_truncate_direction = TextTruncateDirection::Right;
    inferno.bgcolors = Some(BackgroundColor::Flat((255, 255, 255).into()));
    inferno.min_width = 0.0;
    inferno.no_sort = true;
    inferno.palette_map = Some(&mut colours);
    let mut svg = Vec::new();
    from_lines(&mut inferno, lines.iter().map(String::as_str), &mut svg)?;
    String::from_utf8(svg).map_err(|_| FlamegraphError::Layout("not UTF-8"))
}

/// Characters of a title, of the host in it, and of a subtitle, that fit into [`redraw::NARROW`]
/// pixels: inferno's titles have 17 pixels.
const TITLE: usize = (redraw::NARROW / (17.0 * 0.59)) as usize;
const HOST: usize = 20;
const SUBTITLE: usize = (redraw::NARROW / (12.0 * 0.59)) as usize - 2;

/// `torchspy · python train.py`, and the host, which distinguishes drawings of several nodes.
fn title(view: &View<'_>) -> String {
    let run = &view.profile().run;
    let command = if run.command.is_empty() {
        format!("pid {}", run.pid)
    } else {
        shown_command(&run.command, TITLE - HOST)
    };
    let host = if run.host.is_empty() {
        String::new()
    } else {
        format!(" on {}", label::clean(&run.host, HOST - " on ".len()))
    };
    format!("{}{host}", label::clean(&command, TITLE - HOST))
}

/// Duration, rate, samples, and what the widths mean.
fn subtitle(view: &View<'_>) -> String {
    let profile = view.profile();
    let samples = profile
        .samples
        .iter()
        .map(|sample| u64::from(sample.ticks))
        .fold(0, u64::saturating_add);
    let mut text = format!(
        "{} at {} Hz · {} thread samples ({}, {})",
        label::duration(profile.end_ns.saturating_sub(profile.start_ns)),
        profile.run.rate_hz,
        label::count(samples),
        label::counted(profile.threads.len() as u64, "thread"),
        label::counted(profile.processes.len() as u64, "process")
    );
    if !profile.missing.is_empty() {
        let _ = write!(
            text,
            " · incomplete: {}",
            label::clean(&profile.missing.join("; "), 60)
        );
    }
    label::clean(&text, SUBTITLE)
}

fn nothing_to_draw(view: &View<'_>) -> String {
    let text =
        |y: u32, text: &str| format!("<text x=\"10\" y=\"{y}\">{}</text>", redraw::escape(text));
    format!(
        "<?xml version=\"1.0\" standalone=\"no\"?><svg version=\"1.1\" width=\"1200\" height=\"90\" \
         xmlns=\"http://www.w3.org/2000/svg\" font-family=\"monospace\" font-size=\"13\">{}{}{}</svg>\n",
        text(24, &title(view)),
        text(46, &subtitle(view)),
        text(
            72,
            "nothing to draw: no thread that was asked for has a sample (--thread-name and --idle choose what is drawn)"
        )
    )
}
