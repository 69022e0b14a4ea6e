//! What is known of `nn.Module`: the functions that call one, the attributes that hold its parts, and the wrappers that
//! are no part of a model.

use super::phases::{has_path, last_part};

/// How a Python function takes part in calling a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ModuleCall {
    /// Not at all.
    #[default]
    No,
    /// It is the call; its first variable is the module.
    Outer,
    /// The same before torch 2.1; later what the call above calls. Its first variable is the module, or a cell that holds it.
    Inner,
}

/// Where modules are called. Source: torch 2.0, 2.4, 2.7, 2.10 and 2.15, torch/nn/modules/module.py.
const FILE: &str = "torch/nn/modules/module.py";

/// The part of a Python function.
pub fn module_call(file: &str, function: &str) -> ModuleCall {
    let call = match last_part(function) {
        "_wrapped_call_impl" => ModuleCall::Outer,
        "_call_impl" => ModuleCall::Inner,
        _ => return ModuleCall::No,
    };
    if has_path(file, FILE) {
        call
    } else {
        ModuleCall::No
    }
}

/// The class that every module derives from.
pub const BASE: &str = "Module";
/// The dictionary of a module's parts by name, None among them.
pub const CHILDREN: &str = "_modules";
/// Whether it trains.
pub const TRAINING: &str = "training";

/// Wrappers: class and attribute that holds the wrapped module, `*` for every class. Their calls are the wrapped module's, and the
/// attribute is no part of a path. Source: torch 2.15 (torch/nn/parallel, torch/distributed/fsdp/_common_utils.py,
/// torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py, torch/_dynamo/eval_frame.py), DeepSpeed 0.18
/// (deepspeed/runtime/engine.py), Lightning 2.6 (lightning/fabric/wrappers.py).
const WRAPPERS: &[(&str, &str)] = &[
    ("*", "_orig_mod"),
    ("*", "_fsdp_wrapped_module"),
    ("*", "_checkpoint_wrapped_module"),
    ("DistributedDataParallel", "module"),
    ("DataParallel", "module"),
    ("DeepSpeedEngine", "module"),
    ("_FabricModule", "_original_module"),
    ("_FabricModule", "_forward_module"),
];

/// Whether the attribute `name` of an instance of `class` holds what it wraps.
pub fn is_wrapped(class: &str, name: &str) -> bool {
    WRAPPERS
        .iter()
        .any(|&(wrapper, attribute)| name == attribute && (wrapper == "*" || wrapper == class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_by_file_and_name() {
        let file = "/x/site-packages/torch/nn/modules/module.py";
        assert_eq!(
            module_call(file, "Module._wrapped_call_impl"),
            ModuleCall::Outer
        );
        assert_eq!(module_call(file, "_call_impl"), ModuleCall::Inner);
        assert_eq!(
            module_call(file, "Module._call_impl.<locals>.inner"),
            ModuleCall::No
        );
        assert_eq!(module_call("/x/my.py", "_call_impl"), ModuleCall::No);
    }

    #[test]
    fn a_part_that_is_called_module_is_no_wrapper_s() {
        assert!(is_wrapped("DistributedDataParallel", "module"));
        assert!(is_wrapped("OptimizedModule", "_orig_mod"));
        assert!(!is_wrapped("Net", "module"));
        assert!(!is_wrapped("DistributedDataParallel", "modules"));
    }
}
