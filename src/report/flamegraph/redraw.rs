//! Gives inferno's drawing its names, tooltips and legend.
//!
//! inferno keys colours and tooltips by frame name, and draws names as they are. Here each box has a tooltip of its own,
//! and names are hostile. So inferno is given numbers for names, lays them out, and the numbers are replaced here: no
//! text of the target passes through inferno, and all of it is escaped in one place.

use super::FlamegraphError;
use super::palette::colour;
use crate::model::category::FrameKind;
use std::fmt::Write;

/// What stands in a box.
pub(super) struct Inscription {
    /// The text of the box.
    pub(super) caption: String,
    /// The tooltip, which starts with the caption.
    pub(super) tooltip: String,
    /// Its colour's meaning.
    pub(super) kind: FrameKind,
}

/// inferno's width of a drawing before scripts adapt it, and of its letters (`DEFAULT_IMAGE_WIDTH`, `FONT_WIDTH`), pixels.
const WIDTH: f64 = 1200.0;
const PADDING: f64 = 10.0;
const LETTER: f64 = 12.0 * 0.59;
const LEGEND_ROW: usize = 18;

/// The box below all roots adds nothing up, and must not read as if it did.
const BASE_CAPTION: &str = "threads side by side, one scale (click: show all)";
const BASE_TOOLTIP: &str = "threads side by side, one scale (click: show all)\n\n\
    Each box below is one thread. Widths are that thread's own time; this bar is no sum of wall time.";

/// Changes to inferno's script (flamegraph.js of 0.12): captions are a tooltip's first line, search looks at names and
/// not at figures, and matches are told in seconds, since their share of all threads' time means nothing.
const SCRIPT_CHANGES: [(&str, &str); 3] = [
    (r#".textContent.replace(/\([^(]*\)$/,"")"#, r#".textContent.split("\n")[0]"#),
    ("return (func);", r#"return (func.split("\n\n")[0]);"#),
    (r#""Matched: " + pct + "%""#, r#""Matched: " + (count / 1e9).toFixed(2) + " s of thread time""#),
];

/// Rewrites inferno's `svg`. `inscription` tells what stands in the box with a number.
pub(super) fn redraw(
    svg: &str,
    mut inscription: impl FnMut(usize) -> Option<Inscription>,
) -> Result<String, FlamegraphError> {
    let frames_at = svg.find("<svg id=\"frames\"").ok_or(FlamegraphError::Layout("no frames"))?;
    let first = svg[frames_at..].find("<g>").map(|at| frames_at + at).ok_or(FlamegraphError::Layout("no boxes"))?;
    let (head, opening, boxes) = (&svg[..frames_at], &svg[frames_at..first], &svg[first..]);

    let mut drawn = String::with_capacity(svg.len() * 3);
    let mut kinds = Vec::new();
    let mut rest = boxes;
    while let Some(after) = rest.strip_prefix("<g><title>") {
        let (title, after) = after.split_once("</title>").ok_or(FlamegraphError::Layout("no title"))?;
        let (shape, after) = after.split_once("<text ").ok_or(FlamegraphError::Layout("no text"))?;
        let (position, after) = after.split_once('>').ok_or(FlamegraphError::Layout("no text"))?;
        let (_, after) = after.split_once("</text></g>").ok_or(FlamegraphError::Layout("no text"))?;
        let number = title.split(' ').next().and_then(|number| number.parse().ok());
        let written = match number {
            Some(number) => inscription(number).ok_or(FlamegraphError::Layout("an unknown box"))?,
            None => Inscription {
                caption: BASE_CAPTION.to_owned(),
                tooltip: BASE_TOOLTIP.to_owned(),
                kind: FrameKind::Marker,
            },
        };
        if number.is_some() && !kinds.contains(&written.kind) {
            kinds.push(written.kind);
        }
        let caption = fit(&written.caption, width_percent(shape)?);
        let _ = write!(
            drawn,
            "<g><title>{}</title>{shape}<text {position}>{}</text></g>",
            escape(&written.tooltip),
            escape(&caption)
        );
        rest = after;
    }
    kinds.sort_unstable();
    let legend = Legend::new(&kinds);
    let head = make_room(head, legend.height)?;
    let opening = opening.replacen("<svg ", &format!("<svg y=\"{}\" ", legend.height), 1);
    Ok([&head, legend.drawing.as_str(), &opening, &drawn, rest].concat())
}

/// `text` cut to a box of `percent` of the drawing.
fn fit(text: &str, percent: f64) -> String {
    let letters = ((percent / 100.0 * (WIDTH - 2.0 * PADDING) - 3.0) / LETTER).max(0.0) as usize;
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    match letters {
        0..3 => String::new(),
        letters => text.chars().take(letters - 2).chain("..".chars()).collect(),
    }
}

fn width_percent(shape: &str) -> Result<f64, FlamegraphError> {
    let width = shape.split_once(" width=\"").and_then(|(_, rest)| rest.split_once("%\""));
    width.and_then(|(width, _)| width.parse().ok()).ok_or(FlamegraphError::Layout("a box without width"))
}

/// Makes the drawing `extra` pixels higher, between its head and its boxes.
fn make_room(head: &str, extra: usize) -> Result<String, FlamegraphError> {
    let number = |text: &str, before: &str, after: &str| -> Option<f64> {
        text.split_once(before)?.1.split_once(after)?.0.parse().ok()
    };
    let missing = FlamegraphError::Layout("no height");
    let Some(height) = number(head, " height=\"", "\"") else { return Err(missing) };
    let Some(details) = head.split_once("id=\"details\"").and_then(|(_, rest)| number(rest, " y=\"", "\"")) else {
        return Err(FlamegraphError::Layout("no details"));
    };
    let mut head = head
        .replace(&format!(" height=\"{height}\""), &format!(" height=\"{}\"", height + extra as f64))
        .replacen(&format!("viewBox=\"0 0 {WIDTH} {height}\""), &format!("viewBox=\"0 0 {WIDTH} {}\"", height + extra as f64), 1);
    // inferno puts the matches below the drawing, which is out of sight in a deep one.
    for id in ["details", "matched"] {
        let Some(at) = head.find(&format!("id=\"{id}\"")) else { continue };
        let (before, after) = head.split_at(at);
        let Some((attributes, rest)) = after.split_once(" y=\"") else { continue };
        let Some((_, rest)) = rest.split_once('"') else { continue };
        head = format!("{before}{attributes} y=\"{:.2}\"{rest}", details + extra as f64);
    }
    for (from, to) in SCRIPT_CHANGES {
        head = head.replace(from, to);
    }
    Ok(head)
}

struct Legend {
    drawing: String,
    height: usize,
}

impl Legend {
    /// One entry for each of `kinds`, in rows below the subtitle.
    fn new(kinds: &[FrameKind]) -> Self {
        const TOP: usize = 62;
        let (mut x, mut row) = (PADDING, 0);
        let mut drawing = String::from("<g id=\"legend\">");
        for &kind in kinds {
            let width = 18.0 + (kind.name().chars().count() as f64 + 3.0) * LETTER;
            if x + width > WIDTH - PADDING {
                (x, row) = (PADDING, row + 1);
            }
            let (red, green, blue) = colour(kind);
            let y = TOP + row * LEGEND_ROW;
            let _ = write!(
                drawing,
                "<rect x=\"{x:.0}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"rgb({red},{green},{blue})\" \
                 stroke=\"rgb(90,90,90)\" stroke-width=\"0.7\"/><text x=\"{:.0}\" y=\"{}\">{}</text>",
                x + 17.0,
                y + 10,
                escape(kind.name())
            );
            x += width;
        }
        drawing.push_str("</g>");
        Self { drawing, height: (row + 1) * LEGEND_ROW + 6 }
    }
}

/// `text` as XML character data. It holds no control characters (`label::clean`) but line feeds.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_changes_match_the_shipped_inferno() {
        let mut svg = Vec::new();
        let mut options = inferno::flamegraph::Options::default();
        inferno::flamegraph::from_lines(&mut options, ["a;b 1"], &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        for (from, _) in SCRIPT_CHANGES {
            assert!(svg.contains(from), "inferno's script has no {from}");
        }
    }

    #[test]
    fn captions_are_cut_to_their_box() {
        assert_eq!(fit("abc", 100.0), "abc");
        assert_eq!(fit("abcdefgh", 3.0), "ab..");
        assert_eq!(fit("abcdefgh", 0.1), "");
    }
}
