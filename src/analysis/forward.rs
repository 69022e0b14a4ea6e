//! The modules in which forward called its operators: this identifies the module that created a
//! node of autograd's graph.
//!
//! A node is named after the operator whose derivative it computes: `_log_softmax` has
//! `LogSoftmaxBackward0` (torchgen/packaged/autograd/load_derivatives.py, `_create_op_prefix`,
//! torch 2.15.0). If an operator was seen in a single module, its nodes are attributed to that
//! module. With fewer than [`Share::FEW`] ticks of the operator nothing is reported; from that
//! number on, a second module with a tenth of the operator's time is missed in one of twenty cases.
//!
//! This module walks stacks: it needs all functions below the innermost module, under the names of
//! their nodes, which nothing else needs.

use super::intervals::Share;
use super::nets::Nets;
use crate::model::category::Phase;
use crate::model::ids::{NnModuleId, StackId};
use crate::model::operator::OperatorMark;
use crate::model::profile::{Profile, ProfileSample};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// The module whose forward created a node, as far as it can be determined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardOrigin {
    /// This one.
    Module { id: NnModuleId, class: String },
    /// One of several modules of this class.
    Class(String),
    /// Modules of several nets, in each of one class; or of one of them, as decided by the line and
    /// the position in the pass. Classes with the net, in order.
    Nets(Vec<(String, String)>),
    /// No module: its operator was called outside of modules.
    Outside,
    /// Modules of several classes call its operator, or a module and the code around it. The
    /// classes, in order.
    Several(Vec<String>),
    /// Its operator was seen in too few ticks.
    Seldom,
    /// No operator of that name was seen in forward, or the node belongs to no operator.
    NotSeen,
}

/// Modules in which an operator was seen.
#[derive(Default)]
struct OperatorModules {
    ticks: u64,
    modules: BTreeSet<Option<NnModuleId>>,
}

/// The operators of a thread's forward passes.
pub(super) struct Forward<'p> {
    profile: &'p Profile,
    /// By the name of the node, without `Backward` and what follows.
    by_node: FxHashMap<String, OperatorModules>,
    /// The outermost modules, each a net; `None` for calls outside of modules. The index is the
    /// net's bit number.
    nets: Vec<Option<(&'p str, u32)>>,
}

/// The text for modules of nets: `Conv2d of Discriminator or Generator`, `Conv2d of D or Linear of
/// G`.
pub fn of_nets(nets: &[(String, String)]) -> String {
    let mut text = String::new();
    let mut before: Option<&str> = None;
    for (class, net) in nets {
        if before.is_some() {
            text.push_str(" or ");
        }
        if before != Some(class) {
            text.push_str(&format!("{class} of "));
        }
        text.push_str(net);
        before = Some(class);
    }
    text
}

impl<'p> Forward<'p> {
    /// From a thread's samples.
    pub(super) fn of(profile: &'p Profile, samples: &[&ProfileSample]) -> Self {
        let mut ticks_on: FxHashMap<StackId, u64> = FxHashMap::default();
        for sample in samples {
            let makes_nodes = match sample.phase {
                Phase::Forward | Phase::Recompute | Phase::Framework | Phase::User => true,
                other => other.region().is_some(),
            };
            if let Some(stack) = sample.stack.filter(|_| makes_nodes) {
                *ticks_on.entry(stack).or_default() += u64::from(sample.ticks);
            }
        }
        let mut forward = Self {
            profile,
            by_node: FxHashMap::default(),
            nets: Vec::new(),
        };
        for (stack, ticks) in ticks_on {
            forward.add(stack, ticks);
        }
        let modules = forward
            .by_node
            .values()
            .flat_map(|callers| &callers.modules)
            .map(|&module| forward.net(module));
        let nets: BTreeSet<_> = modules.collect();
        forward.nets = nets.into_iter().take(Nets::BITS as usize).collect();
        forward
    }

    /// The outermost module of a module: its class and number.
    fn net(&self, module: Option<NnModuleId>) -> Option<(&'p str, u32)> {
        let info = module.and_then(|id| self.profile.nn_module(id))?;
        Some((&info.root, info.number))
    }

    fn bit(&self, module: Option<NnModuleId>) -> Nets {
        let net = self.net(module);
        let at = self.nets.iter().position(|known| *known == net);
        at.map_or(0, |at| 1 << at)
    }

    /// The nets that create nodes of this name; 0 if unknown.
    pub(super) fn nets_of(&self, node: &str) -> Nets {
        let callers = operator_of(node).and_then(|key| self.by_node.get(key));
        let modules = callers.filter(|callers| callers.ticks >= Share::FEW);
        let modules = modules.into_iter().flat_map(|callers| &callers.modules);
        modules.fold(0, |nets, &module| nets | self.bit(module))
    }

    /// The module that created nodes of this name, restricted to these nets.
    pub(super) fn origin_in(&self, node: &str, nets: Nets) -> ForwardOrigin {
        let origin = self.origin(node);
        let all = self.nets_of(node);
        let asked = if nets == 0 { all } else { nets };
        let Some(callers) = operator_of(node).and_then(|key| self.by_node.get(key)) else {
            return origin;
        };
        if all.count_ones() < 2
            || !matches!(origin, ForwardOrigin::Class(_) | ForwardOrigin::Several(_))
        {
            return origin;
        }
        let inside = callers
            .modules
            .iter()
            .filter(|&&id| self.bit(id) & asked != 0);
        let mut found: BTreeSet<(String, String)> = BTreeSet::new();
        for &id in inside {
            let info = id.and_then(|id| self.profile.nn_module(id));
            let (Some(info), Some((root, number))) = (info, self.net(id)) else {
                // Outside of modules.
                return origin;
            };
            let net = match number {
                0 => root.to_owned(),
                number => format!("{root} #{}", u64::from(number) + 1),
            };
            found.insert((info.class.clone(), net));
        }
        // In one of the nets modules of several classes call it: it is unknown which.
        if found.len() != asked.count_ones() as usize {
            return origin;
        }
        ForwardOrigin::Nets(found.into_iter().collect())
    }

    fn add(&mut self, stack: StackId, ticks: u64) {
        let profile = self.profile;
        let mut keys: Vec<String> = Vec::new();
        let mut module = None;
        let mut called = false;
        for frame in profile.stacks.leaf_to_root(Some(stack)) {
            let frame = profile.stacks.frame(frame);
            if let Some(id) = frame.nn_module {
                module = Some(id);
                break;
            }
            let Some(function) = profile.function(frame.function) else {
                continue;
            };
            match &function.operator {
                OperatorMark::Operator(name) => keys.push(node_of(name)),
                OperatorMark::ModuleCall => called = true,
                _ if function.is_python => keys.extend(function_of(&function.name)),
                _ => {}
            }
        }
        let info = module.and_then(|id| profile.nn_module(id));
        // Evaluation creates no graph. (If it does, its modules are missed here, not
        // misattributed.) If a call's module was not read, nothing is known of it.
        let evaluates = info.is_some_and(|info| info.training == Some(false));
        if evaluates || (called && info.is_none()) {
            return;
        }
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let callers = self.by_node.entry(key).or_default();
            callers.ticks = callers.ticks.saturating_add(ticks);
            callers.modules.insert(module);
        }
    }

    /// The module that created the nodes of this name.
    fn origin(&self, node: &str) -> ForwardOrigin {
        let Some(callers) = operator_of(node).and_then(|key| self.by_node.get(key)) else {
            return ForwardOrigin::NotSeen;
        };
        let info = |id: &NnModuleId| self.profile.nn_module(*id);
        let known: Vec<NnModuleId> = callers.modules.iter().copied().flatten().collect();
        let classes: BTreeSet<&str> = known
            .iter()
            .filter_map(info)
            .map(|info| info.class.as_str())
            .collect();
        let has_outside = callers.modules.contains(&None);
        // A module in training mode and in unknown mode is the same module.
        let paths: BTreeSet<_> = known
            .iter()
            .filter_map(info)
            .map(|info| (&info.root, info.number, &info.path))
            .collect();
        if callers.ticks < Share::FEW {
            return ForwardOrigin::Seldom;
        }
        match (classes.first(), classes.len(), has_outside) {
            (None, _, _) => ForwardOrigin::Outside,
            (Some(&class), 1, false) => match (paths.len(), known.first()) {
                (1, Some(&id)) => ForwardOrigin::Module {
                    id,
                    class: class.to_owned(),
                },
                _ => ForwardOrigin::Class(class.to_owned()),
            },
            _ => ForwardOrigin::Several(classes.into_iter().map(str::to_owned).collect()),
        }
    }
}

/// `Convolution` of `ConvolutionBackward0`, `ThresholdBackward` of `ThresholdBackwardBackward0`,
/// `MyFunction` of `MyFunctionBackward`; `None` for a node that no operator creates.
fn operator_of(node: &str) -> Option<&str> {
    let name = node.trim_end_matches(|digit: char| digit.is_ascii_digit());
    name.strip_suffix("Backward").filter(|key| !key.is_empty())
}

/// The key of an operator's nodes: `LogSoftmax` of `aten::_log_softmax`, `Relu` of `aten::relu_`,
/// `MaxPool2DWithIndices` of `aten::max_pool2d_with_indices`: each part as formatted by Python's
/// `str.title`.
fn node_of(operator: &str) -> String {
    let name = operator.rsplit("::").next().unwrap_or(operator);
    let mut key = String::with_capacity(name.len());
    let mut after_letter = false;
    for character in name.chars() {
        if character != '_' {
            key.push(match after_letter {
                true => character.to_ascii_lowercase(),
                false => character.to_ascii_uppercase(),
            });
        }
        after_letter = character.is_ascii_alphabetic();
    }
    // "ForwardBackward" of a node's name is "Backward".
    if let Some(length) = key.strip_suffix("Forward").map(str::len) {
        key.truncate(length);
    }
    key
}

/// `MyFunction` of `MyFunction.forward`: a `torch.autograd.Function`, or a module, whose name no
/// node has.
fn function_of(name: &str) -> Option<String> {
    let class = name.strip_suffix(".forward")?.rsplit('.').next()?;
    (!class.is_empty()).then(|| class.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_named_after_operators() {
        let cases = [
            ("aten::convolution", "ConvolutionBackward0"),
            ("aten::_log_softmax", "LogSoftmaxBackward0"),
            ("aten::relu_", "ReluBackward0"),
            (
                "aten::max_pool2d_with_indices",
                "MaxPool2DWithIndicesBackward0",
            ),
            ("aten::threshold_backward", "ThresholdBackwardBackward0"),
            ("aten::addmm", "AddmmBackward0"),
            ("aten::t", "TBackward0"),
            ("aten::native_batch_norm", "NativeBatchNormBackward0"),
            (
                "aten::_scaled_dot_product_flash_attention_for_cpu",
                "ScaledDotProductFlashAttentionForCpuBackward0",
            ),
            ("aten::mul", "MulBackward1"),
            ("aten::_weight_norm_forward", "WeightNormBackward0"),
        ];
        for (operator, node) in cases {
            assert_eq!(
                Some(node_of(operator).as_str()),
                operator_of(node),
                "{node}"
            );
        }
        assert_eq!(operator_of("AccumulateGrad"), None);
        assert_eq!(operator_of("Backward"), None);
        assert_eq!(function_of("f.<locals>.My.forward").as_deref(), Some("My"));
    }
}
