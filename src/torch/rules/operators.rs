//! The operator, or the node of autograd's graph, from a native function's name.

use super::rows::{Library, OperatorForm};
use crate::model::operator::OperatorMark;
use crate::torch::symbol_name::SymbolName;
use OperatorForm::{Collective, Engine, Entry, Glue, Node, Overload, PythonGlue, Wrapper};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::OnceLock;

/// Dispatch keys that end the names of c10d's functions. Source: c10d/Ops.cpp, `IMPL_*` macros.
const COLLECTIVE_KEYS: &[&str] = &[
    "SparseCUDA",
    "SparseCPU",
    "PrivateUse1",
    "CUDA",
    "CPU",
    "XPU",
    "HPU",
];

/// The operator in a native function's name, by `form`; the pattern of its row has `start` bytes.
pub(super) fn native_mark(
    library: Library,
    name: SymbolName<'_>,
    form: OperatorForm,
    start: usize,
) -> OperatorMark {
    let aten = |symbol: &str| OperatorMark::Operator(format!("aten::{}", schema_name(symbol)));
    let last = name.stem.rsplit("::").next().unwrap_or(name.stem);
    match form {
        Entry => match name
            .stem
            .get(start..)
            .and_then(|rest| rest.split_once("::"))
        {
            Some((symbol, "call" | "redispatch")) => aten(symbol),
            _ => OperatorMark::None,
        },
        // Kernels take the set of dispatch keys first; helpers in the namespace do not.
        Overload if takes_keys(name) => aten(last),
        Wrapper => last
            .strip_prefix("wrapper_")
            .and_then(|rest| rest.split_once('_'))
            .map_or(OperatorMark::None, |(_, rest)| {
                OperatorMark::Operator(format!("aten::{}", wrapped_name(name.stem, rest)))
            }),
        Collective => COLLECTIVE_KEYS
            .iter()
            .find_map(|key| last.strip_suffix(key))
            .filter(|symbol| !symbol.starts_with("TORCH_LIBRARY"))
            .map_or(OperatorMark::None, |symbol| {
                OperatorMark::Operator(format!("c10d::{symbol}"))
            }),
        Node => name
            .stem
            .strip_suffix("::apply")
            .map_or(OperatorMark::None, |node| {
                OperatorMark::Node(last_of_path(node).to_owned())
            }),
        Engine => OperatorMark::Engine,
        Glue if library != Library::Torch && last == "call" => {
            let kernel = kernel_in(name.qualified);
            OperatorMark::LibraryKernel(
                kernel.map(|kernel| kernel.replace("(anonymous namespace)::", "")),
            )
        }
        PythonGlue => OperatorMark::PythonKernel,
        Overload | Glue => OperatorMark::None,
    }
}

fn takes_keys(name: SymbolName<'_>) -> bool {
    name.qualified
        .get(name.stem.len()..)
        .is_some_and(|rest| rest.starts_with("(c10::DispatchKeySet"))
}

/// The last part of a qualified name, including its template arguments.
fn last_of_path(name: &str) -> &str {
    let mut depth = 0_usize;
    let mut start = 0;
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' | b'(' => depth += 1,
            b'>' | b')' => depth = depth.saturating_sub(1),
            b':' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    name.get(start..).unwrap_or(name)
}

/// The kernel in the template arguments of glue: `CompileTimeFunctionPointer<R (A const&),
/// &mylib::foo>`, also `&(mylib::foo(A const&))`, since demanglers differ.
fn kernel_in(glue: &str) -> Option<&str> {
    let (_, arguments) = glue.split_once("CompileTimeFunctionPointer<")?;
    let at = arguments.find(", &")? + 3;
    let rest = arguments.get(at..)?;
    let rest = match rest.strip_prefix('(') {
        Some(inside) if !rest.starts_with("(anonymous namespace)") => inside,
        _ => rest,
    };
    let mut from = 0;
    while let Some(found) = rest.get(from..)?.find(['<', '>', '(', ')', ',']) {
        let end = from + found;
        const ANONYMOUS: &str = "(anonymous namespace)";
        if rest.get(end..)?.starts_with(ANONYMOUS) {
            from = end + ANONYMOUS.len();
        } else {
            return rest.get(..end).filter(|name| !name.is_empty());
        }
    }
    None
}

/// Names of operators and of their overloads. The first line is the command that generated them.
const NAMES: &str = include_str!("aten_names.txt");

struct Names {
    overloads: FxHashSet<&'static str>,
    overloaded: FxHashSet<&'static str>,
    exceptions: FxHashMap<&'static str, &'static str>,
}

fn names() -> &'static Names {
    static PARSED: OnceLock<Names> = OnceLock::new();
    PARSED.get_or_init(|| {
        let mut names = Names {
            overloads: FxHashSet::default(),
            overloaded: FxHashSet::default(),
            exceptions: FxHashMap::default(),
        };
        for line in NAMES.lines() {
            let mut words = line.split(' ');
            match (words.next(), words.next(), words.next()) {
                (Some("overload"), Some(name), None) => {
                    names.overloads.insert(name);
                }
                (Some("with"), Some(name), None) => {
                    names.overloaded.insert(name);
                }
                (Some("is"), Some(symbol), Some(name)) => {
                    names.exceptions.insert(symbol, name);
                }
                _ => {}
            }
        }
        names
    })
}

/// The operator whose overload has this C++ name: `add` of `add_Tensor`, `add_` of `add__Tensor`,
/// `max_pool2d` of `max_pool2d`. The longest operator that is followed by an overload's name wins.
///
/// A name of another version of torch that the table lacks is kept, except a suffix that begins in
/// upper case: operators' names have none, most overloads' names do.
fn schema_name(symbol: &str) -> &str {
    let names = names();
    if let Some(name) = names.exceptions.get(symbol) {
        return name;
    }
    let parts = || {
        symbol
            .rmatch_indices('_')
            .filter_map(|(at, _)| Some((symbol.get(..at)?, symbol.get(at + 1..)?)))
            .filter(|(base, _)| !base.is_empty())
    };
    let known = |base: &str| names.overloaded.contains(base);
    if let Some((base, _)) =
        parts().find(|&(base, overload)| known(base) && names.overloads.contains(overload))
    {
        return base;
    }
    if known(symbol) {
        return symbol;
    }
    parts()
        .rfind(|(_, overload)| overload.starts_with(|first: char| first.is_ascii_uppercase()))
        .map_or(symbol, |(base, _)| base)
}

/// Where wrappers of kernels are that compute their outputs' shapes themselves.
const NESTED: &str = "at::(anonymous namespace)::(anonymous namespace)::";

/// The operator in the name of the wrapper `stem`, after its dispatch key: the overload comes
/// first, and the C++ function's name, which for an `out` overload ends in `_out`, last:
/// `out_add_out`, `Tensor_add_`, `_softmax`.
///
/// In two namespaces the overload is always there, and may be empty: `_native_layer_norm` is
/// `native_layer_norm`, and `__flash_attention_backward` is `_flash_attention_backward`. In one,
/// where the name alone is, the underscore is the operator's own.
fn wrapped_name<'n>(stem: &str, rest: &'n str) -> &'n str {
    let names = names();
    if stem.starts_with(NESTED)
        && let Some(function) = rest.strip_prefix('_')
    {
        return schema_name(function);
    }
    let function = rest
        .match_indices('_')
        .filter_map(|(at, _)| Some((rest.get(..at)?, rest.get(at + 1..)?)))
        .rfind(|(overload, function)| {
            names.overloads.contains(overload) && names.overloaded.contains(schema_name(function))
        })
        .map_or(rest, |(_, function)| function);
    schema_name(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overloads_are_named_after_their_operator() {
        let cases = [
            ("add_Tensor", "add"),
            ("add__Tensor", "add_"),
            ("convolution_backward", "convolution_backward"),
            ("max_pool2d_with_indices", "max_pool2d_with_indices"),
            ("sum_dim_IntList", "sum"),
            ("index_reduce", "index_reduce"),
            ("scatter_reduce", "scatter"),
            ("scatter_reduce_two", "scatter_reduce"),
            ("_foreach_add__List", "_foreach_add_"),
            ("_fused_adamw_", "_fused_adamw_"),
            ("_fused_adamw__tensor_lr", "_fused_adamw_"),
            (
                "_native_batch_norm_legit_no_training",
                "_native_batch_norm_legit_no_training",
            ),
            (
                "_native_batch_norm_legit_no_stats",
                "_native_batch_norm_legit",
            ),
            ("tril_indices", "tril_indices"),
            // Not in this torch.
            ("of_another_torch", "of_another_torch"),
            ("of_another_torch_Tensor_out", "of_another_torch"),
            ("of_another_torch__Scalar", "of_another_torch_"),
            ("_", "_"),
            ("", ""),
        ];
        for (symbol, wanted) in cases {
            assert_eq!(schema_name(symbol), wanted, "{symbol}");
        }
    }

    #[test]
    fn wrappers_are_named_after_their_operator() {
        let cases = [
            ("i0", "i0"),
            ("_softmax", "_softmax"),
            ("_linalg_det", "_linalg_det"),
            ("Tensor_add_", "add_"),
            ("out_multinomial_out", "multinomial"),
            ("generator_out_randperm_out", "randperm"),
            ("source_Storage_storage_offset_set_", "set_"),
        ];
        for (rest, wanted) in cases {
            let stem = format!("at::(anonymous namespace)::wrapper_CUDA_{rest}");
            assert_eq!(wrapped_name(&stem, rest), wanted, "{rest}");
        }
        let nested = [
            ("_native_layer_norm_backward", "native_layer_norm_backward"),
            ("__flash_attention_backward", "_flash_attention_backward"),
            ("__slow_conv2d_forward", "_slow_conv2d_forward"),
            ("__local_scalar_dense", "_local_scalar_dense"),
            ("_copy_", "copy_"),
            ("dtype_addmm", "addmm"),
            ("output__slow_conv2d_forward_out", "_slow_conv2d_forward"),
        ];
        for (rest, wanted) in nested {
            let stem = format!("{NESTED}wrapper_CUDA_{rest}");
            assert_eq!(wrapped_name(&stem, rest), wanted, "{rest}");
        }
    }

    #[test]
    fn kernels_in_template_arguments() {
        let cases = [
            (
                "c10::impl::X<c10::CompileTimeFunctionPointer<at::Tensor (at::Tensor const&, double), &mylib::foo>, at::Tensor>::call(int)",
                Some("mylib::foo"),
            ),
            (
                "X<c10::CompileTimeFunctionPointer<at::Tensor (at::Tensor const&), &mylib::(anonymous namespace)::baz>, T>",
                Some("mylib::(anonymous namespace)::baz"),
            ),
            (
                "X<c10::CompileTimeFunctionPointer<at::Tensor (at::Tensor const&), &(mylib::foo(at::Tensor const&))>, T>",
                Some("mylib::foo"),
            ),
            (
                "X<c10::CompileTimeFunctionPointer<at::Tensor (at::Tensor const&), &(anonymous namespace)::f<int>>, T>",
                Some("(anonymous namespace)::f"),
            ),
            (
                "X<c10::detail::WrapFunctionIntoRuntimeFunctor_<T (*)(A const&)> >",
                None,
            ),
            ("X<CompileTimeFunctionPointer<T, &", None),
        ];
        for (glue, wanted) in cases {
            assert_eq!(kernel_in(glue), wanted, "{glue}");
        }
    }
}
