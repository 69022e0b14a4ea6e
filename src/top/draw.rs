//! The layout of a view, on a screen of any size, with or without colours.

use super::Status;
use super::head::{Kind, head};
use super::rows::{Table, table};
use super::state::{State, View};
use crate::live::Live;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Whether colours may be used (<https://no-color.org>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    Some,
    /// No: bold, underlined and reversed text only.
    None,
}

impl Colours {
    fn style(self, colour: Color) -> Style {
        match self {
            Self::Some => Style::new().fg(colour),
            Self::None => Style::new(),
        }
    }
}

/// Minimum number of rows of the body that devices leave.
const BODY: usize = 6;

/// Draws the screen, and stores in `state` which rows were drawn.
pub fn draw(
    frame: &mut Frame<'_>,
    live: &Live,
    status: &Status,
    state: &mut State,
    colours: Colours,
) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if area.width == 0 || area.height == 0 {
        return;
    }
    if state.help {
        help(buffer, area, colours);
        return;
    }
    let mut y = area.y;
    for (kind, text) in head_lines(live, status, state, area) {
        let style = match kind {
            Kind::Title => Style::new().add_modifier(Modifier::BOLD),
            Kind::Plain => Style::new(),
            Kind::Device => colours.style(Color::Green),
            Kind::Verdict => colours.style(Color::Yellow).add_modifier(Modifier::BOLD),
            Kind::Alert => colours.style(Color::Red).add_modifier(Modifier::BOLD),
        };
        put(buffer, area, y, &text, style);
        y += 1;
    }
    if y >= area.bottom() {
        return;
    }
    tabs(buffer, area, y, state.view, colours);
    y += 1;
    let foot = area.bottom() - 1;
    if y < foot {
        let body = Rect::new(area.x, y, area.width, foot - y);
        let table = table(live, state, area.width);
        draw_table(buffer, body, &table, state, colours);
    }
    if y <= foot {
        put(buffer, area, foot, &foot_text(state), Style::new());
        let whole = Rect::new(area.x, foot, area.width, 1);
        buffer.set_style(whole, Style::new().add_modifier(Modifier::REVERSED));
    }
}

/// The same as lines of text without escape sequences or keys, for terminals that can do no more
/// (`TERM=dumb`).
pub fn plain(live: &Live, status: &Status, state: &mut State, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let lines = head_lines(live, status, state, area);
    let mut text: String = lines
        .iter()
        .filter(|(_, line)| !line.is_empty())
        .map(|(_, line)| format!("{}\n", cut(line, usize::from(width))))
        .collect();
    let body = Rect::new(0, 0, width, height.saturating_sub(lines.len() as u16));
    let mut buffer = Buffer::empty(body);
    let table = table(live, state, width);
    draw_table(&mut buffer, body, &table, state, Colours::None);
    for y in 0..body.height {
        let cells = (0..width).filter_map(|x| buffer.cell((x, y)));
        let line: String = cells.map(|cell| cell.symbol()).collect();
        if !line.trim_end().is_empty() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

/// The head; without its optional lines if the body would be too low.
fn head_lines(live: &Live, status: &Status, state: &State, area: Rect) -> Vec<(Kind, String)> {
    let mut lines = head(live, status, state, usize::from(area.width));
    let most = usize::from(area.height).saturating_sub(BODY).max(1);
    while lines.len() > most {
        let spare = lines.iter().rposition(|line| line.spare);
        let device = lines.iter().rposition(|line| line.kind == Kind::Device);
        match spare.or(device) {
            Some(at) => {
                lines.remove(at);
            }
            None => lines.truncate(most),
        }
    }
    lines
        .into_iter()
        .map(|line| (line.kind, line.text))
        .collect()
}

/// A line of text, cut with an ellipsis.
fn put(buffer: &mut Buffer, area: Rect, y: u16, text: &str, style: Style) {
    let width = usize::from(area.width);
    buffer.set_stringn(area.x, y, cut(text, width), width, style);
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept.push('…');
    kept
}

fn tabs(buffer: &mut Buffer, area: Rect, y: u16, view: View, colours: Colours) {
    let titles = |short: bool| -> Vec<(View, String)> {
        let named = View::ALL.into_iter().map(|each| {
            let (title, key) = each.title();
            let title = match each {
                View::Operators if short => "Ops",
                View::Processes if short => "Procs",
                _ => title,
            };
            (each, format!(" {key} {title} "))
        });
        named.collect()
    };
    let length =
        |names: &[(View, String)]| -> usize { names.iter().map(|(_, name)| name.len()).sum() };
    let mut names = titles(false);
    if length(&names) > usize::from(area.width) {
        names = titles(true);
    }
    let whole = length(&names);
    let mut x = area.x;
    for (each, mut name) in names {
        // On a narrow screen only the selected view has its full name.
        if whole > usize::from(area.width) && each != view {
            name = name.chars().take(6).collect();
        }
        let mut style = colours.style(Color::Cyan);
        if each == view {
            style = style.add_modifier(Modifier::REVERSED | Modifier::BOLD);
        }
        let left = usize::from(area.right().saturating_sub(x));
        (x, _) = buffer.set_stringn(x, y, &name, left, style);
    }
}

fn draw_table(buffer: &mut Buffer, area: Rect, table: &Table, state: &mut State, colours: Colours) {
    let height = usize::from(area.height.saturating_sub(1));
    let keys = table.rows.iter().map(|row| row.key.clone()).collect();
    state.fit(keys, height);
    if table.rows.is_empty() {
        let at = area.y + u16::from(area.height > 1);
        put(buffer, area, at, &table.empty, Style::new());
        return;
    }
    let fixed: usize = table
        .columns
        .iter()
        .map(|column| usize::from(column.width))
        .sum();
    let left = usize::from(area.width).saturating_sub(fixed + table.columns.len() - 1);
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, cell) in table.columns.iter().zip(cells) {
            if !text.is_empty() || column.width == 0 {
                text.push(' ');
            }
            match usize::from(column.width) {
                0 => text.push_str(&cut(cell, left)),
                width => text.push_str(&format!("{:>width$}", cut(cell, width))),
            }
        }
        text
    };
    let titles: Vec<String> = table
        .columns
        .iter()
        .map(|column| match column.sorted {
            true => format!("*{}", column.title),
            false => column.title.clone(),
        })
        .collect();
    let head = line(&mut titles.iter().map(String::as_str));
    let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    put(buffer, area, area.y, &head, bold);
    let rows = table
        .rows
        .iter()
        .enumerate()
        .skip(state.offset)
        .take(height);
    for (y, (at, row)) in (area.y + 1..).zip(rows) {
        let mut style = Style::new();
        if row.bold {
            style = style.add_modifier(Modifier::BOLD);
        }
        if at == state.selected {
            style = colours.style(Color::Cyan).add_modifier(Modifier::REVERSED);
        }
        put(
            buffer,
            area,
            y,
            &line(&mut row.cells.iter().map(String::as_str)),
            style,
        );
        if at == state.selected {
            buffer.set_style(Rect::new(area.x, y, area.width, 1), style);
        }
    }
}

fn foot_text(state: &State) -> String {
    if state.typing {
        return format!(
            "filter: {}_   (Enter keeps it, Esc clears it)",
            state.filter
        );
    }
    if let Some(message) = &state.message {
        return message.clone();
    }
    let keys = "? help  Tab view  1-4 sort  / filter  z pause  R reset  r record  f svg  q quit";
    match state.filter.is_empty() {
        true => keys.to_owned(),
        false => format!("filter: {}   {keys}", state.filter),
    }
}

/// Keys, and the meaning of the columns.
const HELP: [&str; 22] = [
    "torchspy top: keys",
    "",
    "  Tab, Left, Right   next view; or its letter: F functions, L lines, n native,",
    "                     o operators, m modules, a phases, t threads, P processes",
    "  1 2 3 4, < >, F6   sort by %Own, %Total, OwnTime, TotalTime",
    "  /, \\, F3, F4       filter rows by what is typed; Esc shows all",
    "  Up, Down, PgUp …   move; Enter shows a process, folds a module (+ and - too)",
    "  z                  pause: what is shown stays (sampling goes on)",
    "  R                  reset: OwnTime and TotalTime begin anew",
    "  r                  record from now on into a .tspy file; r again ends it",
    "  f                  write a flamegraph of the last minute (.svg)",
    "  Ctrl-Z             suspend torchspy, and let the target go on",
    "  q, F10, Ctrl-C     quit; a program that torchspy started goes on",
    "",
    "Columns, all of the training thread of the process that is shown:",
    "  %Own, %Total       share of the last 5 s of wall time, without and with calls",
    "  OwnTime, TotalTime seconds since the start, or since R",
    "Wall time of the host, not GPU time. steps/s and the verdict: last 30 s;",
    "sparklines of GPUs show a minute. Threads: CPU% of the last second or less,",
    "state and line of the last sample.",
    "",
    "any key goes back",
];

fn help(buffer: &mut Buffer, area: Rect, colours: Colours) {
    for (y, text) in (area.y..area.bottom()).zip(HELP) {
        let style = match text.starts_with(' ') || text.is_empty() {
            true => Style::new(),
            false => colours.style(Color::Yellow).add_modifier(Modifier::BOLD),
        };
        put(buffer, area, y, text, style);
    }
}
