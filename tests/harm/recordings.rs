//! Recordings that are no recordings, or not whole, as users of `report`, `convert` and `inspect`
//! meet them. (What the reader makes of every damage is in recording_damage.rs.)

use crate::faults::{How, Recorder, assert_error, compiled, run};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tempfile::TempDir;

/// A recording of about two seconds.
static WHOLE: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| {
    let spin = compiled("fault_spin.c")?;
    let command = Recorder::launch_command(&[&spin, "2.3"], How::default());
    let recorded = Recorder::spawn(command, tempfile::tempdir().unwrap())
        .finish()
        .expect_success();
    Some(std::fs::read(recorded.path()).unwrap())
});

fn write(folder: &TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("run.tspy");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The three commands that read a recording.
fn commands(path: &Path) -> Vec<Vec<String>> {
    let path = path.to_string_lossy().into_owned();
    let output = format!("{path}.folded");
    [
        vec!["report", &path],
        vec!["report", "--json", &path],
        vec!["convert", &path, "-o", &output],
        vec!["inspect", &path],
    ]
    .map(|words| words.into_iter().map(str::to_owned).collect())
    .to_vec()
}

fn run_all(path: &Path, mut check: impl FnMut(&str, crate::faults::Output)) {
    for words in commands(path) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        check(words[0], run(&words));
    }
}

#[test]
fn what_is_no_recording_is_an_error_with_a_hint() {
    let Some(whole) = &*WHOLE else { return };
    let mut future = whole.clone();
    future[8..12].copy_from_slice(&9_u32.to_le_bytes());
    let header_length = u32::from_le_bytes(whole[12..16].try_into().unwrap()) as usize;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&future[..16]);
    hasher.update(&future[20..20 + header_length]);
    future[16..20].copy_from_slice(&hasher.finalize().to_le_bytes());
    let mut corrupt = whole.clone();
    corrupt[25] ^= 0x40;
    let cases: [(&str, &[u8], &str); 5] = [
        ("empty", b"", "it is empty"),
        ("text", b"epoch 1\n", "it looks like text"),
        ("future", &future, "use a newer torchspy"),
        ("header cut", &whole[..30], "its header is cut"),
        ("header corrupt", &corrupt, "its header is cut or damaged"),
    ];
    for (what, bytes, cause) in cases {
        let folder = tempfile::tempdir().unwrap();
        let path = write(&folder, bytes);
        run_all(&path, |command, output| {
            assert_eq!(output.status.code(), Some(1), "{what} {command}");
            assert_error(&output, cause, &["torchspy"]);
            assert_eq!(output.stdout, "", "{what} {command}");
        });
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "{what}: no output is left"
        );
    }
    run_all(Path::new("/nonexistent/run.tspy"), |_, output| {
        assert_error(
            &output,
            "cannot open /nonexistent/run.tspy",
            &["record writes"],
        );
    });
}

/// A part of it is read, and what is missing is said on stderr, in the summary and in the JSON.
#[test]
fn what_is_not_whole_is_read_and_says_so() {
    let Some(whole) = &*WHOLE else { return };
    let marks: Vec<usize> = whole
        .windows(8)
        .enumerate()
        .filter(|(_, window)| *window == b"\xF5TSEG\r\n\x1A")
        .map(|(at, _)| at)
        .collect();
    assert!(marks.len() >= 3, "{} segments", marks.len());
    let mut flipped = whole.clone();
    flipped[marks[1] + 60] ^= 0x10;
    let cases: [(&str, &[u8], &str); 3] = [
        ("cut", &whole[..marks[2] - 5], "the end is missing"),
        (
            "cut between segments",
            &whole[..marks[2]],
            "the end is missing",
        ),
        ("corrupt", &flipped, "1 segment is corrupt or missing"),
    ];
    for (what, bytes, missing) in cases {
        let folder = tempfile::tempdir().unwrap();
        let path = write(&folder, bytes);
        run_all(&path, |command, output| {
            assert!(
                output.status.success(),
                "{what} {command}: {}",
                output.stderr
            );
            if command != "inspect" {
                assert!(
                    output.stderr.contains(&format!("warning: {missing}")),
                    "{what} {command}: {}",
                    output.stderr
                );
            }
            if command != "convert" {
                assert!(
                    output.stdout.contains(missing),
                    "{what} {command}: {}",
                    output.stdout
                );
            }
        });
        let folded = std::fs::read_to_string(folder.path().join("run.tspy.folded")).unwrap();
        assert!(folded.contains("spin_in_c"), "{what}: {folded}");
    }
}

/// Names of the target reach the terminal without their control bytes.
#[test]
fn control_bytes_of_a_target_do_not_reach_the_terminal() {
    let Some(spin) = compiled("fault_spin.c") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let nasty = folder.path().join("spin\x1b[2J\x07name");
    crate::calls::copy_program(&spin, &nasty);
    let nasty = nasty.to_string_lossy().into_owned();
    let command = Recorder::launch_command(&[&nasty, "0.3", "\x1b]0;title\x07"], How::default());
    let recorded = Recorder::spawn(command, tempfile::tempdir().unwrap())
        .finish()
        .expect_success();
    assert!(
        !recorded.messages.contains(['\x1b', '\x07']),
        "{:?}",
        recorded.messages
    );
    run_all(&recorded.path(), |command, output| {
        assert!(
            !output.stdout.contains(['\x1b', '\x07']),
            "{command}: {:?}",
            output.stdout
        );
        assert!(
            !output.stderr.contains(['\x1b', '\x07']),
            "{command}: {:?}",
            output.stderr
        );
    });
    assert!(
        recorded.inspect().contains("name"),
        "{}",
        recorded.inspect()
    );
}
