//! The flamegraph: what is drawn, how wide, and that nothing a target is called can break the
//! drawing.

use crate::report_profile::svg::Drawing;
use crate::report_profile::{At, Builder, MS, rank, small};
use torchspy::model::category::{Activity, FrameKind, Phase};
use torchspy::model::frame::Partial;
use torchspy::model::profile::{Profile, Role};
use torchspy::report::flamegraph;
use torchspy::report::view::{Idle, ViewOptions};

fn draw(profile: &Profile, options: &ViewOptions) -> Drawing {
    let mut svg = Vec::new();
    flamegraph::render(profile, options, &mut svg).unwrap();
    Drawing::read(&svg)
}

#[test]
fn the_training_thread_is_drawn_with_its_waits_and_the_others_with_their_work() {
    let drawing = draw(&small(), &ViewOptions::default());
    let roots: Vec<(&str, u64)> = drawing
        .roots()
        .iter()
        .map(|root| (root.caption(), root.w))
        .collect();
    assert_eq!(
        roots,
        [
            (
                "rank 0 · MainThread · training thread, 50.0 ms wall time",
                50 * MS
            ),
            (
                "rank 0 · pt_autograd_0 · 30.0 ms active of 50.0 ms",
                30 * MS
            ),
            (
                "DataLoader worker 0 of rank 0 · MainThread · 18.0 ms active of 57.0 ms",
                18 * MS
            ),
        ]
    );
    assert_eq!(
        drawing
            .named("pthread_cond_wait")
            .iter()
            .map(|b| b.w)
            .sum::<u64>(),
        11 * MS
    );

    let everything = draw(
        &small(),
        &ViewOptions {
            idle: Idle::Everywhere,
            ..ViewOptions::default()
        },
    );
    let widths: Vec<u64> = everything.roots().iter().map(|root| root.w).collect();
    assert_eq!(widths, [50 * MS, 50 * MS, 57 * MS]);
}

#[test]
fn boxes_stand_within_their_callers_and_widths_are_time() {
    for options in [
        ViewOptions::default(),
        ViewOptions {
            idle: Idle::Everywhere,
            plumbing: true,
            ..ViewOptions::default()
        },
    ] {
        let drawing = draw(&small(), &options);
        assert_eq!(
            drawing.total,
            drawing.roots().iter().map(|root| root.w).sum::<u64>()
        );
        for inner in drawing.boxes.iter().filter(|b| b.w < drawing.total) {
            let below = drawing
                .boxes
                .iter()
                .find(|b| b.y + 16 == inner.y && b.x <= inner.x && inner.x + inner.w <= b.x + b.w);
            assert!(below.is_some(), "{} has no parent", inner.caption());
        }
    }
}

#[test]
fn no_figure_sums_threads() {
    let drawing = draw(&small(), &ViewOptions::default());
    let base = drawing.boxes.iter().find(|b| b.w == drawing.total).unwrap();
    assert!(
        !base.title.contains(|c: char| c.is_ascii_digit()),
        "{}",
        base.title
    );
    assert!(base.title.contains("no sum of wall time"));
    // Both threads run conv2d; each has its own box with its own time.
    let times: Vec<u64> = drawing
        .named("at::native::conv2d")
        .iter()
        .map(|b| b.w)
        .collect();
    assert_eq!(times.iter().max(), Some(&(30 * MS)), "{times:?}");
    assert_eq!(times.len(), 3);
}

#[test]
fn waiting_for_a_cpu_is_a_leaf_of_its_own() {
    let drawing = draw(&small(), &ViewOptions::default());
    let waits: Vec<_> = drawing
        .named("[cpu_wait]")
        .into_iter()
        .map(|b| b.w)
        .collect();
    assert_eq!(waits.iter().sum::<u64>(), 6 * MS, "{waits:?}");
    let conv = drawing
        .named("at::native::conv2d")
        .into_iter()
        .find(|b| b.w == 30 * MS && b.title.contains("MainThread"))
        .unwrap();
    assert!(conv.title.contains("self: 25.0 ms"), "{}", conv.title);
    assert!(
        conv.title
            .contains("activity: aten_compute 83.3 %, cpu_wait 16.7 %"),
        "{}",
        conv.title
    );
}

#[test]
fn plumbing_is_folded_unless_it_is_asked_for() {
    assert!(
        draw(&small(), &ViewOptions::default())
            .named("c10::Dispatcher::call")
            .is_empty()
    );
    let options = ViewOptions {
        plumbing: true,
        ..ViewOptions::default()
    };
    assert_eq!(
        draw(&small(), &options).named("c10::Dispatcher::call")[0].w,
        30 * MS
    );
}

#[test]
fn partial_stacks_and_guesses_are_marked() {
    let drawing = draw(&small(), &ViewOptions::default());
    let partial = drawing.named("[partial: no_unwind_info]")[0];
    assert_eq!(partial.w, 10 * MS);
    assert!(
        drawing.roots().iter().any(|root| root.y + 16 == partial.y),
        "the marker is at the root end"
    );
    assert!(
        drawing.named("[anonymous]+0x40")[0]
            .title
            .contains("guessed: in 100.0 % of this time")
    );
    assert!(!partial.title.contains("guessed"));
    assert_eq!(drawing.named("[not captured]")[0].w, 7 * MS);
}

#[test]
fn a_tooltip_tells_function_place_share_seconds_category_and_phase() {
    let drawing = draw(&small(), &ViewOptions::default());
    let conv = drawing
        .named("at::native::conv2d")
        .into_iter()
        .max_by_key(|b| (b.title.contains("MainThread"), b.w))
        .unwrap();
    insta::assert_snapshot!(conv.title);
    insta::assert_snapshot!(
        drawing.named("Module._call_impl (torch/nn/modules/module.py:1750)")[0].title
    );
    insta::assert_snapshot!(drawing.roots()[2].title);
}

#[test]
fn the_head_states_command_duration_rate_and_samples() {
    let drawing = draw(&small(), &ViewOptions::default());
    assert_eq!(
        drawing.texts["title"].as_deref(),
        Some("python train.py --lr 0.1 on node1")
    );
    assert_eq!(
        drawing.texts["subtitle"].as_deref(),
        Some("57.0 ms at 100 Hz · 16 thread samples (3 threads, 2 processes)")
    );
}

#[test]
fn every_colour_in_the_drawing_is_in_the_legend_and_no_other() {
    let drawing = draw(&small(), &ViewOptions::default());
    let mut drawn: Vec<&str> = drawing.boxes.iter().map(|b| b.fill.as_str()).collect();
    drawn.sort_unstable();
    drawn.dedup();
    let mut explained: Vec<&str> = drawing
        .legend
        .iter()
        .map(|(fill, _)| fill.as_str())
        .collect();
    explained.sort_unstable();
    assert_eq!(drawn, explained);
    for b in &drawing.boxes[..] {
        if let Some(category) = b
            .title
            .lines()
            .find_map(|line| line.strip_prefix("category: "))
        {
            assert!(
                drawing
                    .legend
                    .contains(&(b.fill.clone(), category.to_owned())),
                "{category}: {}",
                b.fill
            );
        }
    }
    let names: Vec<&str> = drawing
        .legend
        .iter()
        .map(|(_, name)| name.as_str())
        .collect();
    assert!(
        names.contains(&FrameKind::Aten.name()) && !names.contains(&FrameKind::Cuda.name()),
        "{names:?}"
    );
}

#[test]
fn hostile_names_stay_text() {
    let hostile = [
        "</title></g></svg><script>alert(1)</script>",
        "a;b;c 100",
        "]]><!-- & &amp; \" ' \\",
        "\x1b[2J\x00\x07\r\nnewline\ttab \u{202e}gnp.exe \u{ffff}",
        "",
        " ",
        "000000001",
        "_[k]",
        "# comment 12",
        &"std::map<".repeat(40_000),
        &"é\u{fffd}𝕏".repeat(500),
    ];
    let mut builder = Builder::new("python </svg> \x1b]0;x\x07 \u{202e}");
    builder.profile.run.host = "<host>&--".to_owned();
    builder.profile.missing.push("--><x>".to_owned());
    let process = builder.process(rank(0), 7);
    let main = builder.thread(process, 7, "</svg>", true);
    let other = builder.thread(process, 8, "</svg>\n\x1b;\"", false);
    for name in hostile {
        let python = builder.python(name, name, 1, FrameKind::PythonUser);
        let native = builder.native(name, name, name, FrameKind::Native);
        for thread in [main, other] {
            builder.sample(
                thread,
                10 * MS,
                &[At::Python(python, 1), At::Native(native)],
                Phase::User,
                Activity::Python,
            );
        }
    }
    let drawing = draw(&builder.build(), &ViewOptions::default());
    assert_eq!(drawing.scripts, 1);
    assert_eq!(
        drawing.tags,
        [
            "defs",
            "g",
            "linearGradient",
            "rect",
            "script",
            "stop",
            "style",
            "svg",
            "text",
            "title"
        ]
    );
    // Two threads, and for each name and thread a Python and a native box.
    assert_eq!(drawing.boxes.len(), 1 + 2 + hostile.len() * 2 * 2);
    for b in &drawing.boxes {
        assert!(b.title.chars().count() < 12_000, "{}", b.title.len());
        assert!(
            !b.title.contains(|c: char| c.is_control() && c != '\n'),
            "{:?}",
            b.title
        );
        assert!(!b.text.contains(|c: char| c.is_control()), "{:?}", b.text);
    }
    assert_eq!(drawing.total, 2 * 10 * MS * hostile.len() as u64);
}

#[test]
fn with_nothing_to_draw_the_drawing_says_so() {
    for (profile, options) in [
        (Profile::default(), ViewOptions::default()),
        (
            small(),
            ViewOptions {
                threads: Some(regex::Regex::new("no such thread").unwrap()),
                ..ViewOptions::default()
            },
        ),
    ] {
        let drawing = draw(&profile, &options);
        assert!(drawing.boxes.is_empty());
        assert!(
            drawing
                .plain
                .iter()
                .any(|text| text.starts_with("nothing to draw")),
            "{:?}",
            drawing.plain
        );
    }
}

#[test]
fn threads_and_processes_can_be_chosen() {
    let only = |pattern: &str| ViewOptions {
        threads: Some(regex::Regex::new(pattern).unwrap()),
        ..ViewOptions::default()
    };
    assert_eq!(draw(&small(), &only("autograd")).roots().len(), 1);
    assert_eq!(draw(&small(), &only("^rank 0 ·")).roots().len(), 2);
    let options = ViewOptions {
        processes: Some(vec![torchspy::model::ids::ProcessId(1)]),
        ..ViewOptions::default()
    };
    let drawing = draw(&small(), &options);
    assert!(
        drawing.roots().len() == 1
            && drawing.roots()[0]
                .caption()
                .starts_with("DataLoader worker 0")
    );
}

#[test]
fn threads_of_one_name_and_ranks_without_a_number_are_told_apart() {
    let mut builder = Builder::new("python train.py");
    for pid in [10, 20] {
        let process = builder.process(
            Role::Trainer {
                rank: None,
                world_size: None,
                local_rank: None,
            },
            pid,
        );
        for tid in [pid, pid + 1, pid + 2] {
            let thread = builder.thread(process, tid, "python", tid == pid);
            builder.sample(
                thread,
                10 * MS,
                &[At::Partial(Partial::Torn)],
                Phase::User,
                Activity::Python,
            );
        }
    }
    let drawing = draw(&builder.build(), &ViewOptions::default());
    let captions: Vec<&str> = drawing.roots().iter().map(|root| root.caption()).collect();
    assert_eq!(
        captions,
        [
            "trainer (pid 10) · MainThread · training thread, 10.0 ms wall time",
            "trainer (pid 10) · python (tid 11) · 10.0 ms",
            "trainer (pid 10) · python (tid 12) · 10.0 ms",
            "trainer (pid 20) · MainThread · training thread, 10.0 ms wall time",
            "trainer (pid 20) · python (tid 21) · 10.0 ms",
            "trainer (pid 20) · python (tid 22) · 10.0 ms",
        ]
    );
}

#[test]
fn without_lines_a_function_is_one_box() {
    let drawing = draw(
        &small(),
        &ViewOptions {
            lines: false,
            ..ViewOptions::default()
        },
    );
    assert_eq!(drawing.named("train (train.py:10)")[0].w, 40 * MS);
    let drawing = draw(&small(), &ViewOptions::default());
    assert_eq!(drawing.named("train (train.py:12)")[0].w, 30 * MS);
}

#[test]
fn the_same_profile_gives_the_same_bytes() {
    let render = || {
        let mut svg = Vec::new();
        flamegraph::render(&small(), &ViewOptions::default(), &mut svg).unwrap();
        svg
    };
    let first = render();
    for _ in 0..5 {
        assert!(render() == first);
    }
}

#[test]
fn a_stack_without_end_keeps_its_ends_and_impossible_times_are_an_error() {
    let mut builder = Builder::new("python train.py");
    let process = builder.process(rank(0), 1);
    let thread = builder.thread(process, 1, "python", true);
    let down = builder.python("down", "/m.py", 1, FrameKind::PythonUser);
    let leaf = builder.native("leaf", "leaf", "/l.so", FrameKind::Native);
    let mut stack = vec![At::Python(down, 1); 100_000];
    stack.push(At::Native(leaf));
    builder.sample(thread, 10 * MS, &stack, Phase::User, Activity::Python);
    let mut profile = builder.build();
    let drawing = draw(&profile, &ViewOptions::default());
    assert_eq!(drawing.named("[partial: too_deep]").len(), 1);
    assert_eq!(drawing.named("leaf")[0].w, 10 * MS);
    assert!(drawing.boxes.len() < 4200);

    profile.samples = vec![profile.samples[0]; 3];
    for sample in &mut profile.samples {
        sample.weight_ns = u64::MAX;
        sample.queue_ns = u64::MAX;
    }
    let outcome = flamegraph::render(&profile, &ViewOptions::default(), &mut Vec::new());
    assert!(matches!(outcome, Err(flamegraph::FlamegraphError::Times)));
}
