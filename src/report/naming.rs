//! Default names of output files: script, host, rank, pid and time, so that ranks on a shared file
//! system and successive runs get different names. (Files must still be opened exclusively: pids
//! and clocks may collide.)

use super::label::file_name;
use crate::model::profile::Profile;
use crate::model::seconds;

/// Maximum length of a part that comes from outside, bytes. Five parts stay far below the 255 bytes
/// of a file name.
const PART: usize = 48;

/// The facts in an output's name.
#[derive(Clone, Copy, Debug)]
pub struct NameParts<'a> {
    /// The target's command line.
    pub command: &'a [String],
    /// The host's name.
    pub host: &'a str,
    /// The target's rank; `None` if it has none.
    pub rank: Option<u32>,
    /// The target's pid.
    pub pid: i32,
    /// Wall clock at the start, ns since 1970.
    pub started_wall_ns: u64,
}

/// `torchspy-train-node1-rank0-4242-20261121T010203Z`: a file name without its extension. ASCII
/// letters, digits, `.`, `_` and `-` only.
pub fn base_name(parts: &NameParts<'_>) -> String {
    let mut name = String::from("torchspy");
    for part in [script(parts.command), short_host(parts.host)] {
        let part = safe_part(part);
        if !part.is_empty() {
            name.push('-');
            name.push_str(&part);
        }
    }
    if let Some(rank) = parts.rank {
        name.push_str(&format!("-rank{rank}"));
    }
    format!("{name}-{}-{}", parts.pid, utc(parts.started_wall_ns))
}

/// The host's name without its domain.
pub fn short_host(host: &str) -> &str {
    host.split('.').next().unwrap_or_default()
}

/// What a command line runs, without folder and extension: `train` for `python -u dir/train.py --lr
/// 1`, `pkg.main` for `python -m pkg.main`, `torchrun` for a launcher that names no script.
fn script(command: &[String]) -> &str {
    let Some(program) = command.first() else {
        return "";
    };
    let is_interpreter = |word: &str| {
        let mut names = ["python", "pypy"].into_iter();
        names.any(|name| file_name(word).starts_with(name))
    };
    let mut is_python = is_interpreter(program);
    let mut arguments = command.iter().skip(1);
    while let Some(argument) = arguments.next() {
        // Behind a launcher: `mpirun -np 2 python -m pkg`.
        is_python |= is_interpreter(argument);
        match python_option(argument) {
            Some(('c', _)) if is_python => return "command",
            Some(('m', rest)) if is_python || rest.is_empty() => {
                let module = if rest.is_empty() {
                    arguments.next().map_or("", String::as_str)
                } else {
                    rest
                };
                // Other programs have an option of this name, too.
                if is_python || is_module(module) {
                    return module;
                }
                continue;
            }
            _ => {}
        }
        let name = file_name(argument);
        if let Some(stem) = name.strip_suffix(".py") {
            // The folder of `package/__main__.py` is the more useful name.
            return match argument.strip_suffix("/__main__.py") {
                Some(folder) => file_name(folder),
                None => stem,
            };
        }
    }
    file_name(program)
}

/// The option of Python's that ends its options, and the text that follows it in the same word:
/// `-m`, `-mpkg`, `-um` (Python's command line takes switches together, Python/getopt.c).
fn python_option(word: &str) -> Option<(char, &str)> {
    let letters = word.strip_prefix('-')?;
    let at = letters.find(|letter: char| !"bBdEiIOPqRsSuvx".contains(letter))?;
    let option = letters[at..].chars().next()?;
    matches!(option, 'c' | 'm').then(|| (option, &letters[at + 1..]))
}

fn is_module(text: &str) -> bool {
    let mut parts = text.split('.');
    parts.all(|part| {
        let mut letters = part.chars();
        letters
            .next()
            .is_some_and(|first| first.is_alphabetic() || first == '_')
            && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
    })
}

/// A part of a file's name made of text from outside: no separator, not hidden, no `..`; empty if
/// nothing of the text can stay.
pub fn safe_part(part: &str) -> String {
    let mut clean = String::new();
    for character in part.chars() {
        let fits = character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-');
        clean.push(if fits { character } else { '_' });
        if clean.len() == PART {
            break;
        }
    }
    clean.trim_matches(['.', '-', '_']).to_owned()
}

/// The same, of different texts different parts: where it is cut, a hash is at its end.
pub fn distinct_part(part: &str) -> String {
    let clean = safe_part(part);
    if part.chars().count() <= PART {
        return clean;
    }
    let hash = crc32fast::hash(part.as_bytes());
    let start: String = clean.chars().take(PART - 9).collect();
    format!("{start}-{hash:08x}")
}

/// Basic ISO 8601, UTC: `20261121T010203Z`.
pub fn utc(wall_ns: u64) -> String {
    let [year, month, day, hour, minute, second] = civil(wall_ns);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// For people, UTC: `2026-11-21 01:02:03 UTC`.
pub fn utc_time(wall_ns: u64) -> String {
    let [year, month, day, hour, minute, second] = civil(wall_ns);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// What there is of a recording that was still being written; `None` if it was complete.
pub fn so_far(profile: &Profile) -> Option<String> {
    let until_ns = profile.growing_until_ns?;
    let wall_ns = u64::try_from(profile.wall_ns(until_ns)?).unwrap_or(0);
    let (start_ns, _) = profile.whole_ns.unwrap_or((profile.start_ns, until_ns));
    Some(format!(
        "still being recorded: this is what there was at {}, {:.1} s after the start",
        utc_time(wall_ns),
        seconds::of(until_ns.saturating_sub(start_ns))
    ))
}

/// Year, month, day, hour, minute and second in UTC.
fn civil(wall_ns: u64) -> [u64; 6] {
    let seconds = wall_ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01 in 400-year cycles of 146,097 days: "civil_from_days",
    // https://howardhinnant.github.io/date_algorithms.html
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let [hour, minute, second] = [second / 3600, second / 60 % 60, second % 60];
    [year, month, day, hour, minute, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn long_parts_that_differ_late_are_different_names() {
        let long = |seed: u32| format!("experiment-llama-7b-lr0.0003-bs512-warmup2000-seed{seed}");
        let parts = [1, 2].map(|seed| distinct_part(&long(seed)));
        assert_ne!(parts[0], parts[1]);
        for part in parts {
            assert!(
                part.starts_with("experiment-llama-7b") && part.len() == 48,
                "{part}"
            );
        }
        assert_eq!(distinct_part("run7"), "run7");
    }

    #[test]
    fn a_name_tells_script_host_rank_pid_and_time() {
        let command = words("python -u work/train.py --epochs 3");
        let parts = NameParts {
            command: &command,
            host: "node1.cluster.example",
            rank: Some(0),
            pid: 4242,
            started_wall_ns: 1_795_222_923_000_000_000,
        };
        assert_eq!(
            base_name(&parts),
            "torchspy-train-node1-rank0-4242-20261121T010203Z"
        );
        assert_eq!(
            base_name(&NameParts {
                rank: None,
                host: "",
                ..parts
            }),
            "torchspy-train-4242-20261121T010203Z"
        );
    }

    #[test]
    fn scripts_are_found_in_command_lines() {
        for (line, expected) in [
            ("python -m pkg.main --x", "pkg.main"),
            ("python -c pass", "command"),
            ("python3.12 -um pkg.main --x", "pkg.main"),
            ("python -mpkg.main", "pkg.main"),
            ("python -Bcpass", "command"),
            ("torchrun --nproc-per-node 2 -m pkg.fit --c 1", "pkg.fit"),
            ("bash -c train", "bash"),
            ("trainer -\u{2013}config x.yaml run.py", "run"),
            ("mpirun -mca btl tcp python train.py", "train"),
            ("mpirun -np 2 python -um pkg.fit", "pkg.fit"),
            ("/opt/bin/trainer -m 5 -c a.yaml", "trainer"),
            ("torchrun --nproc-per-node 2 /a/b/fit.py", "fit"),
            ("/usr/bin/python3 app/__main__.py", "app"),
            ("/opt/bin/trainer --fast", "trainer"),
        ] {
            assert_eq!(script(&words(line)), expected, "{line}");
        }
        assert_eq!(script(&[]), "");
    }

    #[test]
    fn hostile_parts_stay_a_file_name() {
        let command = vec![
            "python".to_owned(),
            format!("../../{}é\n/x y;.py", "a".repeat(500)),
        ];
        let parts = NameParts {
            command: &command,
            host: "../\0h",
            rank: Some(u32::MAX),
            pid: i32::MIN,
            started_wall_ns: u64::MAX,
        };
        let name = base_name(&parts);
        assert!(name.len() < 200, "{name}");
        assert!(
            name.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)),
            "{name}"
        );
    }

    #[test]
    fn dates_are_right_at_the_ends_of_months_and_years() {
        for (seconds, expected) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_709_164_800, "20240229T000000Z"),
            (1_709_210_096, "20240229T123456Z"),
            (4_107_542_400, "21000301T000000Z"),
            (1_767_225_599, "20251231T235959Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000), expected);
        }
    }
}
