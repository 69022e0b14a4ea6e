//! Demangles C++ and Rust names, bounded in time and size, and without control bytes.

use std::fmt::{self, Write};

/// Longer mangled names are not demangled. libtorch's longest are about 10 KB.
const MAX_MANGLED: usize = 16 << 10;
/// Longest demangled name: substitutions let a short name demangle to gigabytes.
const MAX_DEMANGLED: usize = 32 << 10;
/// Maximum nesting of a name. The parser and the printer recurse once for each level.
const MAX_NESTING: u32 = 160;

/// `name` demangled, or unchanged if it is not mangled or cannot be demangled. Control bytes are
/// removed.
///
/// Suffixes of compiler clones (`.cold`, `.constprop.0`, `._omp_fn.0`) become ` [clone .cold]`, as
/// shown by binutils and gdb; `@plt` and symbol versions are kept.
pub fn demangle(name: &str) -> String {
    let mut out = Bounded(String::new());
    if try_demangle(name, &mut out).is_err() {
        out.0.clear();
        let end = (0..=name.len().min(MAX_DEMANGLED))
            .rev()
            .find(|&end| name.is_char_boundary(end));
        out.0.push_str(&name[..end.unwrap_or(0)]);
    }
    if out.0.contains(|character: char| character.is_control()) {
        out.0.retain(|character| !character.is_control());
    }
    out.0
}

fn try_demangle(name: &str, out: &mut Bounded) -> fmt::Result {
    if name.len() > MAX_MANGLED {
        return Err(fmt::Error);
    }
    let (name, version) = name.split_at(name.find('@').filter(|&at| at > 0).unwrap_or(name.len()));
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        write!(out, "{rust:#}{version}")?;
        return Ok(());
    }
    let (base, clones) = split_clones(name);
    if base.starts_with("_Z") || base.starts_with("__Z") {
        demangle_cpp(base, out)?;
    } else {
        out.write_str(base)?;
    }
    for clone in clones {
        write!(out, " [clone {clone}]")?;
    }
    out.write_str(version)
}

fn demangle_cpp(name: &str, out: &mut Bounded) -> fmt::Result {
    let parse = cpp_demangle::ParseOptions::default().recursion_limit(MAX_NESTING);
    let print = cpp_demangle::DemangleOptions::default().recursion_limit(MAX_NESTING);
    let symbol = cpp_demangle::Symbol::new_with_options(name, &parse).map_err(|_| fmt::Error)?;
    symbol.structured_demangle(out, &print)
}

/// The name itself, and the suffixes `.word` or `.word.number` of compiler clones. Mangled names
/// contain no other dots.
fn split_clones(name: &str) -> (&str, Vec<&str>) {
    let Some(dot) = name.find('.').filter(|&dot| dot > 0) else {
        return (name, Vec::new());
    };
    let mut clones: Vec<&str> = Vec::new();
    let mut start = dot;
    while start < name.len() {
        let next = |from: usize| {
            name[from + 1..]
                .find('.')
                .map_or(name.len(), |distance| from + 1 + distance)
        };
        let mut end = next(start);
        let word = &name[start + 1..end];
        let is_word = word.chars().all(|c| c.is_ascii_alphabetic() || c == '_') && !word.is_empty();
        if !is_word {
            return (name, Vec::new());
        }
        while end < name.len() {
            let after = next(end);
            let number = &name[end + 1..after];
            if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
                break;
            }
            end = after;
        }
        clones.push(&name[start..end]);
        start = end;
    }
    (&name[..dot], clones)
}

/// A string that refuses to grow past [`MAX_DEMANGLED`].
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_DEMANGLED {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_read_as_cxxfilt_writes_them() {
        let names = [
            (
                "_ZN2at4_ops10add_Tensor4callERKNS_6TensorES4_RKN3c106ScalarE",
                "at::_ops::add_Tensor::call(at::Tensor const&, at::Tensor const&, c10::Scalar const&)",
            ),
            (
                "_ZN12_GLOBAL__N_13fooEv.cold",
                "(anonymous namespace)::foo() [clone .cold]",
            ),
            (
                "_ZN3fooEv.constprop.0.cold",
                "foo() [clone .constprop.0] [clone .cold]",
            ),
            ("_Z3barv._omp_fn.0", "bar() [clone ._omp_fn.0]"),
            ("gomp_team_start", "gomp_team_start"),
            ("thread_main.isra.0", "thread_main [clone .isra.0]"),
            ("malloc@plt", "malloc@plt"),
            ("_Z3foov@plt", "foo()@plt"),
            ("_RNvC7mycrate3foo", "mycrate::foo"),
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                "core::fmt::Write::write_fmt",
            ),
            ("_Zgarbage", "_Zgarbage"),
            ("two words\u{1b}[31m", "two words[31m"),
            ("", ""),
            (".hidden", ".hidden"),
            ("v1.2.weird..name", "v1.2.weird..name"),
        ];
        for (mangled, wanted) in names {
            assert_eq!(demangle(mangled), wanted, "{mangled}");
        }
    }

    #[test]
    fn hostile_names_end_soon() {
        // Each S_ substitution doubles the name.
        let mut bomb = String::from("_Z1fI1AE");
        for index in 0..60 {
            bomb.push_str("St4pairIS_S_E");
            bomb.push(char::from(b'0' + index % 10));
        }
        let nested = format!("_Z1f{}i", "P".repeat(MAX_MANGLED - 10));
        let long = "x".repeat(10 * MAX_DEMANGLED);
        for name in [bomb, nested, long] {
            assert!(demangle(&name).len() <= MAX_DEMANGLED);
        }
    }

    proptest! {
        #[test]
        fn random_names_never_panic(name in "_Z[a-zA-Z0-9_.]{0,80}", text in "\\PC{0,40}") {
            demangle(&name);
            demangle(&text);
        }
    }
}
