//! A trace of torch.profiler is a file of anybody's.
#![no_main]

use libfuzzer_sys::fuzz_target;
use torchspy::trace::{Reading, read, reduce};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(trace) = read(bytes, Reading::default()) {
        let _ = reduce(trace);
    }
});
