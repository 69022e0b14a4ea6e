//! The progress of a recording: a line on the terminal, or one last line without a terminal.

use super::messages;
use crate::report::label::counted;
use crate::sampling::session::ProgressSnapshot;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A line where standard error is a terminal; nothing otherwise.
    pub(crate) fn start() -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar }
    }

    /// Updates the line.
    pub(crate) fn update(&self, snapshot: &ProgressSnapshot) {
        if let Some(bar) = &self.bar {
            bar.set_message(line(snapshot));
            bar.tick();
        }
    }

    /// Prints messages above the line.
    pub(crate) fn above(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the line, so that the terminal is free for others.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Shows the line again after [`Progress::clear`].
    pub(crate) fn show_again(&mut self) {
        *self = Self::start();
    }

    /// Ends with a last line.
    pub(crate) fn finish(self, snapshot: &ProgressSnapshot) {
        self.clear();
        messages::note(&format!("recorded {}", text(snapshot, "")));
    }
}

/// `1:02 · 6,120 stacks read · 99.8 Hz · 12 threads in 3 processes · stopped 0.6 %`
fn line(snapshot: &ProgressSnapshot) -> String {
    let now = format!(
        " · {} in {}",
        counted(snapshot.threads as u64, "thread"),
        counted(snapshot.processes as u64, "process")
    );
    text(snapshot, &now)
}

/// `now` is what the target has at this moment: at its end, hardly any threads.
fn text(snapshot: &ProgressSnapshot, now: &str) -> String {
    // Samples of threads that had not moved since the last one reuse its stack.
    let mut text = format!(
        "{} · {} read · {:.1} Hz{now} · stopped {:.1} %",
        clock(snapshot.elapsed),
        counted(snapshot.samples, "stack"),
        snapshot.rate_hz,
        snapshot.stopped_share * 100.0,
    );
    if snapshot.over_budget {
        text.push_str(" · sampling less to stay within --max-stopped");
    }
    text
}

/// `0:07`, `12:34`, `1:00:00`.
fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{rest:02}")
    } else {
        format!("{minutes}:{rest:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line() {
        let mut snapshot = ProgressSnapshot {
            elapsed: Duration::from_millis(62_900),
            ticks: 6290,
            samples: 1_006_120,
            rate_hz: 99.84,
            threads: 12,
            processes: 1,
            stopped_share: 0.0061,
            over_budget: false,
        };
        assert_eq!(
            line(&snapshot),
            "1:02 · 1,006,120 stacks read · 99.8 Hz · 12 threads in 1 process · stopped 0.6 %"
        );
        snapshot.samples = 1;
        assert_eq!(
            text(&snapshot, ""),
            "1:02 · 1 stack read · 99.8 Hz · stopped 0.6 %"
        );
        snapshot.over_budget = true;
        assert!(line(&snapshot).ends_with("--max-stopped"));
        assert_eq!(clock(Duration::from_secs(3661)), "1:01:01");
    }
}
