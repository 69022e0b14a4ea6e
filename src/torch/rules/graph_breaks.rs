//! Graph breaks, from the names of the functions that dynamo makes for the code after them.

use crate::model::compile::GraphBreak;

/// Names of the rest of a function after a graph break: torch/_dynamo/resume_execution.py,
/// `TORCH_DYNAMO_RESUME_IN_PREFIX`.
const RESUMED: &str = "torch_dynamo_resume_in_";

/// The graph break in the name of a function: `Net.torch_dynamo_resume_in_forward_at_23` is
/// `Net.forward` from line 23 on. After two breaks the prefix occurs twice; the line of the first
/// break is not used then.
pub(super) fn graph_break(name: &str) -> Option<GraphBreak> {
    let (path, last) = match name.rsplit_once('.') {
        Some((path, last)) => (Some(path), last),
        None => (None, name),
    };
    let (mut function, line) = last.strip_prefix(RESUMED)?.rsplit_once("_at_")?;
    let line = line.parse().ok()?;
    while let Some(inner) = function.strip_prefix(RESUMED) {
        function = inner.rsplit_once("_at_").map_or(inner, |(name, _)| name);
    }
    let function = match path {
        Some(path) => format!("{path}.{function}"),
        None => function.to_owned(),
    };
    Some(GraphBreak { function, line })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graph_breaks_are_named_after_the_function() {
        let place = |function: &str, line| {
            let function = function.to_owned();
            Some(GraphBreak { function, line })
        };
        let cases = [
            ("torch_dynamo_resume_in_step_at_23", place("step", 23)),
            (
                "Net.torch_dynamo_resume_in_forward_at_7",
                place("Net.forward", 7),
            ),
            (
                "torch_dynamo_resume_in_torch_dynamo_resume_in_look_at_me_at_7_at_9",
                place("look_at_me", 9),
            ),
            ("torch_dynamo_resume_in_step", None),
            ("torch_dynamo_resume_in_step_at_x", None),
            ("forward", None),
        ];
        for (name, wanted) in cases {
            assert_eq!(graph_break(name), wanted, "{name}");
        }
    }
}
