//! The HTML page: what its data hold, and that the page works in a real browser, whose pictures are
//! left in target/tmp/page for a look.

use crate::analysis_builder::{Builder, F, S, native, user};
use crate::in_browser::checked;
use crate::verdict_scenarios::{Device, Do, Run, Workers};
use crate::{page_memory, page_trace};
use flate2::read::GzDecoder;
use std::collections::BTreeMap;
use std::fs::{create_dir_all, write};
use std::io::Read;
use std::path::Path;
use torchspy::analysis::analyze;
use torchspy::analysis::diff::steps::units_of;
use torchspy::analysis::diff::subject::subject;
use torchspy::analysis::diff::{self, Options};
use torchspy::analysis::progress::steps;
use torchspy::analysis::progress::window::{WindowError, restrict_to};
use torchspy::model::category::Phase;
use torchspy::model::ids::ProcessId;
use torchspy::model::profile::Profile;
use torchspy::report::flamegraph::difference::Difference;
use torchspy::report::json::render_json;
use torchspy::report::page::{PageOptions, Source, compare, render, under_way};
use torchspy::report::view::ViewOptions;
use torchspy::resolve::confidential::Confidential;

/// Two ranks with workers, GPUs and steps.
pub(crate) fn trained() -> Profile {
    trained_with(6)
}

fn trained_with(wait: u64) -> Profile {
    let step: &[(Do, u64)] = &[
        (Do::Wait, wait),
        (Do::Launch, 3),
        (Do::Backward, 4),
        (Do::Sync, 2),
        (Do::Starved, 2),
        (Do::Python, 1),
    ];
    let slowed = Device {
        throttle: 0x4,
        ..Device::busy(0.7)
    };
    let mut run = Run::new("page", None, step).device(Device::busy(0.4));
    run.devices = vec![vec![(200, Device::busy(0.4)), (100, slowed)]];
    run.counted = true;
    run.world = 2;
    run.node = Some(2);
    run.others = vec![step.to_vec()];
    run.workers = Workers {
        count: 2,
        decode: 12,
        idle: 4,
        ..Workers::default()
    };
    run.steps = 60;
    let (mut profile, _) = run.verdict();
    // Rank 0 saves every four seconds.
    for sample in profile.samples.iter_mut().filter(|it| it.thread.0 == 0) {
        if sample.start_ns / 100_000_000 % 40 == 25 {
            sample.phase = Phase::Checkpoint;
        }
    }
    profile
}

/// The page of a comparison of this run with one whose steps wait longer.
fn compared(a: &Profile) -> Vec<u8> {
    let b = trained_with(9);
    let run = |name: &str, profile| {
        let process = subject(profile, None).unwrap();
        let (units, evaluation) = units_of(profile, process);
        diff::Run {
            name: name.to_owned(),
            profile,
            process,
            units,
            evaluation,
        }
    };
    let options = Options::default();
    let (a_run, b_run) = ([run("a.tspy", a)], [run("</script>b.tspy", &b)]);
    let diff = diff::compare(&a_run, &b_run, &options).unwrap();
    let tree = Difference::new(&diff, &a_run, &b_run, &ViewOptions::default(), &options).unwrap();
    let mut bytes = Vec::new();
    let sides = [(a, &analyze(a)), (&b, &analyze(&b))];
    compare::render(sides, &diff, &tree, &mut bytes).unwrap();
    bytes
}

pub(crate) fn page(profile: &Profile) -> String {
    page_with(profile, PageOptions::default())
}

/// With the text of a file, whose lines are all alike.
fn page_with_source(profile: &Profile, file: &str, line: &str) -> String {
    let source = Source {
        file: file.to_owned(),
        text: format!("{line}\n").repeat(100),
        changed: false,
    };
    let sources = Some(vec![source]);
    let editor = None;
    page_with(profile, PageOptions { editor, sources })
}

fn page_with(profile: &Profile, options: PageOptions) -> String {
    let mut bytes = Vec::new();
    render(profile, &analyze(profile), &options, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// The head, and the bytes of the columns.
pub(crate) fn data(page: &str) -> (serde_json::Value, Vec<u8>) {
    use base64::Engine;
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (text, _) = rest.split_once('<').unwrap();
    let packed = base64::prelude::BASE64_STANDARD.decode(text).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    let head = serde_json::from_slice(&bytes[4..4 + length]).unwrap();
    (head, bytes[4 + length..].to_vec())
}

pub(crate) fn column(head: &serde_json::Value, bytes: &[u8], name: &str) -> Vec<u64> {
    let place: Vec<usize> = serde_json::from_value(head["columns"][name].clone()).unwrap();
    let (mut values, mut value, mut shift) = (Vec::new(), 0_u64, 0);
    for byte in &bytes[place[0]..place[0] + place[1]] {
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            values.push(value);
            (value, shift) = (0, 0);
        }
    }
    assert_eq!(values.len(), place[2], "{name}");
    values
}

#[test]
fn the_data_hold_the_report_and_all_time() {
    let profile = trained();
    let (head, bytes) = data(&page(&profile));
    let report: serde_json::Value =
        serde_json::from_str(&render_json(&profile, &analyze(&profile)).unwrap()).unwrap();
    assert_eq!(head["report"], report);
    let mut walls: BTreeMap<usize, u64> = BTreeMap::new();
    let counts = column(&head, &bytes, "thread.samples");
    let mut lengths = column(&head, &bytes, "sample.length").into_iter();
    for (thread, count) in counts.iter().enumerate() {
        let sum = lengths.by_ref().take(*count as usize).sum();
        walls.insert(thread, sum);
    }
    for (thread, us) in walls {
        let own = profile.samples.iter();
        let own = own.filter(|sample| sample.thread.index() == thread);
        let ns: u64 = own.map(|sample| sample.weight_ns).sum();
        assert!(
            us.abs_diff(ns / 1000) <= 1,
            "thread {thread}: {us} us of {ns} ns"
        );
    }
    let ticks: u64 = column(&head, &bytes, "sample.ticks").iter().sum();
    let sampled: u64 = profile
        .samples
        .iter()
        .map(|each| u64::from(each.ticks))
        .sum();
    assert_eq!(ticks, sampled);
    let rows = column(&head, &bytes, "sample.length").len();
    assert!(
        rows < profile.samples.len() / 2,
        "{rows} rows: neighbours are one"
    );
    assert!(!head["verdict"].as_array().unwrap().is_empty());
}

#[test]
fn a_profile_without_samples_is_a_page() {
    let profile = Builder::trainer().profile();
    let (head, _) = data(&page(&profile));
    assert_eq!(head["samples"], 0);
}

#[test]
fn an_interval_holds_the_samples_between_its_ends() {
    let whole = trained();
    let mut part = whole.clone();
    restrict_to(&mut part, 1_005_000_000, 2_000_000_000).unwrap();
    let start_ns = whole.start_ns + 1_005_000_000;
    assert_eq!(
        (part.start_ns, part.end_ns),
        (start_ns, whole.start_ns + 2_000_000_000)
    );
    assert!(
        part.samples
            .iter()
            .all(|sample| sample.start_ns >= start_ns)
    );
    assert!(part.samples.len() < whole.samples.len());
    let behind = restrict_to(&mut part.clone(), u64::MAX / 2, u64::MAX);
    assert_eq!(behind, Err(WindowError::Empty(part.end_ns - part.start_ns)));
}

#[test]
fn a_confidential_page_says_what_is_hashed() {
    let mut profile = trained();
    let statements = |profile: &Profile| data(&page(profile)).0["verdict"].clone();
    let has = |statements: &serde_json::Value| statements.to_string().contains("--confidential");
    assert!(!has(&statements(&profile)));
    Confidential::new("key").hide([&mut profile]);
    let first = &statements(&profile)[0];
    assert_eq!(first[0], "HASHED");
    assert!(
        has(first) && first.to_string().contains("functions, classes"),
        "{first}"
    );
}

/// A page before there is one.
#[test]
fn what_holds_the_place_of_a_page_says_so_and_nothing_of_a_name_is_markup() {
    let mut run = hostile().run;
    run.pid = 4242;
    let files = Some(("a&<b>.tspy".to_owned(), "a.html".to_owned()));
    let text = under_way::render(
        &run,
        &under_way::Expected {
            is_rewritten: false,
            files,
        },
    );
    for says in [
        "<h1>This recording is under way</h1>",
        "(process 4242 on ",
        " UTC. The page takes this place when the recording ends",
        "<pre>torchspy snapshot 4242</pre>",
        "<pre>torchspy convert a&amp;&lt;b>.tspy -o a.html --force</pre>",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
    assert!(
        !text.contains("<script") && !text.contains("<img"),
        "{text}"
    );
    assert!(!text.contains("http"), "it makes no request: {text}");
}

/// Names that would be something else as markup, as a formula, as a path or as a text that is read
/// from right to left.
fn hostile() -> Profile {
    let mut builder = Builder::trainer();
    let names = [
        "</script><script>hacked=1</script>".to_owned(),
        "<img src=x onerror=hacked=1>".to_owned(),
        "\"'><svg onload=hacked=1>".to_owned(),
        "javascript:hacked=1".to_owned(),
        "\u{202e}gnitset\u{2066}\u{200f}".to_owned(),
        "=HYPERLINK(\"http://x\")".to_owned(),
        "@torchspy-data@ @script@ $& $1".to_owned(),
        "x".repeat(100_000),
        "a b\tc\nd\u{7}\u{0}".to_owned(),
        "__proto__".to_owned(),
        "constructor".to_owned(),
    ];
    for (at, name) in names.iter().enumerate() {
        let file = format!("/home/{name}/{at}.py");
        let line = F::Py(file, name.clone(), 3);
        builder.ticks(
            0,
            40 + at as u64,
            S::Running,
            &[user("train", 7), line.clone()],
        );
        let kernel = native(
            &format!("/lib/{name}.so"),
            &format!("at::_ops::{name}::call"),
        );
        builder.ticks(0, 30, S::Running, &[user(name, 9), line, kernel]);
    }
    let mut profile = builder.profile();
    profile.run.host = names[1].clone();
    profile.run.command = names[..5].to_vec();
    profile.missing.push(names[0].clone());
    profile.threads[0].name = names[1].clone();
    profile
}

/// Stacks of which 50,000 boxes are drawn.
fn deep() -> Profile {
    let mut builder = Builder::trainer();
    for branch in 0..2500_u32 {
        let mut stack = vec![user("train", 1), user(&format!("part_{}", branch % 50), 2)];
        stack.extend((0..20).map(|depth| user(&format!("f{branch}_{depth}"), depth)));
        builder.ticks(0, 1, S::Running, &stack);
    }
    builder.profile()
}

#[test]
fn names_are_data_and_not_markup() {
    let page = page(&hostile());
    assert_eq!(
        page.matches("<script").count(),
        2,
        "the data, and the script"
    );
    assert_eq!(page.matches("</script>").count(), 2);
    let (before, _) = page.split_once("id=\"data\">").unwrap();
    let (_, title) = before.split_once("<title>").unwrap();
    let (title, _) = title.split_once("</title>").unwrap();
    assert!(
        !title.contains('<') && !title.contains('\u{202e}'),
        "{title}"
    );
    assert!(
        page.len() < 600_000,
        "a long name is cut: {} bytes",
        page.len()
    );
}

/// A run whose first steps compile, and reports on intervals that begin with it, within these
/// steps, and have no others.
fn starts(folder: &Path) {
    let mut run = trained();
    let listed = steps(&run, ProcessId(0));
    let (first, last) = (listed[0], listed[7]);
    let compiling = first.start_ns..last.end_ns;
    for sample in run.samples.iter_mut().filter(|it| it.thread.0 == 0) {
        if compiling.contains(&sample.start_ns) {
            sample.phase = Phase::Compile;
        }
    }
    let json = |profile: &Profile| render_json(profile, &analyze(profile)).unwrap();
    write(folder.join("starts.html"), page(&run)).unwrap();
    write(folder.join("starts.json"), json(&run)).unwrap();
    let at = |step: usize| listed[step].start_ns - run.start_ns + 30_000_000;
    let mut list = String::new();
    for (number, (from_ns, to_ns)) in [(0, at(12)), (at(3), at(20)), (at(2), at(6))]
        .into_iter()
        .enumerate()
    {
        let mut part = run.clone();
        restrict_to(&mut part, from_ns, to_ns).unwrap();
        let file = folder.join(format!("starts-{number}.json"));
        write(&file, json(&part)).unwrap();
        let seconds = |ns: u64| ns as f64 / 1e9;
        list.push_str(&format!(
            "{} {} {}\n",
            seconds(from_ns),
            seconds(to_ns),
            file.display()
        ));
        let progress: serde_json::Value = serde_json::from_str(&json(&part)).unwrap();
        let all = &progress["progress"]["left_out"]["all"];
        assert_eq!(*all, number == 2, "{progress}");
    }
    write(folder.join("starts"), list).unwrap();
}

#[test]
fn the_page_works_in_a_browser_and_has_the_figures_of_the_report() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    create_dir_all(&folder).unwrap();
    write(folder.join("traced.html"), page_trace::traced_page()).unwrap();
    write(folder.join("memory.html"), page_memory::killed_page()).unwrap();
    let profile = trained();
    let json = |profile: &Profile| render_json(profile, &analyze(profile)).unwrap();
    write(folder.join("page.html"), page(&profile)).unwrap();
    write(folder.join("page.json"), json(&profile)).unwrap();
    write(folder.join("compared.html"), compared(&profile)).unwrap();
    let mut part = profile;
    restrict_to(&mut part, 1_234_000_000, 7_770_000_000).unwrap();
    write(folder.join("part.json"), json(&part)).unwrap();
    write(folder.join("part"), "1.234 7.77\n").unwrap();
    starts(&folder);
    let hostile = page_with_source(&hostile(), "/home/<b>/0.py", "<img src=x onerror=hacked=1>");
    write(folder.join("hostile.html"), hostile).unwrap();
    let sourced = page_with_source(&part, "/home/u/train.py", "    loss = step(model)");
    write(folder.join("source.html"), sourced).unwrap();
    write(folder.join("deep.html"), page(&deep())).unwrap();
    if let Some(said) = checked("check-page", &[&folder]) {
        println!("{said}");
    }
}
