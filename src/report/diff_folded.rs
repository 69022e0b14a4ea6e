//! Folded stacks of two sides: `root;frame;frame A B`, the format of `difffolded.pl` of the
//! FlameGraph tools, which `flamegraph.pl` and inferno read. The counts are nanoseconds per step
//! (or per second of wall time), so that runs of different lengths are comparable.

use super::flamegraph::difference::Difference;
use std::io::{self, Write};

/// Writes the own time of every stack, sorted by stack.
///
/// # Errors
/// Those of `out`.
pub fn render(tree: &Difference, out: &mut dyn Write) -> io::Result<()> {
    let mut lines: Vec<(String, u64, u64)> = tree
        .own_times()
        .into_iter()
        .map(|(path, a, b)| {
            let frames: Vec<String> = path.iter().map(|name| name.replace(';', ":")).collect();
            (frames.join(";"), a.round() as u64, b.round() as u64)
        })
        .filter(|&(_, a, b)| a > 0 || b > 0)
        .collect();
    lines.sort_unstable();
    for (stack, a, b) in lines {
        writeln!(out, "{stack} {a} {b}")?;
    }
    Ok(())
}
