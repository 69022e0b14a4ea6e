//! The answer and the tables: HTML that is read without a script.

use super::escaped;
use super::rows::{Bar, Row};
use crate::analysis::job::Job;
use crate::report::naming::utc_time;
use crate::report::tables::job::{ClockRow, RankRow, StragglerRow, all_ranks, clocks, straggler};
use crate::report::text::format::{milliseconds, percent};
use crate::report::text::job::{
    LONGER, about, about_ranks, clock_text, doing_text, incomplete, late, not_late, rank_name,
};
use std::fmt::Write;

/// Stragglers of a group in words; all are in the table.
const MOST_LATE: usize = 3;
const MOST_IN_TABLE: usize = 200;
/// Files that are listed at once; the rest is folded.
const MOST_FILES: usize = 5;
const MOST_FOLDED: usize = 1000;
const MOST_CLOCKS: usize = 2000;

/// All between the body's tags but the scripts.
pub(super) fn body(job: &Job, facts: &[RankRow], rows: &[Row], bars: &[Bar]) -> String {
    let mut out = String::new();
    out.push_str("<main>\n");
    answer(&mut out, job);
    heatmap(&mut out, job, rows);
    distribution(&mut out, job, facts, bars);
    clock_table(&mut out, job);
    out.push_str("</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n");
    out
}

fn paragraph(out: &mut String, class: &str, text: &str) {
    let _ = writeln!(out, "<p class=\"{class}\">{}</p>", escaped(text));
}

fn answer(out: &mut String, job: &Job) {
    out.push_str("<section id=\"answer\" aria-label=\"Answer\">\n");
    // The command comes second in the text.
    let mut about = about(job);
    if about.len() > 1 {
        about.swap(0, 1);
    }
    let mut about = about.into_iter();
    if let Some(first) = about.next() {
        let _ = writeln!(out, "<h1>{}</h1>", escaped(&first));
    }
    for text in about {
        let class = match text.starts_with("no recording") {
            true => "warn",
            false => "dim",
        };
        paragraph(out, class, &text);
    }
    out.push_str("<h2>Who arrives last</h2>\n");
    for (group, found) in &job.groups {
        if !group.name.is_empty() {
            let _ = writeln!(out, "<h3>{}</h3>", escaped(&group.name));
        }
        for (at, each) in found.stragglers.iter().take(MOST_LATE).enumerate() {
            let Some(row) = straggler(job, each) else {
                continue;
            };
            let words = late(&row, each, found);
            let class = if at == 0 { "late first" } else { "late" };
            paragraph(out, class, &words.who);
            paragraph(out, "", &words.how);
            for text in &words.more {
                paragraph(out, "", text);
            }
            lines(out, &row);
        }
        for text in not_late(job, found) {
            paragraph(out, if found.compared < 2 { "warn" } else { "" }, &text);
        }
    }
    late_table(out, job);
    files(out, &incomplete(job));
    out.push_str("</section>\n");
}

/// What a straggler does for longer than the others.
fn lines(out: &mut String, row: &StragglerRow) {
    if row.lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "<p>{LONGER}:</p>\n<ul class=\"lines\">");
    for doing in &row.lines {
        let _ = writeln!(
            out,
            "<li><b>{}</b> <code>{}</code></li>",
            milliseconds(doing.ms),
            escaped(&doing_text(doing))
        );
    }
    out.push_str("</ul>\n");
}

fn late_table(out: &mut String, job: &Job) {
    let all: Vec<StragglerRow> = job
        .stragglers()
        .filter_map(|(_, each)| straggler(job, each))
        .take(MOST_IN_TABLE)
        .collect();
    if all.is_empty() {
        return;
    }
    out.push_str(
        "<div class=\"scroll\" tabindex=\"0\"><table id=\"late\"><caption>Ranks that arrive last</caption>\n<thead><tr>\
         <th scope=\"col\">rank</th><th scope=\"col\">host</th>\
         <th scope=\"col\" class=\"number\">pid</th><th scope=\"col\" class=\"number\">each step longer, ms</th>\
         <th scope=\"col\" class=\"number\">waits</th><th scope=\"col\" class=\"number\">others wait</th>\
         <th scope=\"col\">since</th><th scope=\"col\">mostly at</th></tr></thead>\n<tbody>\n",
    );
    for row in &all {
        let words = row.changes.iter().map(|it| {
            let word = if it.began { "" } else { "until " };
            let wall = utc_time(u64::try_from(it.wall_ns).unwrap_or(0));
            format!("{word}step {}, {wall}", it.step)
        });
        let since = match row.changes.len() {
            0 => "all the time".to_owned(),
            _ => words.collect::<Vec<String>>().join("; "),
        };
        let at = row.lines.first().map(doing_text).unwrap_or_default();
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td>{}</td><td><code>{}</code></td></tr>",
            escaped(&rank_name(row.rank, row.pid)),
            escaped(&row.host),
            row.pid,
            milliseconds(row.late_ms),
            percent(row.waits.value),
            percent(row.others_wait.value),
            escaped(&since),
            escaped(&at)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn files(out: &mut String, all: &[String]) {
    if all.is_empty() {
        return;
    }
    let (first, rest) = all.split_at(all.len().min(MOST_FILES));
    let items = |out: &mut String, texts: &[String]| {
        out.push_str("<ul class=\"files\">\n");
        for text in texts {
            let _ = writeln!(out, "<li>{}</li>", escaped(text));
        }
        out.push_str("</ul>\n");
    };
    out.push_str("<h3 class=\"warn\">Left out or incomplete</h3>\n");
    items(out, first);
    if !rest.is_empty() {
        let _ = writeln!(out, "<details><summary>{} more</summary>", rest.len());
        items(out, rest.get(..MOST_FOLDED).unwrap_or(rest));
        if rest.len() > MOST_FOLDED {
            paragraph(out, "dim", "torchspy report DIR --json has all");
        }
        out.push_str("</details>\n");
    }
}

fn heatmap(out: &mut String, job: &Job, rows: &[Row]) {
    out.push_str("<section id=\"steps\" aria-labelledby=\"steps-title\">\n<h2 id=\"steps-title\">Ranks and steps</h2>\n");
    if job.ranks.iter().all(|rank| rank.facts.bins.is_empty()) {
        paragraph(out, "", "no steps are known of any rank");
        out.push_str("</section>\n");
        return;
    }
    out.push_str(
        "<noscript><p class=\"warn\">The heatmap and the bars need JavaScript; what is above and the clocks do not.</p></noscript>\n\
         <div class=\"tools\"><label>Colour <select id=\"figure\"></select></label>\
         <label>Rows <select id=\"order\"><option value=\"rank\">by rank</option>\
         <option value=\"slowest\">slowest first</option></select></label>\
         <span id=\"scale\"><span id=\"scale-low\"></span> <canvas id=\"scale-bar\" width=\"160\" height=\"12\" aria-hidden=\"true\"></canvas> \
         <span id=\"scale-high\"></span></span></div>\n<p id=\"meaning\"></p>\n\
         <div id=\"map\"><canvas id=\"heat\" tabindex=\"0\" role=\"img\" aria-label=\"Heatmap of ranks and steps; arrow keys read it out\"></canvas></div>\n",
    );
    let merged = rows.iter().filter(|row| row.ranks > 1).count();
    if merged > 0 {
        let text = format!(
            "{} of {} rows have the medians of neighbouring ranks; ranks that arrive last have rows of their own",
            merged,
            rows.len()
        );
        paragraph(out, "dim", &text);
    }
    if job.ranks.iter().any(|rank| !rank.facts.counts_from_start) {
        paragraph(
            out,
            "dim",
            "Steps of some ranks are counted from the start of the recording: how many came before is not known",
        );
    }
    out.push_str("</section>\n");
}

fn distribution(out: &mut String, job: &Job, facts: &[RankRow], bars: &[Bar]) {
    out.push_str(
        "<section id=\"distribution\" aria-labelledby=\"distribution-title\">\n\
         <h2 id=\"distribution-title\">Where the time goes</h2>\n\
         <p class=\"dim\">Of each training thread's time in steps (host time)</p>\n\
         <ul id=\"legend\" class=\"legend\"></ul>\n\
         <div class=\"scroll\" tabindex=\"0\"><table id=\"bars\"></table></div>\n",
    );
    if bars.len() < job.ranks.len() {
        paragraph(
            out,
            "dim",
            "Bars of several ranks have their medians; ranks that arrive last come first",
        );
    }
    for text in about_ranks(facts, all_ranks(job, facts).as_ref()) {
        paragraph(out, "dim", &text);
    }
    out.push_str("</section>\n");
}

fn clock_table(out: &mut String, job: &Job) {
    let rows = clocks(job);
    out.push_str(
        "<section id=\"clocks\">\n<h2>Clocks</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>\
         <th scope=\"col\">host</th><th scope=\"col\" class=\"number\">ahead, ms</th>\
         <th scope=\"col\" class=\"number\">±, ms</th><th scope=\"col\" class=\"number\">drift, us/s</th>\
         <th scope=\"col\">in words</th></tr></thead>\n<tbody>\n",
    );
    for row in rows.iter().take(MOST_CLOCKS) {
        clock_row(out, row);
    }
    out.push_str("</tbody></table></div>\n");
    if rows.len() > MOST_CLOCKS {
        paragraph(out, "dim", "torchspy report DIR --csv clocks has all hosts");
    }
    out.push_str("</section>\n");
}

fn clock_row(out: &mut String, row: &ClockRow) {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or(String::new(), |value| format!("{value:.digits$}"))
    };
    let _ = writeln!(
        out,
        "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"number\">{}</td>\
         <td class=\"number\">{}</td><td>{}</td></tr>",
        escaped(&row.host),
        number(row.ahead_ms, 2),
        number(row.error_ms, 2),
        number(row.drift_ppm, 1),
        escaped(&clock_text(row))
    );
}
