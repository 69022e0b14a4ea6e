//! A reduced trace in a recording: what a window of torch.profiler gave, or why it gave nothing.

use super::{DeviceTime, Head, Rows, TraceSummary, steps::Steps};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// Version of the text. One that is newer is not read.
const VERSION: u32 = 1;
/// Maximum length of the text, bytes: it is a part of a segment.
pub const MOST_TEXT: usize = 16 << 20;
/// A part of a trace, in words, and how to leave it out.
type Part = (&'static str, fn(&mut TraceSummary));

/// What is left out of a trace with too much in it, the least worth first.
const LESS: [Part; 2] = [
    ("what is drawn on the time axis", |trace| {
        trace.rows = Rows::default();
    }),
    ("lines at which the device was idle", |trace| {
        trace.idle_threads.clear();
        trace.devices.iter_mut().for_each(keep_quantiles);
    }),
];
/// Intervals between the quantiles of launch latencies that are kept then.
const QUANTILES: usize = 1000;

/// What is kept of a window in one process.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Kept {
    version: u32,
    /// Or why there is none, in a few words.
    pub result: Result<Box<TraceSummary>, String>,
}

impl Kept {
    pub fn new(result: Result<TraceSummary, String>) -> Self {
        Self {
            version: VERSION,
            result: result.map(Box::new),
        }
    }

    /// The text that [`Kept::parse`] reads, of at most [`MOST_TEXT`] bytes: a trace with too much
    /// in it loses parts, which its [`super::Losses`] say, or all but that.
    pub fn text(mut self) -> String {
        let mut text = serde_json::to_string(&self).unwrap_or_default();
        for (what, leave_out) in LESS {
            if text.len() <= MOST_TEXT {
                break;
            }
            if let Ok(trace) = &mut self.result {
                leave_out(trace);
                trace.losses.left_out.push(what.to_owned());
            }
            text = serde_json::to_string(&self).unwrap_or_default();
        }
        if text.len() <= MOST_TEXT {
            return text;
        }
        let why = "it has more than a recording holds; a shorter window has less".to_owned();
        serde_json::to_string(&Self::new(Err(why))).unwrap_or_default()
    }

    /// `None` for what is damaged, or of another version.
    pub fn parse(text: &str) -> Option<Self> {
        let mut kept: Self = serde_json::from_str(text).ok()?;
        if let Ok(trace) = &mut kept.result {
            trace.complete();
        }
        let is_valid = match &kept.result {
            Ok(trace) => trace.is_valid(),
            Err(_) => true,
        };
        (kept.version == VERSION && is_valid).then_some(kept)
    }
}

/// Quantiles of launch latencies instead of all of them.
fn keep_quantiles(device: &mut DeviceTime) {
    let all = &device.launch_ns;
    let last = all.len().saturating_sub(1);
    if last > QUANTILES {
        let at = (0..=QUANTILES).map(|number| last * number / QUANTILES);
        device.launch_ns = at.filter_map(|index| all.get(index).copied()).collect();
    }
}

/// When the window of a text of [`Kept`] was, on the wall clock, ns since 1970: its first event and
/// its last. Nothing else of the text is kept.
pub fn wall_window(text: &str) -> Option<(u64, u64)> {
    #[derive(Deserialize)]
    struct Window {
        version: u32,
        result: Result<Of, IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Of {
        head: Head,
        window: (u64, u64),
    }
    let kept: Window = serde_json::from_str(text).ok()?;
    let of = kept.result.ok().filter(|_| kept.version == VERSION)?;
    let [from, to] = [of.window.0, of.window.1].map(|ns| of.head.base_ns.checked_add(ns));
    let window = (from?, to?);
    (window.0 <= window.1).then_some(window)
}

impl TraceSummary {
    /// Gives a trace that an earlier version kept what can be known of the rest.
    fn complete(&mut self) {
        if self.has_step_times {
            return;
        }
        for times in &mut self.host {
            times.outer_ns = times.total_ns;
        }
        for device in &mut self.devices {
            device.launches = device.launch_ns.len() as u64;
        }
    }

    /// Whether its parts fit together, as those of a damaged file need not.
    fn is_valid(&self) -> bool {
        let in_order = |spans: &[(u64, u64)]| {
            let ends = spans.iter().flat_map(|&(start, end)| [start, end]);
            ends.is_sorted()
        };
        let Steps { whole, .. } = &self.steps;
        let device_key = |key: u32| (key as usize) < self.device_keys.len();
        let collective = |key: u32| (key as usize) < self.collective_keys.len();
        let mut kernels = self.kernels.iter().chain(&self.copies);
        let mut collectives = self.collectives.iter();
        let mut devices = self.devices.iter();
        let of_host = self.host_keys.iter().filter_map(|key| key.collective);
        let of_devices = self.device_keys.iter().filter_map(|key| key.collective);
        in_order(&[self.window])
            && in_order(whole)
            && self.host.len() == self.host_keys.len()
            && kernels.all(|times| device_key(times.key))
            && collectives.all(|times| collective(times.collective))
            && of_host.chain(of_devices).all(collective)
            && devices.all(|device| in_order(&[device.window]))
            && self.idle_threads.iter().all(|idle| in_order(&idle.gaps))
            && self
                .rows
                .are_valid(self.device_keys.len(), self.host_keys.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Reading, read, reduce};

    fn trace() -> TraceSummary {
        let text = r#"{"baseTimeNanoseconds": 5, "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 9},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20, "dur": 4,
             "args": {"device": 0, "stream": 7, "correlation": 3}}]}"#;
        reduce(read(text.as_bytes(), Reading::default()).unwrap())
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let trace = trace();
        let text = Kept::new(Ok(trace.clone())).text();
        let again = Kept::parse(&text).unwrap().result.unwrap();
        assert_eq!(format!("{again:?}"), format!("{trace:?}"));
        let why = Kept::new(Err("it ended".to_owned())).text();
        assert_eq!(Kept::parse(&why).unwrap().result.unwrap_err(), "it ended");
    }

    #[test]
    fn the_window_is_read_alone() {
        // From microsecond 1 to 24, after a base of 5 ns.
        let text = Kept::new(Ok(trace())).text();
        assert_eq!(wall_window(&text), Some((1005, 24_005)));
        assert_eq!(
            wall_window(&Kept::new(Err("it ended".to_owned())).text()),
            None
        );
        assert_eq!(wall_window("{"), None);
        assert_eq!(
            wall_window(&text.replace("\"version\":1", "\"version\":2")),
            None
        );
    }

    #[test]
    fn what_does_not_fit_together_is_not_read() {
        assert!(Kept::parse("").is_none());
        assert!(Kept::parse(r#"{"version":9,"result":{"Err":"x"}}"#).is_none());
        let damaged: [fn(&mut TraceSummary); 5] = [
            |trace| trace.window = (2, 1),
            |trace| trace.host.clear(),
            |trace| trace.kernels[0].key = 9,
            |trace| trace.rows.rows[0].spans[0].key = 9,
            |trace| trace.steps.whole = vec![(5, 9), (8, 10)],
        ];
        for damage in damaged {
            let mut trace = trace();
            damage(&mut trace);
            assert!(Kept::parse(&Kept::new(Ok(trace)).text()).is_none());
        }
    }

    #[test]
    fn what_is_worth_least_is_left_out_first() {
        let mut trace = trace();
        let gap = |number: u64| {
            (
                1_000_000_000_000 + 2 * number,
                1_000_000_000_001 + 2 * number,
            )
        };
        trace.idle_threads = vec![crate::trace::IdleThread {
            tid: Some(1),
            gaps: (0..600_000).map(gap).collect(),
        }];
        trace.devices[0].launch_ns = (0..100_001).collect();
        trace.devices[0].launches = 100_001;
        let text = Kept::new(Ok(trace.clone())).text();
        assert!(text.len() < MOST_TEXT, "{}", text.len());
        let less = Kept::parse(&text).unwrap().result.unwrap();
        assert_eq!(less.losses.left_out.len(), 2);
        assert!(less.idle_threads.is_empty() && less.rows.rows.is_empty());
        assert_eq!(less.kernels, trace.kernels);
        let device = &less.devices[0];
        assert_eq!(device.launches, 100_001);
        assert_eq!(
            (device.launch_ns.len(), device.launch_ns[500]),
            (1001, 50_000)
        );
    }

    #[test]
    fn what_an_earlier_version_kept_is_read() {
        let trace = trace();
        let mut text: serde_json::Value =
            serde_json::from_str(&Kept::new(Ok(trace.clone())).text()).unwrap();
        let kept = &mut text["result"]["Ok"];
        let removed = [
            ("", "has_step_times"),
            ("", "spreads"),
            ("", "device_in_steps_ns"),
            ("/losses", "left_out"),
            ("/devices/0", "launches"),
            ("/host/0", "outer_ns"),
            ("/host/0", "self_in_steps_ns"),
        ];
        for (place, name) in removed {
            let fields = kept.pointer_mut(place).unwrap().as_object_mut().unwrap();
            assert!(fields.remove(name).is_some(), "{name}");
        }
        let again = Kept::parse(&text.to_string()).unwrap().result.unwrap();
        assert!(!again.has_step_times);
        assert_eq!(again.host[0].outer_ns, trace.host[0].total_ns);
    }

    #[test]
    fn what_is_too_long_is_named() {
        let mut trace = trace();
        trace.host_keys[0].name = "x".repeat(MOST_TEXT);
        let text = Kept::new(Ok(trace)).text();
        assert!(text.len() < 200, "{}", text.len());
        assert!(Kept::parse(&text).unwrap().result.is_err());
    }
}
