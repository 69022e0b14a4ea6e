//! A trace in Chrome's JSON format, which `chrome://tracing`, Perfetto's viewer and many scripts
//! read ("Trace Event Format"): stacks of threads as slices, steps, phases and waits of training
//! threads on tracks of their own, and counter tracks.

use super::counters;
use super::label::{self, SHORT};
use super::markers::{self, Kind};
use super::slices::slices;
use super::view::{View, ViewOptions};
use crate::model::profile::Profile;
use rustc_hash::FxHashSet;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};

/// An event. Times are in us.
#[derive(Serialize)]
struct Event<'a> {
    ph: &'static str,
    pid: i32,
    tid: i64,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Value>,
}

/// Writes a profile as a trace. Its times begin with the recording.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(profile: &Profile, options: &ViewOptions, out: &mut dyn Write) -> io::Result<()> {
    let view = View::new(profile, options);
    let mut trace = Trace { out, events: 0 };
    let us = |ns: u64| ns.saturating_sub(profile.start_ns) as f64 / 1e3;
    trace.out.write_all(b"{\"traceEvents\":[")?;
    let labels = label::process_labels(profile);
    let mut named = FxHashSet::default();
    for root in view.roots() {
        if named.insert(root.process) {
            let name = labels.get(root.process.index()).map_or("", String::as_str);
            trace.name("process_name", root.pid, 0, name)?;
        }
        trace.name("thread_name", root.pid, root.tid.into(), &root.label)?;
    }
    slices(&view, |edge| {
        let Some(root) = view.roots().get(edge.root) else {
            return Ok(());
        };
        let name = edge.begins.map(|shown| view.label(shown));
        trace.event(&Event {
            ph: if name.is_some() { "B" } else { "E" },
            pid: root.pid,
            tid: root.tid.into(),
            ts: us(edge.ns),
            dur: None,
            name: name.as_deref(),
            cat: edge.begins.map(|shown| view.kind(shown).name()),
            args: None,
        })
    })?;
    for root in view.roots().iter().filter(|root| root.training) {
        for (kind, number) in Kind::ALL.into_iter().zip(1_i64..) {
            // No thread has such a number: Linux' end at 2^22.
            let tid = (number << 32) + i64::from(root.tid);
            let found = markers::of(&view, root, kind);
            if !found.is_empty() {
                let name = format!("{} of {}", kind.name(), root.label);
                trace.name("thread_name", root.pid, tid, &name)?;
            }
            for marker in found {
                trace.event(&Event {
                    ph: "X",
                    pid: root.pid,
                    tid,
                    ts: us(marker.start_ns),
                    dur: Some(marker.end_ns.saturating_sub(marker.start_ns) as f64 / 1e3),
                    name: Some(&marker.name),
                    cat: Some(kind.name()),
                    args: None,
                })?;
            }
        }
    }
    trace.name("process_name", 0, 0, "GPUs and host")?;
    for point in &profile.sideband.tracks.points {
        let Some(track) = counters::shown(profile, point) else {
            continue;
        };
        let device = counters::device_name(profile, track.gpu);
        let name = format!("{device}: {}", counters::name(track));
        let value = counters::value(track.kind, point);
        trace.event(&Event {
            ph: "C",
            pid: 0,
            tid: 0,
            ts: us(point.start_ns),
            dur: None,
            name: Some(&name),
            cat: None,
            args: Some(json!({ counters::unit(track.kind): value })),
        })?;
    }
    let other = json!({
        "exporter": format!("torchspy {}", profile.run.torchspy),
        "command": label::clean(&super::command::shown_command(&profile.run.command, SHORT), SHORT),
    });
    writeln!(
        trace.out,
        "],\"displayTimeUnit\":\"ms\",\"otherData\":{other}}}"
    )
}

struct Trace<'o> {
    out: &'o mut dyn Write,
    events: u64,
}

impl Trace<'_> {
    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let between: &[u8] = if self.events == 0 { b"\n" } else { b",\n" };
        self.events += 1;
        self.out.write_all(between)?;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    /// Names a process or a thread.
    fn name(&mut self, what: &'static str, pid: i32, tid: i64, name: &str) -> io::Result<()> {
        self.event(&Event {
            ph: "M",
            pid,
            tid,
            ts: 0.0,
            dur: None,
            name: Some(what),
            cat: None,
            args: Some(json!({ "name": label::clean(name, SHORT) })),
        })
    }
}
