//! Facts about `nn.Module`: the attributes that contain its parts, and wrappers that are not part
//! of a model.

/// The class that every module derives from.
pub const BASE: &str = "Module";
/// The dictionary of a module's parts by name; values may be None.
pub const CHILDREN: &str = "_modules";
/// Whether it is in training mode.
pub const TRAINING: &str = "training";

/// Wrappers: class and attribute with the wrapped module, `*` for every class. Their calls belong
/// to the wrapped module, and the attribute is not part of a path. Source: torch 2.15
/// (torch/nn/parallel, torch/distributed/fsdp/_common_utils.py,
/// torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py, torch/_dynamo/eval_frame.py),
/// DeepSpeed 0.18 (deepspeed/runtime/engine.py), Lightning 2.6 (lightning/fabric/wrappers.py).
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

/// Whether the attribute `name` of an instance of `class` contains what it wraps.
pub fn is_wrapped(class: &str, name: &str) -> bool {
    WRAPPERS
        .iter()
        .any(|&(wrapper, attribute)| name == attribute && (wrapper == "*" || wrapper == class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_called_module_is_no_wrapper_s() {
        assert!(is_wrapped("DistributedDataParallel", "module"));
        assert!(is_wrapped("OptimizedModule", "_orig_mod"));
        assert!(!is_wrapped("Net", "module"));
        assert!(!is_wrapped("DistributedDataParallel", "modules"));
    }
}
