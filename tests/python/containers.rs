//! Containers that grow in real interpreters, and what their items are.

use crate::installed::torch_python;
use crate::python_target::{Python, Target};
use std::time::{Duration, Instant};
use torchspy::model::containers::GrowingContainer;
use torchspy::python::threads::read_threads;
use torchspy::torch::probe::held::{Containers, read_containers};

/// Each container gets 50 items a time; `bounded` and `passing` hold no more after a while.
const PLAIN: &str = r#"
import collections, sys

class Run:
    pass

def main():
    run = Run()
    run.kept, run.names, run.seen = [], {}, set()
    run.recent, run.window, run.bounded, run.passing = collections.deque(), collections.deque(), collections.deque(maxlen=20), set()
    count = 0
    while True:
        for _ in range(50):
            count += 1
            run.kept.append(bytes(1000))
            run.names[count] = str(count).zfill(2000)
            run.seen.add("%d" % count + "z" * 3000)
            run.recent.append(bytearray(4000))
            run.window.append(bytes(500)), run.window.append(bytes(500)), run.window.popleft()
            run.bounded.append(count)
            run.passing.add(count)
            run.passing.discard(count - 10)
        # Some of what is in a set was removed before.
        run.seen.discard("1" + "z" * 3000)
        print(count, flush=True)
        sys.stdin.readline()

main()
"#;

const TORCH: &str = r#"
import sys, numpy, torch

def main():
    weights = torch.ones(100, requires_grad=True)
    arrays, views, tensors, losses, detached, numbers = [], [], [], [], [], []
    count = 0
    while True:
        for _ in range(50):
            count += 1
            arrays.append(numpy.zeros((50, 20)))
            views.append(numpy.zeros((100, 40), dtype=numpy.float32)[::2].T)
            tensors.append(torch.zeros(500).numpy())
            loss = (weights * count).sum()
            losses.append(loss)
            detached.append(loss.detach())
            numbers.append((count, loss.item()))
        print(count, flush=True)
        sys.stdin.readline()

main()
"#;

/// What grows after four readings.
fn growing(target: &mut Target) -> Vec<GrowingContainer> {
    target.line();
    let interpreter = target.discover().unwrap();
    let memory = target.memory();
    let mut containers = Containers::default();
    for reading in 0..4 {
        if reading > 0 {
            target.line();
        }
        let threads = read_threads(&interpreter, &memory).unwrap();
        let states: Vec<u64> = threads.iter().map(|thread| thread.state_address).collect();
        let until = Instant::now() + Duration::from_secs(60);
        let read = read_containers(&interpreter, &states, &memory, &containers, until);
        containers.add(read, reading * 1_000_000_000);
        target.send("");
    }
    containers.growing()
}

fn named<'g>(growing: &'g [GrowingContainer], name: &str) -> &'g GrowingContainer {
    let found = growing.iter().find(|each| each.name == name);
    found.unwrap_or_else(|| panic!("no {name}: {growing:#?}"))
}

fn check(python: &str) {
    let Some(python) = Python::find(python) else {
        return;
    };
    let mut target = python.start_source(PLAIN, &[]);
    let growing = growing(&mut target);
    let sizes = [
        ("kept", "list", 1000),
        ("names", "dict", 2000),
        ("seen", "set", 3000),
        ("recent", "deque", 4000),
        ("window", "deque", 500),
    ];
    for (name, class, bytes) in sizes {
        let found = named(&growing, &format!("run.{name}"));
        assert_eq!(found.class, class, "{found:?}");
        assert_eq!(found.function, "main", "{found:?}");
        // One item of a set was removed before the first reading.
        let lengths = (found.first_length, found.last_length);
        let removed = u64::from(name == "seen");
        assert_eq!(lengths, (50 - removed, 200 - removed), "{found:?}");
        let of_item = found.item_bytes.unwrap();
        assert!((bytes..bytes + 200).contains(&of_item), "{found:?}");
    }
    assert_eq!(growing.len(), sizes.len(), "{growing:#?}");
}

#[test]
fn arrays_and_graphs() {
    let Some(path) = torch_python() else { return };
    let python = Python {
        path: path.to_str().unwrap().to_owned(),
        root: None,
    };
    let mut target = python.start_source(TORCH, &[]);
    let growing = growing(&mut target);
    let bytes = [
        ("arrays", 8000),
        ("views", 16_000),
        ("tensors", 2000),
        ("losses", 4),
        ("detached", 4),
        ("numbers", 32),
    ];
    for (name, bytes) in bytes {
        let found = named(&growing, name);
        let of_item = found.item_bytes.unwrap();
        assert!((bytes..bytes + 400).contains(&of_item), "{found:?}");
        assert_eq!(found.items_keep_graphs, name == "losses", "{found:?}");
        assert_eq!(found.item_device_bytes, Some(0), "{found:?}");
    }
}

#[test]
fn containers_on_3_10() {
    check("3.10");
}

#[test]
fn containers_on_3_11() {
    check("3.11");
}

#[test]
fn containers_on_3_12() {
    check("3.12");
}

#[test]
fn containers_on_3_13() {
    check("3.13");
}

#[test]
fn containers_on_3_14() {
    check("3.14");
}

#[test]
fn containers_on_3_15() {
    check("3.15");
}

#[test]
fn containers_without_a_gil() {
    check("3.13t");
}
