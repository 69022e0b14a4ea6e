//! `/proc/PID/maps` is the target's to shape: it chooses the paths.
#![no_main]

use libfuzzer_sys::fuzz_target;
use torchspy::os::maps::parse_maps;

fuzz_target!(|text: &[u8]| {
    for mapping in parse_maps(text) {
        assert!(mapping.start < mapping.end);
    }
});
