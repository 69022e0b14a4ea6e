//! Recordings made of any bytes: never a panic, never unbounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use torchspy::recording::{InspectOptions, Recording, render_text};

/// A recording of version 1 that is whole: the corpus's start, and the source of a header.
const WHOLE: &[u8] = include_bytes!("../../tests/fixtures/recording/v1.tspy");

fuzz_target!(|data: &[u8]| {
    let Some((&how, rest)) = data.split_first() else {
        return;
    };
    let file = match how & 3 {
        // A file.
        0 => rest.to_vec(),
        // Anything after a good header.
        1 => [header(), rest].concat(),
        // A segment's tables, compressed, with right checksums: a fuzzer does not find those by
        // itself.
        2 => match zstd::bulk::compress(rest, 1) {
            Ok(payload) => [header(), &framed(&payload, rest.len())].concat(),
            Err(_) => return,
        },
        // Edits of a good file: offset (two bytes) and value.
        _ => {
            let mut file = WHOLE.to_vec();
            for edit in rest.chunks_exact(3) {
                let at = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
                if let Some(byte) = file.get_mut(at) {
                    *byte = edit[2];
                }
            }
            file
        }
    };
    if let Ok(recording) = Recording::read_bytes(&file) {
        let options = InspectOptions {
            samples: true,
            ..InspectOptions::default()
        };
        render_text(&recording, &options);
    }
});

fn header() -> &'static [u8] {
    let length = u32::from_le_bytes([WHOLE[12], WHOLE[13], WHOLE[14], WHOLE[15]]) as usize;
    &WHOLE[..20 + length]
}

fn framed(payload: &[u8], raw_length: usize) -> Vec<u8> {
    let mut bytes = b"\xF5TSEG\r\n\x1A".to_vec();
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend((raw_length as u32).to_le_bytes());
    bytes.extend(crc32fast::hash(payload).to_le_bytes());
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes.extend(payload);
    bytes
}
