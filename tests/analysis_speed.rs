//! Resolving costs a look-up per sample, not a search: a recording with many samples of few stacks
//! names each once.

mod analysis_builder;

use analysis_builder::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use torchspy::analysis::analyze;
use torchspy::resolve::{Names, resolve};

static DEMANGLED: AtomicUsize = AtomicUsize::new(0);

fn counting(name: &str) -> String {
    DEMANGLED.fetch_add(1, Ordering::Relaxed);
    name.to_owned()
}

#[test]
fn every_symbol_is_demangled_once_however_many_samples_there_are() {
    let mut builder = Builder::trainer();
    for depth in 0..2000_u32 {
        let frames: Vec<F> = (0..40)
            .map(|frame| {
                if frame % 2 == 0 {
                    user("f", depth * 50 + frame)
                } else {
                    torch(&format!("at::native::k{}(int)", frame % 8))
                }
            })
            .collect();
        builder.ticks(0, 1, S::Running, &frames);
    }
    for _ in 0..4 {
        let again = builder.samples.clone();
        builder.samples.extend(again);
    }
    let symbols = builder.symbols.len();
    let recording = builder.recording(1);
    let names = Names {
        demangle: counting,
        shorten: str::to_owned,
        rules: torchspy::torch::rules::RuleSet::built_in(),
    };
    let started = std::time::Instant::now();
    let profile = resolve(&recording, names);
    let resolved = started.elapsed();
    let analysis = analyze(&profile);
    println!(
        "resolve {resolved:?}, all {:?}, {} samples",
        started.elapsed(),
        profile.samples.len()
    );
    assert_eq!(profile.samples.len(), 32_000);
    assert_eq!(DEMANGLED.load(Ordering::Relaxed), symbols);
    assert_eq!(
        analysis.primary().map(|process| process.ticks),
        Some(32_000)
    );
}
