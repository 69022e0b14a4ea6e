//! The pure stages that every sample passes through.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use torchspy::model::quality::DurationHistogram;
use torchspy::model::stack_table::StackTable;

fn histogram(criterion: &mut Criterion) {
    let durations: Vec<u64> = (0..1000_u64)
        .map(|number| number.wrapping_mul(2_654_435_761) % 1_000_000)
        .collect();
    criterion.bench_function("histogram: record 1,000 durations", |bencher| {
        let mut histogram = DurationHistogram::default();
        bencher.iter(|| {
            for &duration in black_box(&durations) {
                histogram.record(duration);
            }
        });
    });
}

/// A training loop's stacks: a shared root part of 30 frames, and 10 frames of which the last few
/// differ.
fn stacks() -> Vec<Vec<u32>> {
    (0..200_u32)
        .map(|number| {
            (0..30)
                .chain((0..10).map(|depth| 100 + depth * 1000 + number % (depth + 1)))
                .collect()
        })
        .collect()
}

fn stack_table(criterion: &mut Criterion) {
    let stacks = stacks();
    criterion.bench_function(
        "stack table: intern 200 stacks of 40 frames, all known",
        |bencher| {
            let mut table = StackTable::default();
            bencher.iter(|| {
                for stack in black_box(&stacks) {
                    black_box(table.intern(stack.iter().copied()));
                }
            });
        },
    );
}

criterion_group!(model, histogram, stack_table);
criterion_main!(model);
