//! The JSON of reports and comparisons: the schemas that docs/ holds are those of the code, and
//! what is written fits them.

use crate::verdict_scenarios::{Do, Run};
use serde_json::Value;
use std::path::PathBuf;
use torchspy::analysis::analyze;
use torchspy::analysis::diff::steps::BetweenSteps;
use torchspy::analysis::diff::units::Units;
use torchspy::analysis::diff::{self, Options, compare};
use torchspy::analysis::job::Folded;
use torchspy::analysis::job::reduce::reduce;
use torchspy::model::ids::ProcessId;
use torchspy::native::demangle::demangle;
use torchspy::native::shorten::shorten;
use torchspy::recording::reader::Recording;
use torchspy::report::json::diff::{diff_schema, render_diff_json};
use torchspy::report::json::job::{job_schema, render_job_json};
use torchspy::report::json::scaling::scaling_schema;
use torchspy::report::json::trace::trace_schema;
use torchspy::report::json::{render_json, schema};
use torchspy::resolve::{Names, resolve};
use torchspy::torch::rules::RuleSet;

/// A part of the made-up run.
const STEP_NS: u64 = 100_000_000;

fn in_tree(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compares a file of docs/ with what it is generated from; `UPDATE_DOCS=1` writes it.
fn assert_generated(path: &str, text: &str) {
    let file = in_tree(path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        there == text,
        "{path} is stale: UPDATE_DOCS=1 cargo test --test report json_schema"
    );
}

#[test]
fn the_schemas_in_docs_are_those_of_the_code() {
    for (name, schema) in [
        ("report", schema()),
        ("diff", diff_schema()),
        ("job", job_schema()),
        ("scaling", scaling_schema()),
        ("trace", trace_schema()),
    ] {
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        assert_generated(&format!("docs/schema/{name}.json"), &text);
    }
}

/// Where `value` does not fit `schema`, of which these are the words that schemars uses.
fn misfits(schema: &Value, value: &Value, root: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/$defs/").unwrap();
        return misfits(&root["$defs"][name], value, root, at, found);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = |choice: &Value| {
            let mut inner = Vec::new();
            misfits(choice, value, root, at, &mut inner);
            inner.is_empty()
        };
        if !choices.iter().any(fits) {
            found.push(format!("{at}: none of its types"));
        }
        return;
    }
    let own = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_type = |wanted: &Value| wanted == own || (wanted == "number" && own == "integer");
    let fits = match &schema["type"] {
        Value::Array(types) => types.iter().any(is_type),
        Value::Null => true,
        wanted => is_type(wanted),
    };
    if !fits {
        found.push(format!("{at}: {own} is no {}", schema["type"]));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        misfits(
            &schema["items"],
            item,
            root,
            &format!("{at}[{index}]"),
            found,
        );
    }
    let Some(object) = value.as_object() else {
        return;
    };
    for (key, item) in object {
        let at = format!("{at}.{key}");
        match (
            schema["properties"].get(key),
            schema.get("additionalProperties"),
        ) {
            (Some(schema), _) | (None, Some(schema)) if *schema != Value::Bool(false) => {
                misfits(schema, item, root, &at, found);
            }
            _ => found.push(format!("{at}: not in the schema")),
        }
    }
    for key in schema["required"].as_array().into_iter().flatten() {
        if !object.contains_key(key.as_str().unwrap()) {
            found.push(format!("{at}.{key}: lacking"));
        }
    }
}

fn assert_fits(schema: &schemars::Schema, text: &str) {
    let schema = serde_json::to_value(schema).unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    let mut found = Vec::new();
    misfits(&schema, &value, &schema, "", &mut found);
    assert!(found.is_empty(), "{found:#?}");
    // What has a key that nobody knows does not fit.
    let mut other = value;
    other["nobody_knows"] = Value::Null;
    misfits(&schema, &other, &schema, "", &mut found);
    assert_eq!(found, [".nobody_knows: not in the schema"]);
}

#[test]
fn what_is_written_fits_them() {
    let recording = Recording::read(&in_tree("tests/fixtures/recording/v1.tspy")).unwrap();
    let names = Names {
        demangle,
        shorten,
        rules: RuleSet::built_in(),
    };
    let recorded = resolve(&recording, names);
    let (made_up, _) = Run::new("a run", None, &[(Do::Wait, 60), (Do::Launch, 40)]).verdict();
    for profile in [&recorded, &made_up] {
        let text = render_json(profile, &analyze(profile)).unwrap();
        assert_fits(&schema(), &text);
    }
    let runs: Vec<(u64, u64)> = (0..20)
        .map(|step| (step * STEP_NS, (step + 1) * STEP_NS))
        .collect();
    let side = |name: &str| diff::Run {
        name: name.to_owned(),
        profile: &made_up,
        process: ProcessId(0),
        units: Units::Steps(runs.clone()),
        evaluation: BetweenSteps {
            passes: 2,
            ns: STEP_NS,
        },
    };
    let compared = compare(&[side("a")], &[side("b")], &Options::default()).unwrap();
    assert_fits(&diff_schema(), &render_diff_json(&compared).unwrap());
    let mut folded = Folded::default();
    for file in ["a.tspy", "b.tspy"] {
        folded.add(file.to_owned(), reduce(&recorded));
    }
    folded.leave_out("c.tspy".to_owned(), "it is no recording".to_owned());
    let text = render_job_json(&folded.finish(None)).unwrap();
    assert_fits(&job_schema(), &text);
}
