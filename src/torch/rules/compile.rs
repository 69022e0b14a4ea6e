//! Which functions are the compiler's, at which stage, and which were made by it.
//!
//! Of a moment of the phase `compile` the innermost function with a stage decides. Files that every stage uses say nothing.
//! Source: the named files of torch 2.15.0 and triton 3.9.

use super::phases::{has_path, last_part};
use crate::model::compile::{CompileMark, CompileStage, GraphBreak, Subject};

use CompileMark::{Backward, Between, Generated, Graph, Stage, Wrapper};
use CompileStage::{AotAutograd, Build, Dynamo, Inductor};

/// File, last part of the function's name (`*` for all), meaning; first match.
const ROWS: &[(&str, &str, CompileMark)] = &[
    // What calls the code that was made, and is not part of compiling.
    ("torch/_inductor/output_code.py", "__call__", Generated),
    ("torch/_inductor/utils.py", "run", Generated),
    ("torch/fx/graph_module.py", "call_wrapped", Graph),
    ("torch/_dynamo/external_utils.py", "inner", Wrapper),
    // Helpers of all stages.
    ("torch/_dynamo/utils.py", "*", Between),
    ("torch/_dynamo/callback.py", "*", Between),
    ("torch/_inductor/utils.py", "*", Between),
    ("torch/_inductor/runtime/", "*", Between),
    // Decompositions are called by the tracer of AOTAutograd.
    ("torch/_inductor/decomposition.py", "*", Between),
    ("torch/_inductor/config.py", "*", Between),
    ("torch/fx/", "*", Between),
    ("torch/autograd/graph.py", "_engine_run_backward", Backward),
    ("torch/autograd/__init__.py", "backward", Backward),
    ("torch/autograd/", "*", Between),
    ("torch/_compile.py", "*", Between),
    ("torch/_higher_order_ops/", "*", Between),
    ("torch/amp/", "*", Between),
    ("torch/_ops.py", "*", Between),
    ("torch/utils/", "*", Between),
    // Compilers, and the wait for them.
    ("torch/_inductor/cpp_builder.py", "*", Stage(Build)),
    ("torch/_inductor/cpu_vec_isa.py", "*", Stage(Build)),
    ("torch/_inductor/async_compile.py", "*", Stage(Build)),
    ("torch/_inductor/compile_worker/", "*", Stage(Build)),
    ("torch/_inductor/codecache.py", "load_async", Stage(Build)),
    ("torch/_inductor/codecache.py", "load", Stage(Build)),
    (
        "torch/_inductor/codecache.py",
        "load_pybinding",
        Stage(Build),
    ),
    (
        "torch/_inductor/codecache.py",
        "load_pybinding_async",
        Stage(Build),
    ),
    (
        "torch/_inductor/codecache.py",
        "_load_library",
        Stage(Build),
    ),
    (
        "torch/_inductor/codecache.py",
        "_worker_compile_cpp",
        Stage(Build),
    ),
    (
        "torch/_inductor/codecache.py",
        "_precompile_header",
        Stage(Build),
    ),
    ("triton/", "*", Stage(Build)),
    ("torch/_inductor/", "*", Stage(Inductor)),
    ("torch/_functorch/", "*", Stage(AotAutograd)),
    ("torch/_dynamo/", "*", Stage(Dynamo)),
];

/// Code that FX and Inductor make: torch/fx/graph_module.py, torch/_inductor/runtime/cache_dir_utils.py (`default_cache_dir`).
const MADE: &[(&str, CompileMark)] = &[("<eval_with_key>", Graph), ("/torchinductor_", Generated)];

/// Names of what is left of a function behind a graph break: torch/_dynamo/resume_execution.py,
/// `TORCH_DYNAMO_RESUME_IN_PREFIX`.
const RESUMED: &str = "torch_dynamo_resume_in_";

/// What a Python function tells of torch.compile.
pub fn mark(file: &str, function: &str) -> CompileMark {
    if let Some((_, made)) = MADE.iter().find(|(part, _)| file.contains(part)) {
        return made.clone();
    }
    if let Some(place) = graph_break(function) {
        return CompileMark::Resumed(place);
    }
    let last = last_part(function);
    ROWS.iter()
        .find(|(part, name, _)| (*name == "*" || *name == last) && has_path(file, part))
        .map_or(CompileMark::None, |(_, _, mark)| mark.clone())
}

/// What the compilation of a Python function is of.
pub fn subject(file: &str, function: &str) -> Subject {
    match mark(file, function) {
        CompileMark::Wrapper => Subject::Wrapper,
        CompileMark::Resumed(place) => Subject::Rest(place),
        _ => Subject::Function(function.to_owned()),
    }
}

/// Where the function of this name was cut off: `Net.torch_dynamo_resume_in_forward_at_23` is `Net.forward` from line 23 on.
/// What was cut twice has the prefix twice; the first cut's line is not of interest then.
pub fn graph_break(name: &str) -> Option<GraphBreak> {
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

/// Whether a Python function is given the code object to compile as its first parameter: torch/_dynamo/convert_frame.py,
/// `_compile`.
pub fn takes_code(file: &str, function: &str) -> bool {
    function == "_compile" && has_path(file, "torch/_dynamo/convert_frame.py")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: &str = "/env/lib/python3.11/site-packages/";

    #[test]
    fn stages_are_told_by_file() {
        let cases = [
            (
                "torch/_dynamo/symbolic_convert.py",
                "InstructionTranslator.run",
                Stage(Dynamo),
            ),
            (
                "torch/_functorch/partitioners.py",
                "min_cut",
                Stage(AotAutograd),
            ),
            (
                "torch/_inductor/scheduler.py",
                "Scheduler.fuse",
                Stage(Inductor),
            ),
            (
                "torch/_inductor/cpp_builder.py",
                "run_compile_cmd",
                Stage(Build),
            ),
            (
                "torch/_inductor/output_code.py",
                "CompiledFxGraph.__call__",
                Generated,
            ),
            ("torch/_dynamo/utils.py", "dynamo_timed", Between),
            (
                "torch/nn/modules/module.py",
                "Module._call_impl",
                CompileMark::None,
            ),
        ];
        for (file, function, wanted) in cases {
            assert_eq!(mark(&format!("{SITE}{file}"), function), wanted, "{file}");
        }
        let made = "/tmp/torchinductor_u/c2/cc2x.py";
        assert_eq!(mark(made, "Runner.call"), Generated);
        assert_eq!(mark("<eval_with_key>.3", "forward"), Graph);
        assert_eq!(mark("/home/u/train.py", "main"), CompileMark::None);
        assert!(takes_code(
            &format!("{SITE}torch/_dynamo/convert_frame.py"),
            "_compile"
        ));
        assert!(!takes_code("/home/u/convert_frame.py", "_compile"));
    }

    #[test]
    fn every_row_can_match() {
        for (index, (part, name, _)) in ROWS.iter().enumerate() {
            let function = if *name == "*" { "anything" } else { name };
            let file = format!("{SITE}{part}");
            let first = ROWS.iter().position(|(part, name, _)| {
                (*name == "*" || *name == function) && has_path(&file, part)
            });
            assert_eq!(first, Some(index), "{part} {name} is shadowed");
        }
    }

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
