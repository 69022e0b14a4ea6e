//! `torchspy dump --memory`: what modules and optimizers hold, compared with what the program
//! itself computes from `parameters()`, `grad`, the optimizer's state, `buffers()` and
//! `state_dict()`.

use crate::faults::{self, Target, program};
use crate::native_live::torch_python;
use serde_json::Value;
use std::process::Command;

const KINDS: [&str; 4] = ["parameters", "gradients", "optimizer_state", "buffers"];

/// The program in this case, and what it computed.
fn target(case: &str) -> Option<(Target, Value)> {
    let python = torch_python()?;
    let mut target = Target::spawn(Command::new(python).args([&program("held_memory.py"), case]));
    target.expect("ready");
    let truth = serde_json::from_str(&target.line()).unwrap();
    Some((target, truth))
}

fn dump(target: &Target, options: &[&str]) -> String {
    faults::dump(target.pid(), &[&["--memory"], options].concat())
}

fn held(target: &Target) -> Value {
    let value: Value = serde_json::from_str(&dump(target, &["--json"])).unwrap();
    let memory = &value["looks"][0]["memory"];
    assert_eq!(memory.as_array().unwrap().len(), 1, "{memory:#}");
    memory[0]["held"].clone()
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

/// Everything was read, and is what the program computed: within no less than a byte.
fn check_all(case: &str) -> Option<Value> {
    let (target, truth) = target(case)?;
    let held = held(&target);
    assert_eq!(held["cut"], Value::Null, "{held:#}");
    assert_eq!(held["unread"], Value::Array(Vec::new()), "{held:#}");
    for kind in KINDS {
        assert_eq!(held[kind], truth[kind], "{case}: {kind}: {held:#}");
    }
    let sum: u64 = KINDS.iter().map(|kind| number(&held[*kind])).sum();
    assert_eq!(number(&held["bytes"]), sum);
    let of_state_dict = number(&held["parameters"]) + number(&held["buffers"]);
    if truth["state_dict"] != 0 {
        assert_eq!(of_state_dict, number(&truth["state_dict"]), "{case}");
    }
    Some(held)
}

/// What a module holds itself of this kind.
fn own(held: &Value, path: &str, kind: &str) -> u64 {
    let modules = held["modules"].as_array().unwrap();
    let module = modules.iter().find(|module| module["path"] == path);
    let module = module.unwrap_or_else(|| panic!("no {path}: {held:#}"));
    let parts = module["own"].as_array().unwrap().iter();
    let parts = parts.filter(|part| part["holding"] == kind);
    parts.map(|part| number(&part["bytes"])).sum()
}

#[test]
fn tied_weights_and_the_state_of_adam() {
    let Some(held) = check_all("adam") else {
        return;
    };
    assert_eq!(held["shared_tensors"], 1);
    assert_eq!(held["shared"][0]["name"], "model.lm_head.weight");
    assert_eq!(
        held["shared"][0]["counted_as"],
        "model.transformer.wte.weight"
    );
    assert_eq!(held["optimizers"][0], "AdamW");
    let linear = "model.transformer.h.2.mlp.0";
    let bytes = (64 * 256 + 256) * 4;
    assert_eq!(own(&held, linear, "parameters"), bytes);
    assert_eq!(own(&held, linear, "gradients"), bytes);
    // Two averages, and a step for each of the two parameters.
    assert_eq!(own(&held, linear, "optimizer_state"), 2 * bytes + 2 * 4);
    assert_eq!(own(&held, "model.transformer", "buffers"), 64 * 64);
    assert_eq!(own(&held, "model.lm_head", "parameters"), 0);
}

#[test]
fn a_frozen_module_has_neither_gradients_nor_state() {
    let Some(held) = check_all("frozen") else {
        return;
    };
    for (layer, is_trained) in [("0", false), ("1", false), ("2", true)] {
        let path = format!("model.transformer.h.{layer}.mlp.0");
        assert!(own(&held, &path, "parameters") > 0);
        for kind in ["gradients", "optimizer_state"] {
            assert_eq!(own(&held, &path, kind) > 0, is_trained, "{path} {kind}");
        }
    }
}

#[test]
fn several_types_without_an_optimizer() {
    let Some(held) = check_all("mixed") else {
        return;
    };
    let parts = held["parts"].as_array().unwrap();
    let mut types: Vec<&str> = parts
        .iter()
        .map(|part| part["dtype"].as_str().unwrap())
        .collect();
    types.sort_unstable();
    types.dedup();
    assert_eq!(
        types,
        ["bfloat16", "bool", "float16", "float32", "float64", "int64"]
    );
    assert!(
        parts.iter().all(|part| part["device"] == "cpu"),
        "{parts:#?}"
    );
    assert_eq!(held["optimizers"], Value::Array(Vec::new()));
}

#[test]
fn holders_of_every_kind() {
    for case in [
        "forward",
        "lbfgs",
        "wrapped",
        "orphans",
        "trainer",
        "thread",
        "distributed",
    ] {
        let Some(held) = check_all(case) else { return };
        assert!(number(&held["parameters"]) > 0, "{case}");
    }
}

#[test]
fn views_of_one_storage_count_once() {
    let Some((target, truth)) = target("views") else {
        return;
    };
    let held = held(&target);
    assert_eq!(held["parameters"], 2000 * 4);
    assert_eq!(held["uncovered_bytes"], 1000 * 4);
    assert_eq!(truth["parameters"], 3000 * 4);
    assert_eq!(held["shared"][0]["counted_as"], "model.one", "{held:#}");
}

#[test]
fn what_has_no_memory_or_cannot_be_read_is_in_no_figure() {
    let Some((target_of_meta, _)) = target("meta") else {
        return;
    };
    let meta = held(&target_of_meta);
    assert_eq!(meta["bytes"], 0);
    assert!(
        meta["parts"][0]["device"] == "meta" && number(&meta["parts"][0]["tensors"]) > 0,
        "{meta:#}"
    );
    let Some((target_of_sparse, truth)) = target("sparse") else {
        return;
    };
    let sparse = held(&target_of_sparse);
    assert_eq!(sparse["parameters"], truth["parameters"]);
    assert_eq!(sparse["gradients"], 0);
    assert_eq!(sparse["unread"][0]["tensors"], 1);
    assert_eq!(sparse["unread"][0]["first"], "model.weight.grad");
    let shown = dump(&target_of_sparse, &[]);
    assert!(
        shown.contains("not read, and in no figure: 1 tensor"),
        "{shown}"
    );
}

#[test]
fn a_process_without_modules_or_without_torch() {
    for (case, words) in [
        (
            "empty",
            "no variable of its frames leads to a module or an optimizer",
        ),
        ("plain", "it has no torch"),
    ] {
        let Some((target, _)) = target(case) else {
            return;
        };
        assert_eq!(held(&target), Value::Null);
        let shown = dump(&target, &[]);
        assert!(shown.contains(words), "{shown}");
    }
}

/// Tensors come and go meanwhile; what stays is always whole.
#[test]
fn a_training_that_goes_on() {
    let Some((mut target, truth)) = target("training") else {
        return;
    };
    for _ in 0..10 {
        let held = held(&target);
        for kind in ["parameters", "optimizer_state", "buffers"] {
            assert_eq!(held[kind], truth[kind], "{kind}: {held:#}");
        }
        assert!(
            number(&held["gradients"]) <= number(&truth["gradients"]),
            "{held:#}"
        );
    }
    target.tell("");
    assert!(target.wait().success());
}

#[test]
fn a_table_for_people() {
    let Some((target, _)) = target("adam") else {
        return;
    };
    let shown = dump(&target, &[]);
    for words in [
        "none was stopped",
        "parameters",
        "AdamW: ",
        "transformer",
        "h.* (4 x)",
        "counted once: 1 tensor",
        "not counted: activations",
    ] {
        assert!(shown.contains(words), "no {words}: {shown}");
    }
}
