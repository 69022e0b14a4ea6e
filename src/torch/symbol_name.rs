//! Splits demangled names: where the return type ends and the function begins.

/// A demangled name, split into the parts that rules match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolName<'a> {
    pub full: &'a str,
    /// From the first letter of the function's qualified name on: without the return type.
    pub qualified: &'a str,
    /// The qualified name alone: without template arguments after it, parameters, and compiler
    /// suffixes.
    pub stem: &'a str,
}

impl<'a> SymbolName<'a> {
    /// Splits `full`. A name that is not C++ is its own qualified name.
    ///
    /// Demanglers print a return type before templates only (Itanium C++ ABI, 5.1.5.3), so the
    /// function begins after the last blank outside all brackets and before the parameters.
    pub fn parse(full: &'a str) -> Self {
        let (start, end) = function_range(full);
        let qualified = full.get(start..).unwrap_or(full);
        let stem = full.get(start..end).unwrap_or(full);
        Self {
            full,
            qualified,
            stem: without_suffixes(stem),
        }
    }
}

/// What the compiler appends to the names of copies: GCC's clones and versions.
fn without_suffixes(stem: &str) -> &str {
    let stem = stem.split_once('@').map_or(stem, |(name, _)| name);
    let mut end = stem.len();
    for suffix in [
        ".cold",
        ".part.",
        ".constprop.",
        ".isra.",
        ".lto_priv.",
        ".localalias",
        ".llvm.",
        "._omp_fn.",
    ] {
        if let Some(at) = stem.find(suffix) {
            end = end.min(at);
        }
    }
    stem.get(..end).unwrap_or(stem)
}

/// Byte range of the qualified name without its last template arguments.
fn function_range(name: &str) -> (usize, usize) {
    let bytes = name.as_bytes();
    let mut depth = 0_usize;
    let mut start = 0;
    let mut template = None;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if let Some(length) = atom(rest) {
            at += length;
            continue;
        }
        match bytes[at] {
            b'<' | b'{' | b'[' => {
                if depth == 0 && bytes[at] == b'<' {
                    template = Some(at);
                }
                depth += 1;
            }
            b'>' | b'}' | b']' => depth = depth.saturating_sub(1),
            b'(' if depth == 0 => return (start, template.unwrap_or(at)),
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            // The name continues after its template arguments: they were a class's and not the
            // function's.
            b':' if depth == 0 => template = None,
            b' ' if depth == 0 => {
                if rest.starts_with(b" [") {
                    return (start, template.unwrap_or(at));
                }
                start = at + 1;
                template = None;
            }
            _ => {}
        }
        at += 1;
    }
    (start, template.unwrap_or(bytes.len()))
}

/// Length of a piece of name whose brackets or blanks are not structure.
fn atom(rest: &[u8]) -> Option<usize> {
    const ATOMS: [&[u8]; 16] = [
        b"(anonymous namespace)",
        b"decltype(auto)",
        b"operator()",
        b"operator->*",
        b"operator->",
        b"operator<=>",
        b"operator<<=",
        b"operator>>=",
        b"operator<<",
        b"operator>>",
        b"operator<=",
        b"operator>=",
        b"operator<",
        b"operator>",
        b"operator new",
        b"operator delete",
    ];
    // `->` outside of an operator's name occurs in decltype return types.
    ATOMS
        .iter()
        .find(|atom| rest.starts_with(atom))
        .map(|atom| atom.len())
        .or_else(|| rest.starts_with(b"->").then_some(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn real_names_are_cut_where_the_function_begins() {
        let cases = [
            (
                "void at::internal::invoke_parallel<at::parallel_for<at::native::f(int)::{lambda()#1}>(long)>(long, long) [clone ._omp_fn.0]",
                "at::internal::invoke_parallel",
            ),
            (
                "at::native::(anonymous namespace)::normal_kernel(at::Tensor const&)",
                "at::native::(anonymous namespace)::normal_kernel",
            ),
            (
                "at::Tensor at::functorch::add_Tensor_generated_plumbing<std::tuple<at::Tensor>>(at::Tensor const&)",
                "at::functorch::add_Tensor_generated_plumbing",
            ),
            (
                "c10::impl::wrap_kernel_functor_unboxed_<c10::impl::X<int (at::Tensor)>, int>::call(c10::OperatorKernel*)",
                "c10::impl::wrap_kernel_functor_unboxed_<c10::impl::X<int (at::Tensor)>, int>::call",
            ),
            (
                "std::_Function_handler<void (int, int), dnnl::impl::f()::{lambda(int, int)#1}>::_M_invoke(std::_Any_data const&)",
                "std::_Function_handler<void (int, int), dnnl::impl::f()::{lambda(int, int)#1}>::_M_invoke",
            ),
            ("_PyEval_EvalFrameDefault.cold", "_PyEval_EvalFrameDefault"),
            ("gemm_omp_driver_v2._omp_fn.1", "gemm_omp_driver_v2"),
            ("GOMP_parallel@@GOMP_4.0", "GOMP_parallel"),
            ("cudaLaunchKernel", "cudaLaunchKernel"),
            ("torch::foo() [clone .cold]", "torch::foo"),
            (
                "_object* torch::autograd::TypeError_to_NotImplemented_<&torch::autograd::THPVariable_add>(_object*)",
                "torch::autograd::TypeError_to_NotImplemented_",
            ),
            (
                "at::native::x::{lambda(at::Tensor)#1}::operator()(at::Tensor) const",
                "at::native::x::{lambda(at::Tensor)#1}::operator()",
            ),
            ("", ""),
        ];
        for (whole, stem) in cases {
            assert_eq!(SymbolName::parse(whole).stem, stem, "{whole}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_cut_within_itself(text in "\\PC*") {
            let name = SymbolName::parse(&text);
            prop_assert!(text.ends_with(name.qualified));
            prop_assert!(name.qualified.starts_with(name.stem));
        }
    }
}
