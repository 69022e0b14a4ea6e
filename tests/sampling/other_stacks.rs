//! Threads that run on a fiber, and on an alternate signal stack.
// Tests may: clippy's exemption does not reach helper functions of integration tests.

use crate::faults::{
    How, Recorder, Target, compiled, partial, run, seconds_with, stacks_cut_by, wait_until,
};
use crate::on_each_engine;

on_each_engine!(every_stack_is_read_as_far_as_it_goes);

/// A fiber's stack is read up to its entry, to which no call leads, and the thread's own to its
/// root. From an alternate signal stack the frames are followed as far as it goes, and the stack
/// says that they go on in another.
fn every_stack_is_read_as_far_as_it_goes(engine: &str) {
    let Some(program) = compiled("other_stacks.c") else {
        return;
    };
    let target = Target::start(&[&program]);
    let how = How {
        options: &["--rate", "200", "--max-stopped", "off", "--engine", engine],
        fault: None,
    };
    let recorder = Recorder::attach(target.pid(), how);
    wait_until("each of the stacks is seen for long enough", || {
        recorder.wait_for_segment();
        let dump = run(&["inspect", &recorder.path().to_string_lossy()]).stdout;
        ["on_a_fiber", "on_its_own_stack", "on_an_alternate_stack"]
            .iter()
            .all(|function| seconds_with(&dump, function) > 0.5)
    });
    let recorded = recorder.interrupt().expect_success();
    let (report, dump) = (recorded.report(), recorded.inspect());
    // Of what was cut, all was cut there.
    let fresh = report["quality"]["fresh"].as_u64().unwrap();
    let (left, entered) = (
        partial(&report, "other_stack"),
        partial(&report, "bad_return_address"),
    );
    let cut = left + entered;
    assert!(left > 0 && entered > 0 && cut < fresh, "{cut} of {fresh}");
    assert_eq!(partial(&report, "stack_unreadable"), 0);
    assert_eq!(partial(&report, "no_progress"), 0);
    assert!(stacks_cut_by(&dump, "other_stack") > 0);
    let share = report["quality"]["rooted_share"].as_f64().unwrap();
    let expected = 1.0 - cut as f64 / fresh as f64;
    assert!((share - expected).abs() < 1e-6, "{share} {expected}");
}
