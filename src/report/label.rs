//! Labels of processes, threads and frames in drawings. Names come from the target and are
//! untrusted: every text returned from here is free of control bytes and bounded in length.

use crate::model::profile::{Function, Profile, ProfileProcess, Role};
use crate::model::text::notebook_cell;
pub use crate::model::text::package_path;
use rustc_hash::FxHashMap;
use std::borrow::Cow;

/// Longest name in a box or a line of a list, characters.
pub const SHORT: usize = 200;
/// Longest name in a tooltip or a machine-read file, characters.
pub const LONG: usize = 4000;

/// `text` without control characters, characters that reorder text, and characters that XML 1.0
/// forbids; at most `max` characters.
pub fn clean(text: &str, max: usize) -> String {
    let mut cleaned = String::with_capacity(text.len().min(max));
    for (count, character) in text.chars().enumerate() {
        if count + 1 >= max && text.len() > cleaned.len() + character.len_utf8() {
            cleaned.push('…');
            break;
        }
        cleaned.push(if is_harmless(character) {
            character
        } else {
            '\u{fffd}'
        });
    }
    cleaned
}

fn is_harmless(character: char) -> bool {
    // Bidirectional controls can make a name read as another one ("trojan source", CVE-2021-42574).
    let reorders = matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    // XML 1.0, production 2: no controls, no U+FFFE and U+FFFF.
    !character.is_control() && !reorders && !matches!(character, '\u{fffe}' | '\u{ffff}')
}

/// The last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/')
        .find(|part| !part.is_empty())
        .unwrap_or(path)
}

/// Whether a function is the start code of the C library or the program, at the root of every
/// stack. It has no symbol in a stripped library.
pub fn is_start(file: &str, name: &str) -> bool {
    const NAMES: &[&str] = &["_start", "start_thread", "clone", "clone3", "__clone3"];
    let library = file_name(file);
    let is_libc = library.starts_with("libc.so") || library.starts_with("libpthread");
    NAMES.contains(&name)
        || (is_libc && (name.contains("+0x") || name.starts_with("__libc_start_")))
}

/// A Python file for a box: packages with their path, scripts by their file name.
pub fn short_file(file: &str) -> &str {
    let package = package_path(file);
    if package.len() < file.len() {
        package
    } else {
        file_name(file)
    }
}

/// [`short_file`]; a cell of a notebook by its number.
pub(crate) fn shown_file(file: &str) -> Cow<'_, str> {
    notebook_cell(file).map_or(Cow::Borrowed(short_file(file)), Cow::Owned)
}

/// A function for a box: `forward (torch/nn/modules/conv.py:554)`, or the native function's short
/// name.
pub fn function_label(function: &Function, line: u32) -> String {
    label_in(function, &clean(&shown_file(&function.file), SHORT), line)
}

/// The same, with the complete path of its file.
pub fn full_function_label(function: &Function, line: u32) -> String {
    label_in(function, &clean(&function.file, LONG), line)
}

fn label_in(function: &Function, file: &str, line: u32) -> String {
    if !function.is_python {
        return clean(&function.short_name, SHORT);
    }
    let name = clean(&function.name, SHORT);
    match (file.is_empty(), line) {
        (true, _) => name,
        (false, 0) => format!("{name} ({file})"),
        (false, line) => format!("{name} ({file}:{line})"),
    }
}

/// The label of each process: `rank 0`, `DataLoader worker 1 of rank 0`; with the pid if two labels
/// would be equal.
pub fn process_labels(profile: &Profile) -> Vec<String> {
    let plain: Vec<String> = profile
        .processes
        .iter()
        .map(|process| role_label(profile, process))
        .collect();
    let mut seen = FxHashMap::<&str, u32>::default();
    for label in &plain {
        *seen.entry(label).or_default() += 1;
    }
    let labels = plain.iter().zip(&profile.processes);
    labels
        .map(|(label, process)| match seen.get(label.as_str()) {
            Some(2..) => format!("{label} (pid {})", process.info.pid),
            _ => label.clone(),
        })
        .collect()
}

fn role_label(profile: &Profile, process: &ProfileProcess) -> String {
    match process.role {
        Role::Launcher => "launcher".to_owned(),
        Role::Trainer {
            rank: Some(rank), ..
        } => format!("rank {rank}"),
        Role::Trainer { rank: None, .. } => "trainer".to_owned(),
        Role::DataLoaderWorker { number, trainer } => {
            let trainer = trainer.and_then(|id| profile.process(id));
            match trainer.map(|trainer| trainer.role) {
                Some(Role::Trainer {
                    rank: Some(rank), ..
                }) => format!("DataLoader worker {number} of rank {rank}"),
                _ => format!("DataLoader worker {number}"),
            }
        }
        Role::Other => {
            let name = process
                .info
                .command
                .first()
                .map_or(process.info.exe.as_str(), String::as_str);
            match file_name(name) {
                "" => format!("process {}", process.info.pid),
                name => clean(name, 40),
            }
        }
    }
}

/// A length of time for people: `12.3 s`, `4.56 ms`, `7.8 µs`.
pub fn duration(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    let (value, unit) = match ns {
        0 => return "0 s".to_owned(),
        1_000_000_000.. => (seconds, "s"),
        1_000_000.. => (seconds * 1e3, "ms"),
        _ => (seconds * 1e6, "µs"),
    };
    match value {
        100.0.. => format!("{value:.0} {unit}"),
        10.0.. => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

/// A share of `whole` for people: `12.3 %`, `< 0.1 %`.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".to_owned();
    }
    let percent = 100.0 * part as f64 / whole as f64;
    if percent < 0.1 {
        "< 0.1 %".to_owned()
    } else {
        format!("{percent:.1} %")
    }
}

/// A count with commas: `12,345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with a noun: `1 thread`, `1,234 processes`.
pub fn counted(number: u64, noun: &str) -> String {
    let ending = match (number, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {noun}{ending}", count(number))
}

/// Numbers as ranges: `0-2, 4`.
pub fn ranges(numbers: &mut [u32]) -> String {
    numbers.sort_unstable();
    let runs = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let words = runs.filter_map(|run| match run {
        [only] => Some(only.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
        [] => None,
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_follow_each_other_are_ranges() {
        assert_eq!(ranges(&mut [5, 0, 1, 2, 4, 7]), "0-2, 4-5, 7");
        assert_eq!(ranges(&mut [3]), "3");
    }

    #[test]
    fn hostile_text_is_neutral_and_bounded() {
        assert_eq!(
            clean("a\x1b[31m\nb\u{202e}c\u{ffff}", 50),
            "a\u{fffd}[31m\u{fffd}b\u{fffd}c\u{fffd}"
        );
        assert_eq!(clean("abcdef", 6), "abcdef");
        assert_eq!(clean("abcdefg", 6), "abcde…");
        assert_eq!(clean(&"é".repeat(10_000), 100).chars().count(), 100);
        assert_eq!(clean("", 10), "");
    }

    #[test]
    fn paths_are_shortened_from_the_package_on() {
        assert_eq!(
            short_file("/v/lib/python3.11/site-packages/torch/nn/m.py"),
            "torch/nn/m.py"
        );
        assert_eq!(
            short_file("/usr/lib/python3.11/json/decoder.py"),
            "json/decoder.py"
        );
        assert_eq!(short_file("/home/u/train.py"), "train.py");
        assert_eq!(
            short_file("<frozen importlib._bootstrap>"),
            "<frozen importlib._bootstrap>"
        );
        assert_eq!(package_path("/home/u/train.py"), "/home/u/train.py");
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(duration(12_345_000_000), "12.3 s");
        assert_eq!(duration(4_560_000), "4.56 ms");
        assert_eq!(duration(7_800), "7.80 µs");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(1, 100_000), "< 0.1 %");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(123), "123");
        assert_eq!(counted(1, "process"), "1 process");
        assert_eq!(counted(2, "process"), "2 processes");
        assert_eq!(counted(0, "thread"), "0 threads");
    }
}
