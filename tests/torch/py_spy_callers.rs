//! Programs that start py-spy, in their own code: they get from torchspy by that name what they ask
//! for.

use crate::faults::{TORCHSPY, Target, any_python, output_of, program};
use crate::installed::frameworks_python;
use serde_json::Value;
use std::process::Command;

/// What a program prints that finds torchspy as py-spy, and nothing else, in its PATH.
fn answers(words: &[&str]) -> Option<Value> {
    let python = frameworks_python()?;
    let folder = tempfile::tempdir().unwrap();
    let link = output_of(
        Command::new(TORCHSPY)
            .arg("install-py-spy")
            .arg(folder.path()),
    );
    assert!(link.status.success(), "{}", link.stderr);
    let mut command = Command::new(python);
    command.args(words).current_dir(&folder);
    let output = output_of(command.env("PATH", folder.path()));
    let answers = serde_json::from_str(output.stdout.lines().last().unwrap_or_default());
    Some(answers.unwrap_or_else(|_| panic!("{}{}", output.stdout, output.stderr)))
}

#[test]
fn torch_s_debug_server_shows_stacks() {
    let Some(answers) = answers(&[&program("debug_server.py")]) else {
        return;
    };
    let answers = answers.as_object().unwrap();
    assert_eq!(answers.len(), 4);
    for (query, answer) in answers {
        let answer = answer.as_str().unwrap();
        assert!(
            answer.contains("rests (") && answer.contains("debug_server.py:"),
            "{query}: {answer}"
        );
        assert!(!answer.contains("Failed"), "{query}: {answer}");
        assert_eq!(
            answer.contains("libc.so.6"),
            query.contains("native"),
            "{query}: {answer}"
        );
    }
}

#[test]
fn ray_s_dashboard_shows_stacks() {
    let Some(python) = any_python() else { return };
    let source =
        "def spin():\n    print('ready', flush=True)\n    while True:\n        pass\nspin()";
    let target = Target::start(&[&python, "-c", source]);
    let Some(answers) = answers(&[&program("ray_profile.py"), &target.pid().to_string()]) else {
        return;
    };
    let answers = answers.as_object().unwrap();
    assert_eq!(answers.len(), 8);
    for (name, answer) in answers {
        let text = answer[1].as_str().unwrap();
        assert_eq!(answer[0], name != "gone", "{name}: {text}");
        match name.as_str() {
            "gone" => assert!(text.contains("2147483647"), "{text}"),
            _ => assert!(text.contains("spin"), "{name}: {text}"),
        }
    }
}
