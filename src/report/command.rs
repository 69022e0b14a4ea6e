//! Shortens command lines to one line: the program by its file name, and paths by their ends.

use super::label::file_name;
use crate::model::text::printable;

/// `words` as one line of at most `width` characters: `python …/train.py --steps 5`. The program is
/// shortened to its file name; the longest paths lose their folders, as far as needed; if the line
/// is still too long, its end is cut.
pub fn shown_command(words: &[String], width: usize) -> String {
    let mut shown: Vec<String> = words.iter().map(|word| one_line(word)).collect();
    if let Some(program) = shown.first_mut() {
        *program = file_name(program).to_owned();
    }
    while length(&shown) > width {
        let longest = shown
            .iter_mut()
            .skip(1)
            .filter_map(|word| Some((shortened(word)?, word)))
            .max_by_key(|(short, word)| word.chars().count() - short.chars().count());
        match longest {
            Some((short, word)) => *word = short,
            None => break,
        }
    }
    let line = shown.join(" ");
    if line.chars().count() <= width {
        return line;
    }
    let mut cut: String = line.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// A word without control characters; for a text of several lines (`python -c`) the first line that
/// is not trivial.
fn one_line(word: &str) -> String {
    let mut lines = word.lines().filter(|line| !line.trim().is_empty());
    match (lines.next(), lines.next()) {
        (Some(first), Some(_)) => format!("{}…", printable(first.trim())),
        (Some(only), None) => printable(only).into_owned(),
        (None, _) => printable(word).into_owned(),
    }
}

fn length(words: &[String]) -> usize {
    let letters: usize = words.iter().map(|word| word.chars().count()).sum();
    letters + words.len().saturating_sub(1)
}

/// A path, or an option's path (`--data=/a/b`), without its folders. `None` if that is not shorter.
fn shortened(word: &str) -> Option<String> {
    let (option, path) = match word.split_once('=') {
        Some((option, value)) if option.starts_with('-') => (Some(option), value),
        _ => (None, word),
    };
    if path.contains("://") || path.contains(' ') {
        return None;
    }
    let name = file_name(path);
    let short = match option {
        Some(option) => format!("{option}=…/{name}"),
        None => format!("…/{name}"),
    };
    (path.contains('/') && short.chars().count() < word.chars().count()).then_some(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str, width: usize) -> String {
        let words: Vec<String> = line.split('|').map(str::to_owned).collect();
        shown_command(&words, width)
    }

    #[test]
    fn programs_by_name_and_paths_from_their_end() {
        let line =
            "/root/.cache/x/torch-05feec/bin/python|/work/tests/programs/train_cnn.py|--steps|5";
        assert_eq!(
            shown(line, 80),
            "python /work/tests/programs/train_cnn.py --steps 5"
        );
        assert_eq!(shown(line, 40), "python …/train_cnn.py --steps 5");
        assert_eq!(shown(line, 20), "python …/train_cnn.…");
    }

    #[test]
    fn the_longest_path_goes_first() {
        let line = "python|a/train.py|--data=/very/long/path/to/the/images|--out|/tmp/x";
        assert_eq!(
            shown(line, 55),
            "python a/train.py --data=…/images --out /tmp/x"
        );
        assert_eq!(
            shown(line, 44),
            "python a/train.py --data=…/images --out …/x"
        );
    }

    #[test]
    fn what_is_no_path_stays() {
        let line = "python|x.py|https://host/a/very/long/address";
        assert_eq!(shown(line, 30), "python x.py https://host/a/ve…");
        assert_eq!(shown("", 10), "");
        assert_eq!(shown_command(&[], 10), "");
    }

    #[test]
    fn code_is_its_first_line() {
        assert_eq!(
            shown("/usr/bin/python3|-c|\nimport os\nprint()", 80),
            "python3 -c import os…"
        );
        assert_eq!(shown("python|a\x1b[31m", 80), "python a\\x1b[31m");
    }
}
