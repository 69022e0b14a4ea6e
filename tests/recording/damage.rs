//! Recordings that are cut, damaged, hostile, of another version, or no recordings at all.

use crate::builder::{create, run_info, small_segments};
use proptest::prelude::*;
use torchspy::model::segment::Segment;
use torchspy::recording::{InspectOptions, OpenError, Recording, render_text};

/// Length of a segment's head: marker, sequence, kind, two lengths, two checksums.
const SEGMENT_HEAD: usize = 36;

/// Four segments, and where each begins; the last entry is the end.
fn recording_of_four() -> (Vec<u8>, Vec<usize>, Vec<Segment>) {
    let [first, second] = small_segments().try_into().unwrap();
    let mut segments = vec![first.clone(), first.clone(), first, second];
    for (index, segment) in segments.iter_mut().enumerate() {
        segment.index = index as u64;
        segment.start_ns = (1 + index as u64) * 1_000_000_000;
        segment.end_ns = segment.start_ns + 1_000_000_000;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("four.tspy");
    let mut writer = create(&path, &run_info());
    let mut starts = vec![writer.length() as usize];
    for segment in &segments {
        writer.write_segment(segment).unwrap();
        starts.push(writer.length() as usize);
    }
    writer.finish().unwrap();
    (std::fs::read(&path).unwrap(), starts, segments)
}

/// Reads `bytes`, and shows what was read: whatever comes out must be usable.
fn read(bytes: &[u8]) -> Result<Recording, OpenError> {
    let recording = Recording::read_bytes(bytes)?;
    let options = InspectOptions {
        samples: true,
        ..InspectOptions::default()
    };
    render_text(&recording, &options);
    Ok(recording)
}

fn samples_of<'s>(segments: impl IntoIterator<Item = &'s Segment>) -> usize {
    segments
        .into_iter()
        .map(|segment| segment.samples.len())
        .sum()
}

#[test]
fn a_whole_recording_misses_nothing() {
    let (bytes, _, segments) = recording_of_four();
    let recording = read(&bytes).unwrap();
    assert_eq!(recording.samples.len(), samples_of(&segments));
    assert_eq!(recording.missing, Vec::<String>::new());
    assert_eq!(recording.run, run_info());
}

#[test]
fn cut_anywhere_all_whole_segments_are_read() {
    let (bytes, starts, segments) = recording_of_four();
    for length in 0..bytes.len() {
        let result = read(&bytes[..length]);
        if length < starts[0] {
            let error = result.unwrap_err();
            let expected = match length {
                0 => matches!(error, OpenError::Empty),
                _ => matches!(error, OpenError::HeaderCorrupt),
            };
            assert!(expected, "{length}: {error}");
            continue;
        }
        let whole = starts[1..].iter().filter(|&&end| end <= length).count();
        let recording = result.unwrap();
        assert_eq!(
            recording.samples.len(),
            samples_of(&segments[..whole]),
            "{length}"
        );
        assert_eq!(
            recording.missing.len(),
            1,
            "{length}: {:?}",
            recording.missing
        );
        let expected = format!(
            "the end is missing: torchspy was killed or the disk was full; {whole}.0 s until the last complete second"
        );
        assert_eq!(recording.missing[0], expected, "{length}");
    }
}

#[test]
fn a_flipped_byte_costs_its_segment_alone() {
    let (bytes, starts, segments) = recording_of_four();
    for flip in [0x01, 0x80, 0xff] {
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let result = read(&damaged);
            if at < starts[0] {
                let error = result.unwrap_err();
                let expected = match at {
                    0..8 => matches!(error, OpenError::NotARecording { .. }),
                    _ => matches!(error, OpenError::HeaderCorrupt),
                };
                assert!(expected, "{at}: {error}");
                continue;
            }
            let hit = starts.iter().filter(|&&start| start <= at).count() - 1;
            let others = segments
                .iter()
                .filter(|segment| segment.index != hit as u64);
            let recording = result.unwrap();
            assert_eq!(recording.samples.len(), samples_of(others), "{at}");
            assert_eq!(recording.missing.len(), 1, "{at}: {:?}", recording.missing);
            let sentence = &recording.missing[0];
            match hit {
                0 => assert_eq!(sentence, "1 segment is corrupt or missing (the start)"),
                1 | 2 => assert_eq!(sentence, "1 segment is corrupt or missing (about 1.0 s)"),
                _ => assert!(sentence.starts_with("the end is missing"), "{sentence}"),
            }
        }
    }
}

#[test]
fn bytes_put_in_or_taken_out_cost_their_segment_alone() {
    let (bytes, starts, segments) = recording_of_four();
    let others = samples_of(segments.iter().filter(|segment| segment.index != 1));
    for at in starts[1] + 1..starts[2] {
        let longer = [&bytes[..at], b"noise", &bytes[at..]].concat();
        assert_eq!(read(&longer).unwrap().samples.len(), others, "{at}");
        let shorter = [&bytes[..at], &bytes[at + 1..]].concat();
        assert_eq!(read(&shorter).unwrap().samples.len(), others, "{at}");
    }
    // A segment that was cut by a full disk, and more written after it.
    let cut = [&bytes[..starts[1] + 100], &bytes[starts[2]..]].concat();
    assert_eq!(read(&cut).unwrap().samples.len(), others);
}

#[test]
fn segments_of_another_recording_are_not_mixed_in() {
    let (bytes, _, segments) = recording_of_four();
    let twice = [bytes.as_slice(), bytes.as_slice()].concat();
    let recording = read(&twice).unwrap();
    assert_eq!(recording.samples.len(), samples_of(&segments));
    assert!(
        recording.missing[0].contains("out of order"),
        "{:?}",
        recording.missing
    );
}

/// It is said once: not as a corrupt segment, too.
#[test]
fn a_segment_of_an_unknown_kind_is_named() {
    let (mut bytes, starts, _) = recording_of_four();
    let head = &mut bytes[starts[1]..starts[1] + SEGMENT_HEAD];
    head[16..20].copy_from_slice(&9_u32.to_le_bytes());
    let checksum = crc32fast::hash(&head[..32]);
    head[32..].copy_from_slice(&checksum.to_le_bytes());
    let recording = read(&bytes).unwrap();
    assert_eq!(
        recording.missing,
        ["1 segment is of a kind that this torchspy does not know"]
    );
}

#[test]
fn a_future_version_is_named() {
    let (mut bytes, starts, _) = recording_of_four();
    bytes[8..12].copy_from_slice(&7_u32.to_le_bytes());
    let checksum = {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[..16]);
        hasher.update(&bytes[20..starts[0]]);
        hasher.finalize()
    };
    bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
    let error = read(&bytes).unwrap_err();
    assert!(matches!(
        error,
        OpenError::NewerVersion { found: 7, known: 2 }
    ));
    assert!(
        error.to_string().contains("use a newer torchspy"),
        "{error}"
    );
}

#[test]
fn other_files_are_told_apart() {
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0];
    let cases: [(&[u8], &str); 6] = [
        (b"epoch 1\nepoch 2\n", "text"),
        (b"x", "text"),
        (b"{\"schema\": 1}", "JSON"),
        (&own[..4096], "an ELF file"),
        (&gzip, "a gzip file"),
        (&[0, 1, 2, 3], ""),
    ];
    for (bytes, what) in cases {
        let error = read(bytes).unwrap_err();
        assert!(matches!(error, OpenError::NotARecording { .. }), "{error}");
        assert!(error.to_string().ends_with(what), "{error}");
    }
}

#[test]
fn what_is_no_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(
        Recording::read(directory.path()),
        Err(OpenError::Io(_))
    ));
    let nothing = directory.path().join("nothing");
    assert!(matches!(Recording::read(&nothing), Err(OpenError::Io(_))));
    let endless = Recording::read(std::path::Path::new("/dev/zero"));
    assert!(matches!(endless, Err(OpenError::NotARecording { .. })));
}

/// A segment with right checksums around `payload`.
fn framed(sequence: u64, payload: &[u8], length: u32, raw_length: u32) -> Vec<u8> {
    let mut bytes = b"\xF5TSEG\r\n\x1A".to_vec();
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(raw_length.to_le_bytes());
    bytes.extend(crc32fast::hash(payload).to_le_bytes());
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    assert_eq!(bytes.len(), SEGMENT_HEAD);
    bytes.extend(payload);
    bytes
}

#[test]
fn absurd_lengths_are_not_believed() {
    let (bytes, starts, segments) = recording_of_four();
    let head = &bytes[..starts[0]];
    let rest = &bytes[starts[0]..];
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 19).unwrap();
    let cases = [
        framed(0, b"", u32::MAX, u32::MAX),
        framed(0, b"", 64 << 20, 64 << 20),
        framed(0, b"xxxx", 4, u32::MAX),
        framed(0, &bomb, bomb.len() as u32, 64 << 20),
    ];
    for hostile in cases {
        let recording = read(&[head, &hostile, rest].concat()).unwrap();
        assert_eq!(recording.samples.len(), samples_of(&segments));
    }
    let mut long_head = head.to_vec();
    long_head[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(read(&long_head), Err(OpenError::HeaderCorrupt)));
}

/// Segments that each claim all of the bytes after them: reading must stay about as long as the
/// file.
#[test]
fn overlapping_segments_do_not_make_reading_quadratic() {
    let (bytes, starts, _) = recording_of_four();
    let mut file = bytes[..starts[0]].to_vec();
    let count = 60_000_u32;
    for index in 0..count {
        let after = (count - index - 1) * SEGMENT_HEAD as u32;
        file.extend(framed(u64::from(index), b"", after, 100));
    }
    // All but the last, which claims no bytes, have the wrong checksum: 65 GB, were each of them
    // checked.
    let recording = read(&file).unwrap();
    assert_eq!(recording.samples.len(), 0);
}

/// Small segments that become many samples: memory is bounded by the file's length.
#[test]
fn memory_is_bounded_by_the_length_of_the_file() {
    let [mut segment, _] = small_segments().try_into().unwrap();
    let sample = segment.samples[0];
    segment.samples = (0..200_000)
        .map(|number: u64| torchspy::model::sample::Sample {
            weight_ns: if number.is_multiple_of(200) {
                number * 7919
            } else {
                1000
            },
            ..sample
        })
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("many.tspy");
    let mut writer = create(&path, &run_info());
    for index in 0..20 {
        segment.index = index;
        writer.write_segment(&segment).unwrap();
    }
    let file = writer.length() as usize;
    writer.finish().unwrap();
    let recording = Recording::read(&path).unwrap();
    let memory = std::mem::size_of_val(recording.samples.as_slice());
    println!("{file} bytes of file became {memory} bytes of samples");
    assert!(memory < (128 << 20) + 256 * file);
    assert!(
        recording.samples.len() < 20 * 200_000,
        "the bound was not reached"
    );
    assert!(
        recording
            .missing
            .iter()
            .any(|sentence| sentence.contains("too much")),
        "{:?}",
        recording.missing
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// What the fuzz target does, with the stable toolchain: several edits at once, then everything
    /// that readers do.
    #[test]
    fn damage_of_any_kind_does_no_harm(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..8),
    ) {
        let (mut bytes, _, segments) = recording_of_four();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        if let Ok(recording) = read(&bytes) {
            prop_assert!(recording.samples.len() <= samples_of(&segments));
        }
    }

    #[test]
    fn any_bytes_after_the_header_do_no_harm(noise in prop::collection::vec(any::<u8>(), 0..500)) {
        let (bytes, starts, _) = recording_of_four();
        let file = [&bytes[..starts[0]], noise.as_slice(), &bytes[starts[0]..]].concat();
        let recording = read(&file).unwrap();
        let whole = read(&bytes).unwrap();
        prop_assert_eq!(recording.samples, whole.samples);
    }
}
