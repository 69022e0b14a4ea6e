//! One HTML page of runs on different numbers of ranks. It is one file that makes no request and
//! has no script: plots are inline SVG ([`plot`]), names are escaped.

mod plot;

use crate::analysis::scaling::fit::{Fit, Model};
use crate::analysis::scaling::mean::Estimate;
use crate::analysis::scaling::{Fits, Point, Scaling};
use crate::report::job_page::{escaped, hash};
use crate::report::tables::scaling::{PointRow, points};
use crate::report::text::scaling::{
    about_gpu, about_time, about_work, gpu_cells, models, precise, share_within, title, two,
    with_interval,
};
use plot::{Bar, Plot, Series, bars};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");
/// Points of a model's curve.
const CURVE: usize = 40;
/// The colour of the ideal line.
const IDEAL: usize = 5;

/// The page.
pub fn render(scaling: &Scaling) -> String {
    let rows = points(scaling);
    let mut body = String::new();
    let _ = writeln!(body, "<h1>{}</h1>", escaped(&title(scaling)));
    body.push_str("<div class=\"plots\">\n");
    times(scaling).render(&mut body);
    if scaling.points.iter().any(|point| point.speed_up.is_some()) {
        speed_ups(scaling).render(&mut body);
    }
    body.push_str("</div>\n");
    time_table(&mut body, scaling, &rows);
    paragraphs(&mut body, &about_work(scaling));
    body.push_str("<h2>Models</h2>\n");
    paragraphs(&mut body, &models(scaling));
    body.push_str(
        "<h2>Where training threads' time in steps goes (host time)</h2>\n<div class=\"plots\">\n",
    );
    shares(&mut body, &rows);
    body.push_str("</div>\n");
    paragraphs(&mut body, &about_time(&rows));
    body.push_str("<h2>GPU</h2>\n");
    gpu(&mut body, scaling, &rows);
    if !scaling.left_out.is_empty() {
        body.push_str("<h2>Left out</h2>\n");
        let left_out = scaling.left_out.iter();
        paragraphs(
            &mut body,
            &left_out
                .map(|(name, why)| format!("{name}: {why}"))
                .collect::<Vec<_>>(),
        );
    }
    let style = hash(STYLE);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         '{style}'; img-src data:; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>scaling - torchspy</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\
         </main>\n</body>\n</html>\n"
    )
}

fn paragraphs(out: &mut String, texts: &[String]) {
    for text in texts {
        let _ = writeln!(out, "<p class=\"dim\">{}</p>", escaped(text));
    }
}

/// Points by strategy, with the strategy's colour.
fn by_strategy(scaling: &Scaling) -> Vec<(usize, &str, Vec<&Point>)> {
    let mut all: Vec<(usize, &str, Vec<&Point>)> = Vec::new();
    for point in &scaling.points {
        match all
            .last_mut()
            .filter(|(_, strategy, _)| *strategy == point.strategy)
        {
            Some((_, _, points)) => points.push(point),
            None => all.push((all.len(), &point.strategy, vec![point])),
        }
    }
    all
}

fn value(value: f64) -> Estimate {
    Estimate {
        value,
        low: None,
        high: None,
    }
}

/// The curves of the models that are shown, in a unit that `of` makes of a fit and a number of
/// ranks.
fn curves(scaling: &Scaling, of: impl Fn(&Fits, &Fit, f64) -> Option<f64>) -> Vec<Series> {
    let mut all = Vec::new();
    for (at, fits) in scaling.fits.iter().enumerate() {
        for (model, result) in &fits.models {
            let Ok(fit) = result else { continue };
            let (least, most) = (f64::from(fits.least), fit.predicted.ranks);
            let ranks = (0..=CURVE).map(|at| least * (most / least).powf(at as f64 / CURVE as f64));
            let points = ranks.filter_map(|ranks| Some((ranks, value(of(fits, fit, ranks)?))));
            let name = match model {
                Model::Amdahl => "Amdahl's law",
                Model::Ring => "ring all-reduce",
            };
            all.push(Series {
                name: format!("{}, {name}", fits.strategy),
                colour: 2 + at * 2 + usize::from(*model == Model::Ring),
                points: points.collect(),
                is_line: true,
            });
        }
    }
    all
}

/// What was measured, by strategy.
fn measured(scaling: &Scaling, of: fn(&Point) -> Option<Estimate>) -> Vec<Series> {
    let groups = by_strategy(scaling).into_iter();
    groups
        .map(|(colour, strategy, points)| {
            let known = points.into_iter();
            let points = known.filter_map(|point| Some((f64::from(point.ranks), of(point)?)));
            Series {
                name: strategy.to_owned(),
                colour,
                points: points.collect(),
                is_line: false,
            }
        })
        .collect()
}

fn times(scaling: &Scaling) -> Plot<'_> {
    let mut series = measured(scaling, |point| Some(point.time_s.estimate()));
    series.extend(curves(scaling, |fits, fit, ranks| {
        Some(fit.time_s(ranks) * scaling.unit_time(fits, ranks)?)
    }));
    Plot {
        title: match scaling.unit.name() {
            "epoch" => "Time per epoch",
            _ => "Time per step",
        },
        x: "ranks",
        y: "seconds",
        series,
        shown: precise,
    }
}

fn speed_ups(scaling: &Scaling) -> Plot<'_> {
    let mut series = measured(scaling, |point| point.speed_up);
    let least = scaling
        .fits
        .iter()
        .map(|fits| fits.least)
        .min()
        .unwrap_or(1);
    let most = scaling
        .points
        .iter()
        .map(|point| point.ranks)
        .max()
        .unwrap_or(1);
    let (least, most) = (f64::from(least), f64::from(most));
    series.push(Series {
        name: "ideal".to_owned(),
        colour: IDEAL,
        points: vec![(least, value(1.0)), (2.0 * most, value(2.0 * most / least))],
        is_line: true,
    });
    series.extend(curves(scaling, |fits, fit, ranks| {
        Some(fit.time_s(f64::from(fits.least)) / fit.time_s(ranks))
    }));
    Plot {
        title: "Speed-up",
        x: "ranks",
        y: "times as fast as the fewest ranks",
        series,
        shown: |value| {
            precise(value)
                .trim_end_matches('0')
                .trim_end_matches('.')
                .to_owned()
        },
    }
}

fn time_table(out: &mut String, scaling: &Scaling, rows: &[PointRow]) {
    let unit = scaling.unit.name();
    let _ = writeln!(
        out,
        "<h2>Time per {unit}</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>strategy</th>\
         <th>ranks</th><th>seconds</th><th>relative</th><th>speed-up</th><th>efficiency</th>\
         <th>runs</th></tr></thead>\n<tbody>"
    );
    for row in rows {
        let of = |it: Option<Estimate>, shown: fn(f64) -> String| {
            it.map_or("not known".to_owned(), |it| with_interval(&it, shown))
        };
        let cells = [
            row.strategy.clone(),
            row.ranks.to_string(),
            with_interval(&row.time_s, precise),
            with_interval(&row.relative_time, two),
            of(row.speed_up, two),
            row.efficiency
                .map_or("not known".to_owned(), |it| share_within(&it)),
            row.runs.join(", "),
        ];
        cells_of(out, &cells);
    }
    out.push_str("</tbody></table></div>\n");
}

fn cells_of(out: &mut String, cells: &[String]) {
    out.push_str("<tr>");
    for cell in cells {
        let _ = write!(out, "<td>{}</td>", escaped(cell));
    }
    out.push_str("</tr>\n");
}

fn name(row: &PointRow) -> String {
    format!("{} {}", row.strategy, row.ranks)
}

/// Stacked shares with the interval of the first.
fn stacked(row: &PointRow, first: Option<Estimate>, text: &str) -> Bar {
    let parts = first.map_or(Vec::new(), |it| vec![(0, it.value), (1, 1.0 - it.value)]);
    Bar {
        name: name(row),
        parts,
        interval: first.and_then(|it| it.low.zip(it.high)),
        text: first.map_or(text.to_owned(), |it| share_within(&it)),
    }
}

fn shares(out: &mut String, rows: &[PointRow]) {
    let all: Vec<Bar> = rows
        .iter()
        .map(|row| stacked(row, row.computation, "not known"))
        .collect();
    bars(
        out,
        "Computation and all else",
        &["computation", "other"],
        1.0,
        &all,
    );
    let all: Vec<Bar> = rows
        .iter()
        .map(|row| {
            let without = if row.nccl { "on the GPU" } else { "not known" };
            stacked(row, row.communication_of_both, without)
        })
        .collect();
    let names = ["communication", "computation"];
    bars(out, "Communication and computation", &names, 1.0, &all);
}

fn gpu(out: &mut String, scaling: &Scaling, rows: &[PointRow]) {
    let has_any = |row: &PointRow| row.gpu_utilization.is_some() || row.energy_wh.is_some();
    if !rows.iter().any(has_any) {
        out.push_str("<p class=\"dim\">no utilization and no energy was measured</p>\n");
        return;
    }
    out.push_str("<div class=\"plots\">\n");
    let bar = |row: &PointRow, it: Option<Estimate>, shown: fn(&Estimate) -> String| Bar {
        name: name(row),
        parts: it.map_or(Vec::new(), |it| vec![(0, it.value)]),
        interval: it.and_then(|it| it.low.zip(it.high)),
        text: it.map_or("not measured".to_owned(), |it| shown(&it)),
    };
    let energy = |it: &Estimate| with_interval(it, precise);
    let most = |of: fn(&PointRow) -> Option<f64>| rows.iter().filter_map(of).fold(0.0, f64::max);
    let all: Vec<Bar> = rows
        .iter()
        .map(|row| bar(row, row.gpu_utilization, share_within))
        .collect();
    bars(out, "Utilization", &[], 1.0, &all);
    let all: Vec<Bar> = rows
        .iter()
        .map(|row| bar(row, row.energy_wh, energy))
        .collect();
    bars(
        out,
        "Energy in all, Wh",
        &[],
        most(|row| row.energy_wh.map(|it| it.high.unwrap_or(it.value))),
        &all,
    );
    if rows.iter().any(|row| row.energy_wh_an_epoch.is_some()) {
        let all: Vec<Bar> = rows
            .iter()
            .map(|row| bar(row, row.energy_wh_an_epoch, energy))
            .collect();
        let most = most(|row| row.energy_wh_an_epoch.map(|it| it.high.unwrap_or(it.value)));
        bars(out, "Energy of an epoch, Wh", &[], most, &all);
    }
    out.push_str("</div>\n<table><thead><tr><th>runs</th><th>utilization</th><th>Wh in all</th><th>Wh/epoch</th></tr></thead>\n<tbody>\n");
    for row in rows {
        let cells: Vec<String> = std::iter::once(name(row)).chain(gpu_cells(row)).collect();
        cells_of(out, &cells);
    }
    out.push_str("</tbody></table>\n");
    paragraphs(out, &about_gpu(scaling, rows));
}
