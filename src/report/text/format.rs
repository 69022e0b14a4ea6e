//! Formats numbers and names for people.

use crate::analysis::intervals::Share;
use crate::model::profile::Function;
use crate::model::text::notebook_cell;
pub(crate) use crate::model::text::printable;
pub(crate) use crate::report::label::{count, counted};

/// The beginning of `text`, with `..` if it was cut.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(2)).collect();
    format!("{kept}..")
}

/// The end of `text`, with `..` if it was cut.
pub(crate) fn cut_front(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().skip(length + 2 - width.max(2)).collect();
    format!("..{kept}")
}

/// `12.3 s`, `4 min 05 s`.
pub(crate) fn seconds(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    if seconds < 120.0 {
        return format!("{seconds:.1} s");
    }
    let whole = ns / 1_000_000_000;
    if whole < 7200 {
        format!("{} min {:02} s", whole / 60, whole % 60)
    } else {
        format!("{} h {:02} min", whole / 3600, whole / 60 % 60)
    }
}

/// Seconds as a number for a column.
pub(crate) fn column_seconds(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e9)
}

/// With three digits.
pub(crate) fn milliseconds(ms: f64) -> String {
    if ms < 1.0 {
        format!("{ms:.2}")
    } else if ms < 100.0 {
        format!("{ms:.1}")
    } else {
        count(ms.round() as u64)
    }
}

/// `41 us`, `1.2 ms`.
pub(crate) fn short_time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.0} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// `12.3 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A small share, for which a tenth of a percent is too coarse.
pub(crate) fn fine_percent(share: f64) -> String {
    if share > 0.0 && share < 0.001 {
        return "<0.1 %".to_owned();
    }
    if share > 0.999 && share < 1.0 {
        return format!("{:.2} %", (share * 10_000.0).floor() / 100.0);
    }
    percent(share)
}

/// A share with its interval: `62.0 % +-2.1`; with too few samples only its upper bound: `<0.4 %`.
pub(crate) fn share_of(share: &Share) -> String {
    if share.is_uncertain() {
        let above = ((share.high * 1000.0).ceil() / 10.0).min(100.0);
        return format!("{:>7}", format!("<{above:.1} %"));
    }
    let half = (share.high - share.low) / 2.0 * 100.0;
    format!("{:>7} ±{half:.1}", percent(share.value))
}

/// `12.3`, `1,234`.
pub(crate) fn joules(value: f64) -> String {
    if value < 99.95 {
        format!("{value:.1}")
    } else {
        count(value.round() as u64)
    }
}

/// `train.py:88`, or the last two parts of a longer path.
pub(crate) fn place(function: &Function, line: u32) -> String {
    place_of(&function.file, line)
}

/// The same for a file by its path.
pub(crate) fn place_of(path: &str, line: u32) -> String {
    if let Some(cell) = notebook_cell(path) {
        return match line {
            0 => printable(&cell).into_owned(),
            line => format!("{}:{line}", printable(&cell)),
        };
    }
    let mut parts = path.rsplit('/');
    let file = parts.next().unwrap_or_default();
    let from_package = path.contains("-packages/") || path.contains("/lib/python");
    let file = match parts.next() {
        Some(folder) if from_package && !folder.is_empty() => format!("{folder}/{file}"),
        _ => file.to_owned(),
    };
    let file = printable(&file);
    if line == 0 {
        file.into_owned()
    } else {
        format!("{file}:{line}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(seconds(29_840_000_000), "29.8 s");
        assert_eq!(seconds(605_000_000_000), "10 min 05 s");
        assert_eq!(seconds(10_800_000_000_000), "3 h 00 min");
        assert_eq!(short_time(41_400), "41 us");
        assert_eq!(cut("abcdef", 4), "ab..");
        assert_eq!(cut_front("abcdef", 4), "..ef");
        assert_eq!(fine_percent(0.9999), "99.99 %");
        assert_eq!(fine_percent(0.99999), "99.99 %");
        assert_eq!(fine_percent(0.0002), "<0.1 %");
    }

    #[test]
    fn few_samples_are_only_a_bound() {
        let few = Share {
            value: 0.003,
            low: 0.001,
            high: 0.0111,
            samples: 9,
        };
        assert_eq!(share_of(&few).trim(), "<1.2 %");
        let many = Share { samples: 30, ..few };
        assert_eq!(share_of(&many).trim(), "0.3 % ±0.5");
    }
}
