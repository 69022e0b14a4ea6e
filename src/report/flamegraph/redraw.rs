//! Adds names, tooltips and a legend to inferno's drawing.
//!
//! inferno keys colours and tooltips by frame name, and draws names unchanged. But here each box
//! has its own tooltip, and names are untrusted. So inferno lays out numbers instead of names, and
//! the numbers are replaced here: no text of the target passes through inferno, and all of it is
//! escaped in one place.

use super::FlamegraphError;
use super::palette::Rgb;
use std::fmt::Write;

/// A colour and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Swatch {
    /// Position in the legend.
    pub(super) order: usize,
    pub(super) name: &'static str,
    pub(super) colour: Rgb,
}

/// Texts of a drawing.
pub(super) struct Wording {
    /// The text of the box below all roots, without quotation marks.
    pub(super) base_caption: &'static str,
    /// The same with an explanation, below the caption.
    pub(super) base_tooltip: &'static str,
    /// Text for matches of a search, as a JavaScript expression: `width` is that of one thread's
    /// matches, ns.
    pub(super) matched: &'static str,
    /// Lines below the legend.
    pub(super) notes: Vec<String>,
}

/// Texts and colour of a box.
pub(super) struct Inscription {
    /// The text of the box.
    pub(super) caption: String,
    /// The tooltip, which starts with the caption.
    pub(super) tooltip: String,
    /// Its colour; `None` for the box below all roots.
    pub(super) swatch: Option<Swatch>,
    /// Whether it is the root of a thread.
    pub(super) is_thread: bool,
}

/// inferno's width of a drawing before scripts adapt it, and of its characters
/// (`DEFAULT_IMAGE_WIDTH`, `FONT_WIDTH`), pixels.
const WIDTH: f64 = 1200.0;
const PADDING: f64 = 10.0;
const LETTER: f64 = 12.0 * 0.59;
const LEGEND_ROW: usize = 18;
/// Width of a window in which the complete head is readable: half of a screen.
pub(super) const NARROW: f64 = 700.0;

/// Changes to inferno's script (flamegraph.js of 0.12): captions are the first line of the tooltip;
/// search uses names and not figures; matches are reported in seconds of one thread, since a share
/// of all threads' time is meaningless; "Search" is visible. `THREADS` is replaced by the positions
/// at which threads start, `BASE` by the caption of the lowest box, `MATCHED` by the expression
/// that shows a width.
const SCRIPT_CHANGES: [(&str, &str); 7] = [
    ("opacity:0.1;", "opacity:0.6;"),
    (
        r#".textContent.replace(/\([^(]*\)$/,"")"#,
        r#".textContent.split("\n")[0]"#,
    ),
    (
        "return (func);",
        r#"return func.indexOf("BASE") === 0 ? null : func.split("\n\n")[0];"#,
    ),
    (
        r#"if (target) details.nodeValue = nametype + " " + g_to_text(target);"#,
        r#"if (target) {
        var whole = nametype + " " + g_to_text(target);
        details.nodeValue = whole;
        var part = (svg.width.baseVal.value - 2 * xpad) / details.parentNode.getComputedTextLength();
        if (part < 1) details.nodeValue = whole.slice(0, Math.floor(whole.length * part) - 1) + "…";
    }"#,
    ),
    (
        "var count = 0;",
        "var count = 0, by_thread = {}, starts = [THREADS];",
    ),
    (
        "count += w;",
        "var thread = starts.filter(function(s) { return s <= x; }).length;\n            \
         by_thread[thread] = (by_thread[thread] || 0) + w;",
    ),
    (
        r#""Matched: " + pct + "%""#,
        r#""Matched: " + (function(threads) {
        var others = threads.length > 1 ? " in the leftmost matching thread; matches in " + (threads.length - 1) + " more" : "";
        var width = by_thread[threads[0]];
        return MATCHED + others;
    })(Object.keys(by_thread))"#,
    ),
];

/// Rewrites inferno's `svg`. `inscription` returns the texts of the box with a number.
pub(super) fn redraw(
    svg: &str,
    wording: &Wording,
    mut inscription: impl FnMut(usize) -> Option<Inscription>,
) -> Result<String, FlamegraphError> {
    let frames_at = svg
        .find("<svg id=\"frames\"")
        .ok_or(FlamegraphError::Layout("no frames"))?;
    let first = svg[frames_at..]
        .find("<g>")
        .map(|at| frames_at + at)
        .ok_or(FlamegraphError::Layout("no boxes"))?;
    let (head, opening, boxes) = (&svg[..frames_at], &svg[frames_at..first], &svg[first..]);

    let mut drawn = String::with_capacity(svg.len() * 3);
    let (mut swatches, mut starts) = (Vec::new(), Vec::<u64>::new());
    let mut rest = boxes;
    while let Some(after) = rest.strip_prefix("<g><title>") {
        let (title, after) = after
            .split_once("</title>")
            .ok_or(FlamegraphError::Layout("no title"))?;
        let (shape, after) = after
            .split_once("<text ")
            .ok_or(FlamegraphError::Layout("no text"))?;
        let (position, after) = after
            .split_once('>')
            .ok_or(FlamegraphError::Layout("no text"))?;
        let (_, after) = after
            .split_once("</text></g>")
            .ok_or(FlamegraphError::Layout("no text"))?;
        let number = title
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok());
        let written = match number {
            Some(number) => inscription(number).ok_or(FlamegraphError::Layout("an unknown box"))?,
            None => Inscription {
                caption: wording.base_caption.to_owned(),
                tooltip: format!("{}\n\n{}", wording.base_caption, wording.base_tooltip),
                swatch: None,
                is_thread: false,
            },
        };
        if written.is_thread {
            starts.push(
                attribute(shape, "fg:x").ok_or(FlamegraphError::Layout("a box without place"))?,
            );
        }
        if let Some(swatch) = written.swatch
            && !swatches.contains(&swatch)
        {
            swatches.push(swatch);
        }
        let caption = fit(
            &written.caption,
            attribute(shape, "width").ok_or(FlamegraphError::Layout("a box without width"))?,
        );
        let _ = write!(
            drawn,
            "<g><title>{}</title>{shape}<text {position}>{}</text></g>",
            escape(&written.tooltip),
            escape(&caption)
        );
        rest = after;
    }
    swatches.sort_unstable();
    let legend = Legend::new(&swatches, &wording.notes);
    // Matches get a line of their own above the details: both may be long.
    let extra = legend.height + LEGEND_ROW;
    let mut head = make_room(head, extra)?;
    starts.sort_unstable();
    let starts: Vec<String> = starts.iter().map(u64::to_string).collect();
    for (from, to) in SCRIPT_CHANGES {
        let to = to
            .replace("THREADS", &starts.join(","))
            .replace("BASE", wording.base_caption)
            .replace("MATCHED", wording.matched);
        head = head.replace(from, &to);
    }
    let opening = opening.replacen("<svg ", &format!("<svg y=\"{extra}\" "), 1);
    Ok([&head, legend.drawing.as_str(), &opening, &drawn, rest].concat())
}

/// `text` cut to fit a box with `percent` of the drawing's width.
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

/// A numeric attribute of a tag, without its `%`.
fn attribute<T: std::str::FromStr>(tag: &str, name: &str) -> Option<T> {
    let (_, value) = tag.split_once(&format!(" {name}=\""))?;
    value.split_once('"')?.0.trim_end_matches('%').parse().ok()
}

/// Makes the drawing `extra` pixels higher, between its head and its boxes.
fn make_room(head: &str, extra: usize) -> Result<String, FlamegraphError> {
    let svg = head.find("<svg ").map(|at| &head[at..]);
    let height: usize = svg
        .and_then(|tag| attribute(tag, "height"))
        .ok_or(FlamegraphError::Layout("no height"))?;
    let details = head
        .split_once("id=\"details\"")
        .and_then(|(_, tag)| attribute::<f64>(tag, "y"));
    let details = details.ok_or(FlamegraphError::Layout("no details"))?;
    let higher = height + extra;
    let mut head = head
        .replace(
            &format!(" height=\"{height}\""),
            &format!(" height=\"{higher}\""),
        )
        .replacen(
            &format!("viewBox=\"0 0 {WIDTH} {height}\""),
            &format!("viewBox=\"0 0 {WIDTH} {higher}\""),
            1,
        );
    // inferno puts the matches below the drawing, which is out of sight in a deep one.
    for (id, row) in [("details", 0), ("matched", LEGEND_ROW)] {
        let Some(at) = head.find(&format!("id=\"{id}\"")) else {
            continue;
        };
        let (before, after) = head.split_at(at);
        let Some((attributes, rest)) = after.split_once(" y=\"") else {
            continue;
        };
        let Some((_, rest)) = rest.split_once('"') else {
            continue;
        };
        head = format!(
            "{before}{attributes} y=\"{:.2}\"{rest}",
            details + (extra - row) as f64
        );
    }
    Ok(head)
}

struct Legend {
    drawing: String,
    height: usize,
}

impl Legend {
    /// One entry for each of `swatches`, in rows below the subtitle, and `notes` below them.
    fn new(swatches: &[Swatch], notes: &[String]) -> Self {
        const TOP: usize = 62;
        let (mut x, mut row) = (PADDING, 0);
        let mut drawing = String::from("<g id=\"legend\">");
        for swatch in swatches {
            let width = 18.0 + (swatch.name.chars().count() as f64 + 3.0) * LETTER;
            if x + width > NARROW - PADDING {
                (x, row) = (PADDING, row + 1);
            }
            let (red, green, blue) = swatch.colour;
            let y = TOP + row * LEGEND_ROW;
            let _ = write!(
                drawing,
                "<rect x=\"{x:.0}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"rgb({red},{green},{blue})\" \
                 stroke=\"rgb(90,90,90)\" stroke-width=\"0.7\"/><text x=\"{:.0}\" y=\"{}\">{}</text>",
                x + 17.0,
                y + 10,
                escape(swatch.name)
            );
            x += width;
        }
        for note in notes {
            row += 1;
            let y = TOP + row * LEGEND_ROW + 10;
            let _ = write!(
                drawing,
                "<text x=\"{PADDING:.0}\" y=\"{y}\">{}</text>",
                escape(note)
            );
        }
        drawing.push_str("</g>");
        Self {
            drawing,
            height: (row + 1) * LEGEND_ROW + 6,
        }
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
