//! The real speedscope opens what torchspy writes for it; the pictures are left in target/tmp for a look.

mod report_profile;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use torchspy::report::flamegraph;
use torchspy::report::speedscope::{SpeedscopeOptions, render};
use torchspy::report::view::ViewOptions;

#[test]
fn the_real_speedscope_opens_a_training_run() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let profile = report_profile::training::training();
    let mut svg = File::create(folder.join("training.svg")).unwrap();
    flamegraph::render(&profile, &ViewOptions::default(), &mut svg).unwrap();
    let path = folder.join("training.speedscope.json");
    render(&profile, &SpeedscopeOptions::default(), &mut File::create(&path).unwrap()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check-speedscope");
    let output = Command::new(script).arg(&path).arg(folder.join("training.speedscope.png")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(77) {
        println!("{said}");
        return;
    }
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("6 threads"), "{said}");
}
