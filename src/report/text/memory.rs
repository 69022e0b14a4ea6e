//! Processes that memory ended, limits that are near, and processes whose memory grows.

use super::format::{counted, percent, place, place_of, seconds};
use super::sentence;
use super::tracks::bytes;
use crate::analysis::Analysis;
use crate::analysis::ends::{End, Reason, SIGBUS};
use crate::analysis::memory_growth::{Cause, Growth, Rate};
use crate::analysis::memory_limits::{LimitOf, MemoryLimit};
use crate::model::containers::GrowingContainer;
use crate::model::facts::Line;
use crate::model::profile::Profile;
use crate::report::label::process_labels;

/// From this part of a limit on it is reported on one screen.
const NEAR: f64 = 0.8;
/// What is further away than this, seconds, is not reported: a month.
pub(super) const FAR_S: f64 = 30.0 * 86_400.0;
/// Most processes that a signal ended.
const MOST_ENDS: usize = 4;

/// Why processes were ended: a sentence for each of the first for which a reason shows.
pub(super) fn ends(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let explained = end_statements(profile, analysis);
    if explained.is_empty() {
        return;
    }
    out.push('\n');
    for (_, statement) in explained.iter().take(MOST_ENDS) {
        sentence(out, "ENDED   ", statement);
    }
    let more = explained.len().saturating_sub(MOST_ENDS) as u64;
    if more > 0 {
        sentence(
            out,
            "ENDED   ",
            &format!("{} more", counted(more, "process")),
        );
    }
}

/// Processes for whose end a reason shows, or a bus error, each with a sentence.
pub(crate) fn end_statements<'a>(
    profile: &Profile,
    analysis: &'a Analysis,
) -> Vec<(&'a End, String)> {
    let labels = process_labels(profile);
    let all = analysis.ends.iter();
    let explained = all.filter(|end| end.reason.is_some() || end.signal == SIGBUS);
    let statement = |end: &'a End| {
        let label = end.process.and_then(|process| labels.get(process.index()));
        let who = match label {
            Some(label) if label.contains("pid ") => label.clone(),
            label => format!(
                "{} (pid {})",
                label.map_or("a process", String::as_str),
                end.pid
            ),
        };
        (end, end_statement(profile, end, &who))
    };
    explained.map(statement).collect()
}

fn end_statement(profile: &Profile, end: &End, who: &str) -> String {
    let at = seconds(end.time_ns.saturating_sub(profile.start_ns));
    let size = |bytes_: u64| bytes(bytes_ as f64);
    let own = end.resident_bytes.map_or(String::new(), |resident| {
        format!("; it had {} itself at the last reading", size(resident))
    });
    match &end.reason {
        Some(Reason::CgroupLimit { path, limit_bytes }) => format!(
            "{who} was killed by the kernel after {at}: out of memory in cgroup {path}, whose limit is {}{own}",
            size(*limit_bytes)
        ),
        Some(Reason::OutOfMemory { path }) => format!(
            "{who} was killed by the kernel after {at}: out of memory, of the machine or of a cgroup above {path}{own}"
        ),
        Some(Reason::MachinePerhaps) => format!(
            "{who} was ended by SIGKILL after {at}, perhaps by the kernel: it killed a process of this machine for lack of memory then{own}"
        ),
        Some(Reason::DevShm {
            used_bytes,
            size_bytes,
            perhaps,
        }) => {
            let why = if *perhaps {
                "perhaps since /dev/shm was full"
            } else {
                "/dev/shm was full"
            };
            format!(
                "{who} was ended by a bus error (SIGBUS) after {at}, {why}: {} of {} at the last readings",
                size(*used_bytes),
                size(*size_bytes)
            )
        }
        None => format!(
            "{who} was ended by a bus error (SIGBUS) after {at}; /dev/shm was not full at the last readings"
        ),
    }
}

/// How near memory came to its limits, and a sentence for each of the first `most` processes whose
/// memory grows. `is_brief`: of limits only those that were near.
pub(super) fn memory(
    out: &mut String,
    profile: &Profile,
    analysis: &Analysis,
    (most, is_brief): (usize, bool),
) {
    let mut text = String::new();
    limits(&mut text, analysis, is_brief);
    growing(&mut text, profile, (&analysis.growing, most), false);
    time_left(&mut text, analysis);
    growing(
        &mut text,
        profile,
        (&analysis.growing_on_devices, most),
        true,
    );
    if !text.is_empty() {
        out.push('\n');
        out.push_str(&text);
    }
}

fn limits(out: &mut String, analysis: &Analysis, is_brief: bool) {
    let is_binding = |at: usize, limit: &MemoryLimit| at == 0 || limit.of == LimitOf::DevShm;
    let all = analysis.limits.iter().enumerate();
    for (_, limit) in all.filter(|(at, limit)| {
        is_binding(*at, limit) && (limit.share() >= NEAR || !is_brief && limit.peak_bytes > 0)
    }) {
        let of = name(limit);
        let (peak, all) = (
            bytes(limit.peak_bytes as f64),
            bytes(limit.limit_bytes as f64),
        );
        let share = percent(limit.share());
        let is_reached = analysis.ends.iter().any(|end| {
            matches!(&end.reason, Some(Reason::CgroupLimit { path, .. })
                if limit.of == LimitOf::Cgroup && *path == limit.path)
        });
        let share = match is_reached {
            true => format!("{share} at a reading, and reached at the end"),
            false => share,
        };
        sentence(
            out,
            "MEMORY  ",
            &format!("of {of} at most {peak} of {all} were in use ({share})"),
        );
    }
}

fn name(limit: &MemoryLimit) -> String {
    match limit.of {
        LimitOf::Cgroup => format!("the limit of cgroup {}", limit.path),
        LimitOf::Machine => "the memory of this machine".to_owned(),
        LimitOf::DevShm => "/dev/shm".to_owned(),
    }
}

/// When the nearest limit is reached, if it goes on like that.
fn time_left(out: &mut String, analysis: &Analysis) {
    let limit = analysis.limits.first();
    let Some((limit, left)) = limit.and_then(|limit| Some((limit, limit.seconds_left?))) else {
        return;
    };
    if left.value > FAR_S {
        return;
    }
    let time = |seconds: f64| span(seconds.min(FAR_S));
    let text = format!(
        "at this rate {} ({}) is reached {} after the end of the recording ({} to {})",
        name(limit),
        bytes(limit.limit_bytes as f64),
        time(left.value),
        time(left.low),
        time(left.high)
    );
    sentence(out, "MEMORY  ", &text);
}

/// `90 s`, `12 min`, `3.4 h`, `5.0 days`.
pub(super) fn span(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

/// `on_devices`: the memory of its tensors there.
fn growing(out: &mut String, profile: &Profile, (all, most): (&[Growth], usize), on_devices: bool) {
    if all.is_empty() {
        return;
    }
    let grows = match on_devices {
        true => "'s tensors on devices grow",
        false => " grows",
    };
    let labels = process_labels(profile);
    for growth in all.iter().take(most) {
        let label = labels.get(growth.process.index());
        let label = label.map_or("process", String::as_str);
        sentence(
            out,
            "MEMORY  ",
            &statement(growth, &format!("{label}{grows}")),
        );
        if let Some(cause) = &growth.cause {
            sentence(
                out,
                "MEMORY  ",
                &cause_statement(profile, cause, on_devices),
            );
        }
        if let Some(container) = &growth.graphs {
            sentence(out, "MEMORY  ", &graphs_statement(container));
        }
    }
    let more = all.len().saturating_sub(most);
    if more > 0 {
        sentence(
            out,
            "MEMORY  ",
            &format!("{} more grow, more slowly", counted(more as u64, "process")),
        );
    }
}

/// `worker 3 grows by 1.2 MB a step (95 %: 1.1 MB to 1.3 MB) and 60 MB an epoch (95 %: …): 80 MB in
/// 60 s`.
fn statement(growth: &Growth, who_grows: &str) -> String {
    let rate = |rate: &Rate, of: &str| {
        let (value, low, high) = (bytes(rate.value), bytes(rate.low), bytes(rate.high));
        format!("{value} {of} (95 %: {low} to {high})")
    };
    let known = [
        (&growth.per_step, "a step"),
        (&growth.per_epoch, "an epoch"),
    ];
    let mut each: Vec<String> = known
        .into_iter()
        .filter_map(|(each, of)| Some(rate(each.as_ref()?, of)))
        .collect();
    if each.is_empty() {
        each.push(rate(&growth.per_second, "a second"));
    }
    let each = each.join(" and ");
    let all = format!("{} in {}", bytes(growth.bytes), seconds(growth.length_ns));
    format!("{who_grows} by {each}: {all}")
}

/// `98 % of it is in kept, a list of main (train.py:29): 45 items a second, of 33 kB each
/// (Tensor)`.
fn cause_statement(profile: &Profile, cause: &Cause, on_devices: bool) -> String {
    match cause {
        Cause::Container(container, share) => {
            // Sizes of items that share memory add up to more.
            let share = match *share {
                ..1.0 => percent(*share),
                _ => "all".to_owned(),
            };
            let each = bytes(container.bytes_of_item(on_devices) as f64);
            format!(
                "{share} of it is held by {}, of {each} each ({}), and never gets shorter",
                container_statement(container),
                container.item_class,
            )
        }
        Cause::Copied(line) => {
            let copied = "it copies memory that it shared with its trainer when it touches it (reading a Python object writes its reference count)";
            match line {
                None => copied.to_owned(),
                Some((line, share)) => format!(
                    "{copied}; {} of its time in your code is at {}",
                    percent(*share),
                    named_line(profile, *line)
                ),
            }
        }
        Cause::Line(line, share) => {
            let at = named_line(profile, *line);
            format!(
                "{} of what was raised, and hardly fell again, was raised at {at}: what it allocates is kept, or leaves gaps that nothing fits in",
                percent(*share)
            )
        }
    }
}

/// `kept, a list of main (train.py:29): it gets 45 items a second`.
fn container_statement(container: &GrowingContainer) -> String {
    let place = match (container.file.as_str(), container.function.as_str()) {
        ("", _) => "of the script".to_owned(),
        (file, "") => format!("of {}", place_of(file, 0)),
        (file, function) => format!("of {function} ({})", place_of(file, container.line)),
    };
    let items = match container.items_per_s() {
        items @ 10.0.. => format!("{items:.0} items a second"),
        items @ 0.1.. => format!("{items:.1} items a second"),
        items => format!("{:.1} items a minute", items * 60.0),
    };
    format!(
        "{}, a {} {place}: it gets {items}",
        container.name, container.class
    )
}

/// `perhaps it is in graphs: losses, a list of main (train.py:29): it gets 45 items a second …`.
fn graphs_statement(container: &GrowingContainer) -> String {
    format!(
        "perhaps it is in graphs: {} ({}) that keep what computed them, and what that saved unless backward() has run over it; how much is not known. detach() or item() frees it",
        container_statement(container),
        container.item_class
    )
}

fn named_line(profile: &Profile, (function, line): Line) -> String {
    let function = profile.function(function);
    function.map_or(String::new(), |function| {
        format!("{} {}", place(function, line), function.name)
    })
}
