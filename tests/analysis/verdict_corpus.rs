//! Verdicts on the runs of a corpus (verdict_scenarios/corpus.toml), each by its name.
//!
//! A case that is not a known failure must get one of its answers. A known failure must still fail,
//! so that the list stays true, and must not be wrong with high confidence.

use crate::verdict_scenarios::{Do, Run};
use serde::Deserialize;
use std::collections::BTreeSet;
use torchspy::analysis::verdict::Confidence;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    answers: Vec<String>,
    detail: Option<String>,
    known_failure: Option<String>,
    run: Run,
}

fn cases() -> Vec<Case> {
    #[derive(Deserialize)]
    struct Corpus {
        case: Vec<Case>,
    }
    let text = include_str!("../verdict_scenarios/corpus.toml");
    toml::from_str::<Corpus>(text).unwrap().case
}

/// Why the verdict on a case is not the right one, if it is not.
fn failure(case: &Case) -> Option<String> {
    let verdict = case.run.reported();
    let cause = verdict.as_ref().and_then(|verdict| verdict.cause);
    let confidence = verdict.as_ref().and_then(|verdict| verdict.confidence);
    let name = cause.map_or("none", |cause| cause.name());
    let detail = cause.and_then(|cause| cause.detail());
    // No detail is always right.
    let fits = case.detail.is_none() || detail.is_none() || detail == case.detail.as_deref();
    if case.answers.iter().any(|answer| answer == name) && fits {
        return None;
    }
    let is_sure = cause.is_some() && confidence == Some(Confidence::High);
    match &case.known_failure {
        Some(_) if !is_sure => Some(String::new()),
        _ => Some(format!(
            "{}: {name} {detail:?} ({confidence:?}), expected {:?} {:?}: {:?}",
            case.name,
            case.answers,
            case.detail,
            verdict.map(|verdict| verdict.findings)
        )),
    }
}

#[test]
fn every_case_has_its_verdict() {
    let mut wrong = Vec::new();
    for case in &cases() {
        match (failure(case), &case.known_failure) {
            (Some(why), _) if !why.is_empty() => wrong.push(why),
            (None, Some(_)) => {
                wrong.push(format!("{}: passes: no known failure any more", case.name))
            }
            _ => {}
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// The threads and processes of a run must take the same time, or it is no run.
#[test]
fn every_part_of_a_run_takes_as_long() {
    let cases = cases();
    assert_eq!(cases.len(), 265);
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "names");
    let ticks = |step: &[(Do, u64)]| step.iter().map(|(_, length)| length).sum::<u64>();
    for Case { name, run, .. } in &cases {
        let whole = ticks(&run.step);
        assert!(whole > 0, "{name}");
        for other in &run.others {
            assert_eq!(ticks(other), whole, "{name}: ranks");
        }
        for loader in &run.loaders {
            let length: u64 = loader.step.iter().map(|(_, length)| length).sum();
            let wanted = if loader.count == 0 { 0 } else { whole };
            assert_eq!(length, wanted, "{name}: workers");
        }
    }
}
