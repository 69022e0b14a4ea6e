//! The values of single options: checked, and refused with a hint.

use super::failure::Failure;
use super::monitor::Conditions;
use super::plan::Trigger;
use super::window;
use crate::gpu::collector::GpuOptions;
use crate::gpu::select::GpuChoice;
use crate::os::redaction::Redaction;
use crate::report::page::Editor;
use crate::torch::rank_choice::RankChoice;
use regex::Regex;
use std::path::PathBuf;
use std::time::Duration;

const MAX_RATE_HZ: f64 = 10_000.0;
/// The same where Python frames alone are read, without stops.
const MAX_PYTHON_RATE_HZ: f64 = 100_000.0;
/// A year: a longer time is likely a typing error.
const MAX_DURATION_S: f64 = 365.0 * 86_400.0;

/// The shortest time between two pages of a recording.
const LEAST_SNAPSHOT: Duration = Duration::from_secs(5);

/// `--no-redact`.
pub(super) fn redaction(is_off: bool) -> Redaction {
    match is_off {
        true => Redaction::Off,
        false => Redaction::On,
    }
}

pub(super) fn parse_rate(rate: f64) -> Result<f64, Failure> {
    parse_rate_up_to(MAX_RATE_HZ, rate)
}

/// `--rate`, beside `--nonblocking` and `--no-native`.
pub(super) fn parse_record_rate(
    rate: f64,
    nonblocking: bool,
    no_native: bool,
) -> Result<f64, Failure> {
    match nonblocking && no_native {
        true => parse_rate_up_to(MAX_PYTHON_RATE_HZ, rate),
        false => parse_rate(rate),
    }
}

fn parse_rate_up_to(most: f64, rate: f64) -> Result<f64, Failure> {
    if rate > 0.0 && rate <= most {
        return Ok(rate);
    }
    Err(Failure::usage(
        format!("--rate {rate} is out of range"),
        format!(
            "it is a number of samples per second, above 0 and up to {MAX_RATE_HZ}, \
             with record --nonblocking --no-native up to {MAX_PYTHON_RATE_HZ}"
        ),
    ))
}

pub(super) fn parse_ranks(text: &str) -> Result<RankChoice, Failure> {
    RankChoice::parse(text).map_err(|word| {
        Failure::usage(
            format!("--ranks {text}: `{word}` is no choice of ranks"),
            "ranks and ranges such as 0,8-15, each Nth by every:N, or a share by random:1%; several are joined by commas",
        )
    })
}

pub(super) fn parse_max_stopped(text: &str) -> Result<f64, Failure> {
    if text == "off" {
        return Ok(f64::INFINITY);
    }
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err(Failure::usage(
            format!("--max-stopped {text} is out of range"),
            "it is a share in percent, above 0 and up to 100, or off; --nonblocking never stops anything",
        )),
    }
}

pub(super) fn parse_gpu(
    choice: Option<&str>,
    library: Option<PathBuf>,
) -> Result<GpuOptions, Failure> {
    let choice = choice.map_or(Ok(GpuChoice::Used), GpuChoice::parse);
    let choice = choice.map_err(|word| {
        Failure::usage(
            format!("--gpu: {word}"),
            "all, none, or a list by number or UUID: 0,1 or GPU-8d2c0b1e or MIG-…; nvidia-smi -L lists them",
        )
    })?;
    if let Some(path) = library.as_ref().filter(|path| !path.is_file()) {
        return Err(Failure::usage(
            format!("--nvml-lib {}: there is no such file", path.display()),
            "give the path of libnvidia-ml.so.1; without the option the system's own is taken",
        ));
    }
    Ok(GpuOptions { choice, library })
}

/// `None`: no end.
pub(super) fn parse_duration(text: &str) -> Result<Option<Duration>, Failure> {
    match text {
        "unlimited" => Ok(None),
        _ => parse_duration_of("--duration", text).map(Some),
    }
}

pub(super) fn parse_duration_of(option: &str, text: &str) -> Result<Duration, Failure> {
    match seconds(text) {
        Some(seconds) if seconds > 0.0 && seconds <= MAX_DURATION_S => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(Failure::usage(
            format!("{option} {text} is not a time"),
            "30s, 2m, 1m30s, 1h, 500ms, or a number of seconds such as 1.5",
        )),
    }
}

/// `record --trace` and `--trace-steps`.
pub(super) fn parse_trace(
    time: Option<&str>,
    steps: Option<u32>,
) -> Result<Option<window::Length>, Failure> {
    if steps == Some(0) {
        return Err(Failure::usage(
            "--trace-steps 0 is no step",
            "--trace-steps 3, or --trace 2s for a time",
        ));
    }
    let Some(text) = time else {
        return Ok(steps.map(window::Length::Steps));
    };
    let time = parse_duration_of("--trace", text)?;
    let (shortest, longest) = (window::SHORTEST, window::LONGEST);
    if time < shortest || time > longest {
        return Err(Failure::usage(
            format!("--trace {text}: a window lasts from {shortest:?} to {longest:?}"),
            "--trace 2s: one second of small operators may take 250 MB and a second to write",
        ));
    }
    Ok(Some(window::Length::Time(time)))
}

/// Deviations of `--trigger slow`.
const DEVIATIONS: f64 = 4.0;

/// `record --trigger` and `--trigger-for`.
pub(super) fn parse_trigger(texts: &[String], length: &str) -> Result<Option<Trigger>, Failure> {
    if texts.is_empty() {
        return Ok(None);
    }
    let mut trigger = Trigger {
        folder: None,
        conditions: Conditions::default(),
        length: parse_duration_of("--trigger-for", length)?,
    };
    for text in texts {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let number = || value.parse().ok().filter(|value: &f64| value.is_finite());
        let conditions = &mut trigger.conditions;
        let is_new = match name {
            "file" if !value.is_empty() => trigger.folder.replace(value.into()).is_none(),
            "slow" if value.is_empty() => conditions.slow.replace(DEVIATIONS).is_none(),
            "slow" if number().is_some_and(|value| value > 0.0) => {
                std::mem::replace(&mut conditions.slow, number()).is_none()
            }
            "gpu" if number().is_some_and(|value| value > 0.0 && value <= 100.0) => {
                let share = number().map(|percent| percent / 100.0);
                std::mem::replace(&mut conditions.gpu_below, share).is_none()
            }
            _ => {
                return Err(Failure::usage(
                    format!("--trigger {text} is no trigger"),
                    "file:DIR waits for torchspy trigger DIR, slow or slow:4 for slow steps (deviations above the median), \
                     gpu:30 for a GPU utilization below 30 %",
                ));
            }
        };
        if !is_new {
            return Err(Failure::usage(
                format!("--trigger {name} is given twice"),
                "give it once",
            ));
        }
    }
    Ok(Some(trigger))
}

/// `record --snapshot`.
pub(super) fn parse_snapshot(text: &str) -> Result<Duration, Failure> {
    let every = parse_duration_of("--snapshot", text)?;
    if every >= LEAST_SNAPSHOT {
        return Ok(every);
    }
    Err(Failure::usage(
        format!("--snapshot {text} is too often"),
        format!(
            "a page is made of all that was recorded: {} s at least; torchspy top shows each moment",
            LEAST_SNAPSHOT.as_secs()
        ),
    ))
}

/// The seconds of `90`, `1.5s`, `1m30s`.
fn seconds(text: &str) -> Option<f64> {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let (mut rest, mut sum) = (text.trim(), 0.0);
    loop {
        let (number, behind) = rest.split_at(rest.find(|c| !is_digit(c)).unwrap_or(rest.len()));
        let (unit, next) = behind.split_at(behind.find(is_digit).unwrap_or(behind.len()));
        let scale = match unit.trim() {
            // A number alone: in `1m30` it could be anything.
            "" if rest == text.trim() => 1.0,
            "s" | "sec" => 1.0,
            "ms" => 0.001,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * scale;
        if next.is_empty() {
            return Some(sum);
        }
        rest = next;
    }
}

/// `--editor`.
pub(super) fn parse_editor(text: &str) -> Result<Editor, Failure> {
    let repository = |rest: &str| {
        let (url, revision) = rest.rsplit_once('@')?;
        let url = url.trim_end_matches('/');
        let is_usable = url.starts_with("https://") && !revision.is_empty();
        let name = url.rsplit('/').next().filter(|name| !name.is_empty())?;
        is_usable.then(|| Editor::Repository {
            url: url.to_owned(),
            name: name.trim_end_matches(".git").to_owned(),
            revision: revision.to_owned(),
        })
    };
    let editor = match (text, text.strip_prefix("github:")) {
        ("vscode" | "idea" | "vim", _) => Some(Editor::Local(text.to_owned())),
        (_, Some(rest)) => repository(rest),
        _ => None,
    };
    editor.ok_or_else(|| {
        Failure::usage(
            format!("--editor {text} is not known"),
            "vscode, idea, vim, or github:https://github.com/you/project@REVISION",
        )
    })
}

pub(super) fn parse_regex(text: Option<&str>) -> Result<Option<Regex>, Failure> {
    text.map(Regex::new).transpose().map_err(|error| {
        Failure::usage(
            format!("--thread-name: {error}"),
            "it is a regular expression, matched anywhere in the thread's name: 'pt_autograd|MainThread'",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("30s", 30_000),
            ("2m", 120_000),
            ("1.5", 1_500),
            ("1h", 3_600_000),
            ("20ms", 20),
            ("1m30s", 90_000),
            ("1h 0.5m", 3_630_000),
        ] {
            assert_eq!(
                parse_duration(text).unwrap(),
                Some(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in [
            "", "s", "0", "-1", "1d", "1m30", "m30s", "1.2.3s", "1e99", "nan", "inf",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
