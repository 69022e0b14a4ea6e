//! A trace of torch.profiler is a file of anybody's, and so is a recording with what was kept of
//! one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use torchspy::report::json::trace::render_trace_json;
use torchspy::report::tables::trace::TABLES;
use torchspy::report::text::trace::render_trace;
use torchspy::report::text::{Detail, TextOptions};
use torchspy::trace::kept::Kept;
use torchspy::trace::{Reading, TraceSummary, read, reduce};

fn show(trace: &TraceSummary) {
    for (_, make) in TABLES {
        make(trace);
    }
    let options = TextOptions {
        detail: Detail::Full,
        ..TextOptions::default()
    };
    // With the statements of `trace::advice`.
    render_trace(trace, options);
    let _ = render_trace_json(trace);
    trace.not_drawn();
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(trace) = read(bytes, Reading::default()) {
        let trace = reduce(trace);
        show(&trace);
        assert!(Kept::parse(&Kept::new(Ok(trace)).text()).is_some());
    }
    let text = std::str::from_utf8(bytes).ok();
    if let Some(Ok(trace)) = text.and_then(Kept::parse).map(|kept| kept.result) {
        show(&trace);
    }
});
