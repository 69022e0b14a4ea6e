//! The page of a job: what its data hold, that names are text, its size, and that it works in a
//! real browser.

use crate::job::{Simulated, answers};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::read::GzDecoder;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use torchspy::analysis::job::Job;
use torchspy::report::job_page::render;
use torchspy::report::json::job::render_job_json;

fn page(job: &Job) -> String {
    let mut bytes = Vec::new();
    render(job, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(start).unwrap();
    rest.split_once(end).unwrap().0
}

fn head(page: &str) -> Value {
    serde_json::from_str(between(page, "id=\"head\">", "</script>")).unwrap()
}

/// Figures by plane, row and column.
struct Planes {
    names: Vec<String>,
    columns: usize,
    rows: usize,
    bytes: Vec<u8>,
    unit_ms: f64,
    most_ms: f64,
}

impl Planes {
    fn new(page: &str) -> Self {
        let head = head(page);
        let packed = BASE64_STANDARD.decode(between(page, "id=\"cells\">", "</script>"));
        let mut bytes = Vec::new();
        let packed = packed.unwrap();
        GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
        let names = head["planes"].as_array().unwrap().iter();
        Self {
            names: names
                .map(|name| name.as_str().unwrap().to_owned())
                .collect(),
            columns: head["columns"].as_u64().unwrap() as usize,
            rows: head["rows"].as_array().unwrap().len(),
            bytes,
            unit_ms: head["unit_ms"].as_f64().unwrap(),
            most_ms: head["most_ms"].as_f64().unwrap(),
        }
    }

    fn get(&self, name: &str, row: usize, column: usize) -> Option<f64> {
        let plane = self.names.iter().position(|each| each == name).unwrap();
        let cells = self.rows * self.columns;
        let at = cells * 4 + (plane * cells + row * self.columns + column) * 2;
        let value = u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]);
        let part = f64::from(value) / 65534.0 * (self.most_ms / self.unit_ms).ln_1p();
        (value != u16::MAX).then(|| self.unit_ms * part.exp_m1())
    }

    fn mean(&self, name: &str, row: usize) -> f64 {
        let all = (0..self.columns).filter_map(|column| self.get(name, row, column));
        let all: Vec<f64> = all.collect();
        all.iter().sum::<f64>() / all.len() as f64
    }
}

#[test]
fn the_page_has_the_figures_of_the_json() {
    let job = Simulated {
        slow: Some((3, 0.02, 424)),
        ..Simulated::default()
    }
    .job();
    let page = page(&job);
    let json: Value = serde_json::from_str(&render_job_json(&job).unwrap()).unwrap();
    let (head, planes) = (head(&page), Planes::new(&page));
    let classes = head["classes"].as_array().unwrap();
    for (at, rank) in json["ranks"].as_array().unwrap().iter().enumerate() {
        let row = &head["rows"][at];
        assert_eq!(row["name"], format!("rank {}", rank["rank"]));
        assert_eq!(
            (&row["step_ms"], &row["late"], &row["host"], &row["pid"]),
            (
                &rank["step_ms"],
                &rank["arrives_last"],
                &rank["host"],
                &rank["pid"]
            )
        );
        let bars = head["bars"].as_array().unwrap().iter();
        let bar = bars.clone().find(|bar| bar["name"] == row["name"]).unwrap();
        for (class, share) in classes.iter().zip(bar["shares"].as_array().unwrap()) {
            assert_eq!(*share, rank[class.as_str().unwrap()]);
        }
        // Bins hold equally many steps but for the first and last.
        let step_ms = rank["step_ms"].as_f64().unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 0.01 * step_ms;
        assert!(close(planes.mean("step", at), step_ms));
        let waits = rank["waits"]["share"].as_f64().unwrap() * step_ms;
        assert!(close(planes.mean("waits", at), waits));
        assert!(close(planes.mean("own", at), step_ms - waits));
        let share = rank["computation"].as_f64().unwrap();
        assert!(close(planes.mean("computation", at), share * step_ms));
    }
    assert_eq!(head["bars"][0]["name"], "rank 3");
    // The change is in the column that its mark is in: before, the rank is as the others.
    let change = &head["changes"][0];
    let late = &json["groups"][0]["stragglers"][0]["changes"][0];
    assert_eq!(
        (&change["row"], &change["step"]),
        (&Value::from(3), &late["step"])
    );
    let steps = 1_u64 << head["shift"].as_u64().unwrap();
    let at = (change["step"].as_u64().unwrap() - head["first_step"].as_u64().unwrap()) / steps;
    let more = |column: usize| {
        let figure = |name| planes.get(name, 3, column).unwrap();
        figure("own") - figure("typical")
    };
    assert!(
        more(at as usize - 3).abs() < 5.0,
        "{}",
        more(at as usize - 3)
    );
    assert!(
        (15.0..25.0).contains(&more(at as usize + 3)),
        "{}",
        more(at as usize + 3)
    );
    // Starts are by the aligned clock: those of hosts 30 ms apart are the same.
    let start = |row: usize| {
        let at = (row * planes.columns + 20) * 4;
        u32::from_le_bytes(planes.bytes[at..at + 4].try_into().unwrap())
    };
    assert!(
        start(0).abs_diff(start(7)) <= 2,
        "{} {}",
        start(0),
        start(7)
    );
}

#[test]
fn the_page_says_what_the_text_says() {
    let job = Simulated::default().job();
    let page = page(&job);
    for text in [
        "8 of 8 ranks on 2 hosts, 8 recordings",
        "rank 5 (pid 105 on node1) arrives last",
        "each step takes",
        "read (user)",
        "drifts",
    ] {
        assert!(page.contains(text), "{text}");
    }
    let mut missing = Simulated::default().reductions();
    missing.remove(7);
    missing.push(Default::default());
    let page = self::page(&answers(missing, None));
    assert!(page.contains("no recording of rank 7: if"));
    assert!(page.contains("007.tspy: no trainer was sampled in it"));
}

const HOSTILE: &str =
    "</script><script>hacked=1</script><img src=x onerror=hacked=1>'\"&\u{202e}\u{2028}<!--";

fn hostile() -> Job {
    let mut all = Simulated::default().reductions();
    for reduction in &mut all {
        reduction.command.push(HOSTILE.to_owned());
        reduction.missing.push(HOSTILE.to_owned());
        reduction.host = format!("{}{HOSTILE}", reduction.host);
        for place in &mut reduction.places {
            (place.function, place.file) = (HOSTILE.to_owned(), HOSTILE.to_owned());
        }
        reduction.waits = vec![HOSTILE.to_owned()];
    }
    answers(all, None)
}

#[test]
fn names_are_text_and_nothing_is_requested() {
    let page = page(&hostile());
    assert_eq!(page.matches("<script").count(), 3, "head, cells, script");
    assert_eq!(page.matches("</script").count(), 3);
    assert!(!page.contains("<img") && !page.contains("<!--"));
    assert!(!page.contains('\u{202e}') && !page.contains('\u{2028}'));
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("@import"));
    let policy = between(&page, "Content-Security-Policy\" content=\"", "\"");
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"));
}

#[test]
fn of_many_ranks_neighbours_are_rows_and_the_page_stays_small() {
    let simulated = Simulated {
        ranks: 3000,
        ranks_per_host: 8,
        steps: 1024,
        slow: Some((1234, 0.02, 0)),
        ..Simulated::default()
    };
    let job = simulated.job();
    let page = page(&job);
    let head = head(&page);
    let rows = head["rows"].as_array().unwrap();
    assert!((500..=1000).contains(&rows.len()), "{}", rows.len());
    let late: Vec<&Value> = rows.iter().filter(|row| row["late"] == true).collect();
    assert_eq!(
        (late.len(), &late[0]["name"]),
        (1, &Value::from("rank 1234"))
    );
    let all: u64 = rows.iter().map(|row| row["ranks"].as_u64().unwrap()).sum();
    assert_eq!(all, 3000);
    assert!(head["bars"].as_array().unwrap().len() <= 80);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("large-job.html");
    std::fs::write(path, &page).unwrap();
    // 1,000 rows of 256 columns, of as many ranks as there may be, have twice as many cells.
    assert!(page.len() < 10_000_000, "{} bytes", page.len());
}

#[test]
fn hostile_figures_do_no_harm() {
    let mut all = Simulated::default().reductions();
    all[1].ranks[0].shift = 200;
    all[2].ranks[0].bins[3].end_ns = u64::MAX;
    all[5].started_wall_ns = u64::MAX;
    all[6].ranks[0].bins.clear();
    page(&answers(all, None));
    let mut far = Simulated::default().reductions();
    for bin in &mut far[7].ranks[0].bins {
        bin.index += u64::MAX / 2;
    }
    let page = page(&answers(far, None));
    assert_eq!(head(&page)["columns"], 76);
    self::page(&answers(Vec::new(), None));
}

/// The page's document once its script has run, and what the browser complained about.
fn opened(page: &str, name: &str) -> Option<(String, String)> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, page).unwrap();
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
            "--enable-logging=stderr",
            "--virtual-time-budget=5000",
            "--window-size=1300,900",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", home.path().display()))
        .arg(format!("file://{}", path.display()))
        .output();
    match output {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let complaints = errors.lines().filter(|line| line.contains("CONSOLE"));
            Some((
                String::from_utf8_lossy(&output.stdout).into_owned(),
                complaints.collect::<Vec<_>>().join("\n"),
            ))
        }
        Err(error) => {
            println!("skipped: chromium: {error}");
            None
        }
    }
}

#[test]
fn the_page_works_in_a_browser() {
    let changes = Simulated {
        slow: Some((3, 0.02, 424)),
        ..Simulated::default()
    };
    for (name, job) in [("job.html", changes.job()), ("hostile-job.html", hostile())] {
        let Some((document, complaints)) = opened(&page(&job), name) else {
            return;
        };
        assert_eq!(complaints, "", "{name}");
        assert_eq!(document.matches("class=\"bar\"").count(), 8, "{name}");
        assert!(
            between(&document, "id=\"meaning\">", "<").starts_with("Own time"),
            "{name}"
        );
        assert!(
            between(&document, "<canvas id=\"heat\"", ">").contains("height:"),
            "{name}"
        );
        assert!(!document.contains("<img"), "{name}");
    }
}
