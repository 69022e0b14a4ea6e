//! A reduced trace in a recording: what a window of torch.profiler gave, or why it gave nothing.

use super::{Rows, TraceSummary, steps::Steps};
use serde::{Deserialize, Serialize};

/// Version of the text. One that is newer is not read.
const VERSION: u32 = 1;
/// Maximum length of the text, bytes: it is a part of a segment.
pub const MOST_TEXT: usize = 16 << 20;

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

    /// The text that [`Kept::parse`] reads, of at most [`MOST_TEXT`] bytes: of a trace with too
    /// much in it, only that is said.
    pub fn text(mut self) -> String {
        let mut text = serde_json::to_string(&self).unwrap_or_default();
        if let (true, Ok(trace)) = (text.len() > MOST_TEXT, &mut self.result) {
            // Tables are worth more than what is drawn.
            trace.rows = Rows::default();
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
        let kept: Self = serde_json::from_str(text).ok()?;
        let is_valid = match &kept.result {
            Ok(trace) => trace.is_valid(),
            Err(_) => true,
        };
        (kept.version == VERSION && is_valid).then_some(kept)
    }
}

impl TraceSummary {
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
    fn what_does_not_fit_together_is_not_read() {
        assert!(Kept::parse("").is_none());
        assert!(Kept::parse(r#"{"version":2,"result":{"Err":"x"}}"#).is_none());
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
    fn what_is_too_long_is_named() {
        let mut trace = trace();
        trace.host_keys[0].name = "x".repeat(MOST_TEXT);
        let text = Kept::new(Ok(trace)).text();
        assert!(text.len() < 200, "{}", text.len());
        assert!(Kept::parse(&text).unwrap().result.is_err());
    }
}
