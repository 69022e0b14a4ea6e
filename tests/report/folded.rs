//! Folded stacks: golden output, py-spy's strict pattern, and sums.

use crate::report_profile::{At, Builder, MS, rank, small};
use regex::Regex;
use torchspy::model::category::{Activity, FrameKind, Phase};
use torchspy::model::profile::Profile;
use torchspy::report::folded::{Count, FoldedOptions, PySpyForm, render};
use torchspy::report::view::{Idle, ViewOptions};

fn fold(profile: &Profile, options: &FoldedOptions) -> String {
    let mut text = Vec::new();
    render(profile, options, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn counts(text: &str, root: &str) -> u64 {
    let lines = text.lines().filter(|line| line.starts_with(root));
    lines
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum()
}

#[test]
fn golden() {
    insta::assert_snapshot!(fold(&small(), &FoldedOptions::default()));
}

#[test]
fn golden_python_only() {
    insta::assert_snapshot!(fold(
        &small(),
        &FoldedOptions {
            python_only: true,
            ..FoldedOptions::default()
        }
    ));
}

#[test]
fn golden_microseconds_with_everything() {
    let view = ViewOptions {
        idle: Idle::Everywhere,
        plumbing: true,
        ..ViewOptions::default()
    };
    insta::assert_snapshot!(fold(
        &small(),
        &FoldedOptions {
            view,
            count: Count::Microseconds,
            ..FoldedOptions::default()
        }
    ));
}

#[test]
fn how_the_c_library_starts_a_thread_is_left_out_where_more_is_known() {
    let mut builder = Builder::new("python train.py");
    let process = builder.process(rank(0), 1);
    let thread = builder.thread(process, 1, "python", true);
    let mut libc = |name| At::Native(builder.native(name, name, "/l/libc.so.6", FrameKind::Native));
    let (start, exit, inner) = (libc("libc.so.6+0x10"), libc("exit"), libc("libc.so.6+0x20"));
    for stack in [&[start, exit, inner][..], &[start, inner]] {
        let (phase, activity) = (Phase::User, Activity::NativeOther);
        builder.sample(thread, 10 * MS, stack, phase, activity);
    }
    let profile = builder.build();
    let text = fold(&profile, &FoldedOptions::default());
    let mut stacks: Vec<&str> = text
        .lines()
        .map(|line| line.split_once(';').unwrap().1)
        .collect();
    stacks.sort_unstable();
    let inner = "libc.so.6+0x20 (libc.so.6)";
    let only = format!("libc.so.6+0x10 (libc.so.6);{inner} 1");
    assert_eq!(stacks, [format!("exit (libc.so.6);{inner} 1"), only]);
}

#[test]
fn ticks_are_neither_lost_nor_made_where_a_cpu_wait_splits_samples() {
    let mut builder = Builder::new("python train.py");
    let process = builder.process(rank(0), 1);
    let thread = builder.thread(process, 1, "python", true);
    let main = builder.python("main", "/m.py", 1, FrameKind::PythonUser);
    for index in 0..1000_u32 {
        let line = index % 3;
        builder
            .sample(
                thread,
                10 * MS,
                &[At::Python(main, line)],
                Phase::User,
                Activity::Python,
            )
            .queue_ns = 3 * MS;
    }
    let profile = builder.build();
    let text = fold(&profile, &FoldedOptions::default());
    assert_eq!(counts(&text, "rank 0"), 1000);
    let waited: u64 = text
        .lines()
        .filter(|line| line.contains("[cpu_wait]"))
        .map(|line| counts(line, ""))
        .sum();
    assert_eq!(waited, 300, "{text}");
    // py-spy has no waits for a CPU.
    let options = FoldedOptions {
        py_spy: Some(PySpyForm::default()),
        ..FoldedOptions::default()
    };
    let text = fold(&profile, &options);
    assert_eq!(text.lines().count(), 3, "{text}");
    assert_eq!(counts(&text, "main ("), 1000);
}

#[test]
fn python_only_lines_suit_strict_parsers() {
    let mut builder = Builder::new("python train.py");
    let process = builder.process(rank(0), 1);
    let thread = builder.thread(process, 1, "a;b \"c\"\n", false);
    for (name, file) in [
        ("<lambda> with space", "/a (copy)/m:1.py"),
        ("f;g", "/x;y.py"),
        ("", ""),
        ("\x1b[0m\n", "\n"),
        ("C.f.<locals>.g", "<frozen importlib._bootstrap>"),
    ] {
        let function = builder.python(name, file, 1, FrameKind::PythonUser);
        builder.sample(
            thread,
            10 * MS,
            &[At::Python(function, 3)],
            Phase::User,
            Activity::Python,
        );
    }
    let text = fold(
        &builder.build(),
        &FoldedOptions {
            python_only: true,
            ..FoldedOptions::default()
        },
    );
    // The two patterns of itwinai's reader of py-spy's raw format.
    let frame = Regex::new(r"^([^\s]+) \(([^():]+):(\d+)\)$").unwrap();
    let process = Regex::new("^process [0-9]+:\".*\"$").unwrap();
    assert_eq!(text.lines().count(), 5);
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        assert_eq!(count, "1");
        let mut frames = stack.split(';');
        assert!(process.is_match(frames.next().unwrap()), "{line}");
        assert!(frames.all(|text| frame.is_match(text)), "{line}");
    }
}

#[test]
fn hostile_names_never_split_a_line_or_a_frame() {
    let mut builder = Builder::new("python train.py");
    let process = builder.process(rank(0), 1);
    let thread = builder.thread(process, 1, "x;y\nz", false);
    let python = builder.python("f;g\n1 2\r\x1b[31m", "/a;b\n.py", 1, FrameKind::PythonUser);
    let native = builder.native("op;\u{85}\u{2028}", "op", "/l;\n.so", FrameKind::Native);
    builder.sample(
        thread,
        10 * MS,
        &[At::Python(python, 1), At::Native(native)],
        Phase::User,
        Activity::Python,
    );
    let text = fold(&builder.build(), &FoldedOptions::default());
    assert_eq!(text.lines().count(), 1, "{text:?}");
    assert_eq!(text.matches(';').count(), 2, "{text:?}");
    assert!(
        !text.trim_end().contains(|c: char| c.is_control()),
        "{text:?}"
    );
}
