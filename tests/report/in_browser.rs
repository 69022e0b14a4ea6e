//! The real speedscope opens what torchspy writes for it; the pictures are left in target/tmp for a
//! look.

use crate::analysis_builder::{Builder, S, user};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use torchspy::report::flamegraph;
use torchspy::report::speedscope::{SpeedscopeOptions, render};
use torchspy::report::view::ViewOptions;

/// What a script of scripts/ that opens files with their own viewer prints; `None` where it skips.
pub(crate) fn checked(script: &str, arguments: &[&Path]) -> Option<String> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let output = Command::new(scripts.join(script)).args(arguments).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.code() == Some(77) {
        println!("{said}");
        return None;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    Some(said)
}

#[test]
fn the_real_speedscope_opens_a_training_run() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let profile = crate::report_profile::training::training();
    let mut svg = File::create(folder.join("training.svg")).unwrap();
    flamegraph::render(&profile, &ViewOptions::default(), &mut svg).unwrap();
    let path = folder.join("training.speedscope.json");
    render(
        &profile,
        &SpeedscopeOptions::default(),
        &mut File::create(&path).unwrap(),
    )
    .unwrap();
    let picture = folder.join("training.speedscope.png");
    let Some(said) = checked("check-speedscope", &[&path, &picture]) else {
        return;
    };
    assert!(said.contains("6 threads"), "{said}");
}

/// What Chromium makes of a drawing whose address asks for a search and a zoom, as inferno's script
/// restores them.
fn open_drawing(svg: &Path, query: &str) -> Option<String> {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--virtual-time-budget=3000",
            "--window-size=1400,500",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", home.path().display()))
        .arg(format!("file://{}?{query}", svg.display()))
        .output();
    match output {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(error) => {
            println!("skipped: chromium: {error}");
            None
        }
    }
}

#[test]
fn search_and_zoom_work_and_matches_are_told_per_thread() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("search.svg");
    let profile = crate::report_profile::training::training();
    let mut svg = Vec::new();
    flamegraph::render(&profile, &ViewOptions::default(), &mut svg).unwrap();
    std::fs::write(&path, &svg).unwrap();
    let matched = |page: &str| {
        let (_, rest) = page.split_once("id=\"matched\"").unwrap();
        rest.split_once('>')
            .unwrap()
            .1
            .split_once('<')
            .unwrap()
            .0
            .to_owned()
    };
    let Some(page) = open_drawing(&path, "s=brgemm") else {
        return;
    };
    // The training thread spends 40 × (50 + 70 + 10) ms in it.
    assert_eq!(
        matched(&page),
        "Matched: 5.20 s in the leftmost matching thread; matches in 2 more"
    );
    // Names are searched, figures and the bar below all threads are not.
    let page = open_drawing(&path, "s=activity:|side%20by%20side").unwrap();
    assert_eq!(matched(&page).trim(), "");

    let drawing = crate::report_profile::svg::Drawing::read(&svg);
    let thread = drawing.roots()[1];
    let page = open_drawing(&path, &format!("x={}&y={}&s=brgemm", thread.x, thread.y)).unwrap();
    assert_eq!(matched(&page), "Matched: 2.80 s");
    let shown = page.matches("<g>").count() + page.matches("<g class=\"\">").count();
    let hidden = page.matches("<g class=\"hide\">").count();
    assert!(hidden > 10 && shown >= 3, "{shown} shown, {hidden} hidden");
}

#[test]
fn details_that_do_not_fit_end_with_an_ellipsis() {
    let mut builder = Builder::trainer();
    let name = "long_".repeat(70);
    builder.ticks(0, 100, S::Running, &[user(&name, 3)]);
    let mut svg = Vec::new();
    flamegraph::render(&builder.profile(), &ViewOptions::default(), &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let (drawing, _) = svg.rsplit_once("</svg>").unwrap();
    let points = "setTimeout(function() { for (var box of frames.children) if (g_to_text(box).indexOf('long_') == 0) \
                  box.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})); }, 500)";
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("details.svg");
    std::fs::write(&path, format!("{drawing}<script>{points}</script></svg>")).unwrap();
    let Some(page) = open_drawing(&path, "") else {
        return;
    };
    let (_, details) = page.split_once("id=\"details\"").unwrap();
    let (_, details) = details.split_once('>').unwrap();
    let (details, _) = details.split_once('<').unwrap();
    assert!(details.starts_with(" long_long_"), "{details}");
    assert!(details.ends_with('…'), "{details}");
    // 1400 pixels of seven or so each.
    let letters = details.chars().count();
    assert!((150..250).contains(&letters), "{letters}: {details}");
}
