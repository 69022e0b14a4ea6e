//! Shortens long C++ names to a function's namespace, class and name.

/// Words before a name that are not its return type.
const PREFIXES: [&str; 3] = [
    "non-virtual thunk to ",
    "virtual thunk to ",
    "covariant return thunk to ",
];
/// Operators, longest first, so that `<<=` is not read as `<`.
const OPERATORS: [&str; 39] = [
    "<=>", "<<=", ">>=", "->*", "()", "[]", "->", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||",
    "++", "--", "+=", "-=", "*=", "/=", "%=", "^=", "&=", "|=", "<", ">", "+", "-", "*", "/", "%",
    "^", "&", "|", "~", "!", "=", ",",
];

/// A demangled C++ name without return type, template arguments, parameters, `(anonymous
/// namespace)` and qualifiers; lambdas as `{lambda#1}`, without their call operator. Names of other
/// languages, and names that cannot be parsed, are returned unchanged.
///
/// `void at::native::(anonymous namespace)::foo<int>(int)::{lambda(int)#1}::operator()(int) const`
/// becomes `at::native::foo::{lambda#1}`.
pub fn shorten(name: &str) -> String {
    let (plain, clones) = match name.find(" [clone ") {
        Some(at) => name.split_at(at),
        None => (name, ""),
    };
    let (plain, prefix) = PREFIXES
        .iter()
        .find_map(|prefix| Some((plain.strip_prefix(prefix)?, *prefix)))
        .unwrap_or((plain, ""));
    // `<Type as Trait>::method` is Rust's.
    if plain.starts_with('<') {
        return name.to_owned();
    }
    match Shortener::new(plain).run() {
        Some(short) if !short.is_empty() => format!("{prefix}{short}{clones}"),
        _ => name.to_owned(),
    }
}

struct Shortener<'a> {
    rest: &'a str,
    out: String,
}

impl<'a> Shortener<'a> {
    fn new(name: &'a str) -> Self {
        Self {
            rest: name,
            out: String::new(),
        }
    }

    fn run(mut self) -> Option<String> {
        while let Some(first) = self.rest.chars().next() {
            if let Some(after) = self.rest.strip_prefix("(anonymous namespace)::") {
                self.rest = after;
            } else if self.at_operator() {
                self.take_operator()?;
            } else {
                match first {
                    '<' | '(' => self.rest = skip_group(self.rest)?,
                    '[' if self.rest.starts_with("[abi:") => self.rest = skip_group(self.rest)?,
                    '{' => self.take_braces()?,
                    ' ' if self.rest.starts_with(" const::") => {
                        self.rest = &self.rest[" const".len()..]
                    }
                    ' ' if self.at_qualifier() => break,
                    ' ' if self.rest.starts_with(" <") => self.rest = &self.rest[1..],
                    ' ' => {
                        // What came before was the return type.
                        self.out.clear();
                        self.rest = &self.rest[1..];
                    }
                    _ => {
                        self.out.push(first);
                        self.rest = &self.rest[first.len_utf8()..];
                    }
                }
            }
        }
        for call in ["::operator()", "::_FUN"] {
            if let Some(lambda) = self.out.strip_suffix(call)
                && lambda.ends_with('}')
            {
                self.out.truncate(lambda.len());
            }
        }
        Some(self.out.trim_start_matches(['*', '&']).to_owned())
    }

    /// Whether the text after a space is a qualifier of the function and not its name.
    fn at_qualifier(&self) -> bool {
        let after = &self.rest[1..];
        let is_word = |word: &&str| {
            after
                .strip_prefix(*word)
                .is_some_and(|rest| !rest.starts_with(is_name_character))
        };
        // `const` after a return type is followed by the name; after a function it ends the name or
        // precedes another qualifier.
        let ends = |word: &&str| {
            is_word(word)
                && !after[word.len()..].contains("::")
                && !after[word.len()..].contains('(')
        };
        ["const", "volatile", "noexcept", "requires"]
            .iter()
            .any(ends)
            || after == "&"
            || after == "&&"
    }

    /// Whether `operator` begins here as a word of its own.
    fn at_operator(&self) -> bool {
        let word = self.rest.strip_prefix("operator");
        word.is_some_and(|after| !after.starts_with(is_name_character))
            && !self.out.ends_with(is_name_character)
    }

    fn take_operator(&mut self) -> Option<()> {
        let after = self.rest.strip_prefix("operator")?;
        self.out.push_str("operator");
        if let Some(symbol) = OPERATORS.iter().find(|symbol| after.starts_with(**symbol)) {
            self.out.push_str(symbol);
            self.rest = &after[symbol.len()..];
        } else {
            // A conversion, `new`, `delete` or a literal: all up to the parameters.
            let end = after.find(['(', '<']).unwrap_or(after.len());
            self.out.push_str(&after[..end]);
            self.rest = &after[end..];
        }
        Some(())
    }

    /// `{lambda(int)#1}`, `{unnamed type#1}`, `{default arg#1}`.
    fn take_braces(&mut self) -> Option<()> {
        let after = skip_group(self.rest)?;
        let mut inner = &self.rest[1..self.rest.len() - after.len() - 1];
        self.out.push('{');
        while let Some(first) = inner.chars().next() {
            if first == '(' || first == '<' {
                inner = skip_group(inner)?;
            } else {
                self.out.push(first);
                inner = &inner[first.len_utf8()..];
            }
        }
        self.out.push('}');
        self.rest = after;
        Some(())
    }
}

fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The rest after the bracketed group at the start of `text`; `None` if it does not end.
fn skip_group(text: &str) -> Option<&str> {
    let mut closers = Vec::new();
    let mut position = 0;
    while let Some(character) = text[position..].chars().next() {
        let rest = &text[position..];
        let mut length = character.len_utf8();
        match character {
            '(' => closers.push(')'),
            '{' => closers.push('}'),
            '[' => closers.push(']'),
            '<' => closers.push('>'),
            '-' if rest.starts_with("->") => length = 2,
            'o' if is_operator_word(text, position) => length = operator_length(rest),
            '>' if closers.last() == Some(&'>') => {
                closers.pop();
            }
            ')' | '}' | ']' => {
                // A `<` that was a comparison never closes.
                while closers.pop()? != character {}
            }
            _ => {}
        }
        position += length;
        if closers.is_empty() {
            return Some(&text[position..]);
        }
    }
    None
}

fn is_operator_word(text: &str, position: usize) -> bool {
    let before = text[..position].chars().next_back();
    text[position..].starts_with("operator") && !before.is_some_and(is_name_character)
}

/// Bytes of `operator` and its symbol.
fn operator_length(text: &str) -> usize {
    let word = "operator".len();
    let symbol = OPERATORS
        .iter()
        .find(|symbol| text[word..].starts_with(**symbol));
    word + symbol.map_or(0, |symbol| symbol.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_names_become_short() {
        let names = [
            (
                "void at::native::(anonymous namespace)::foo<int, (bool)1>(int)::{lambda(int)#1}::operator()(int) const",
                "at::native::foo::{lambda#1}",
            ),
            (
                "at::_ops::add_Tensor::call(at::Tensor const&, c10::Scalar const&)",
                "at::_ops::add_Tensor::call",
            ),
            (
                "at::Tensor& at::native::add_(at::Tensor&)",
                "at::native::add_",
            ),
            (
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
                "std::vector::push_back",
            ),
            ("bar(int) [clone ._omp_fn.0]", "bar [clone ._omp_fn.0]"),
            (
                "bool operator< <int>(a::B<int> const&, a::B<int> const&)",
                "operator<",
            ),
            (
                "std::ostream& c10::operator<<(std::ostream&, c10::Device const&)",
                "c10::operator<<",
            ),
            (
                "c10::IValue::operator bool() const",
                "c10::IValue::operator bool",
            ),
            ("operator new(unsigned long)", "operator new"),
            ("a::b::operator()(int) const", "a::b::operator()"),
            ("f(std::function<void (int)> const&)", "f"),
            ("void (anonymous namespace)::g<(&h<int>), (a->b)>()", "g"),
            ("decltype(auto) x::visit<int>(int&&)", "x::visit"),
            ("x::f() const &", "x::f"),
            (
                "non-virtual thunk to torch::autograd::Node::apply(int)",
                "non-virtual thunk to torch::autograd::Node::apply",
            ),
            ("foo[abi:cxx11](int)", "foo"),
            ("char const* name() const", "name"),
            (
                "at::f(int)::{lambda(auto:1)#2}::_FUN(int)",
                "at::f::{lambda#2}",
            ),
            ("x::~x()", "x::~x"),
            (
                "void x::f(int) const::{lambda(int)#1}::operator()(int) const",
                "x::f::{lambda#1}",
            ),
            ("PyEval_EvalFrameDefault", "PyEval_EvalFrameDefault"),
            ("malloc@plt", "malloc@plt"),
            (
                "<alloc::vec::Vec<T> as core::ops::Drop>::drop",
                "<alloc::vec::Vec<T> as core::ops::Drop>::drop",
            ),
            ("f<(a", "f<(a"),
            ("", ""),
        ];
        for (long, wanted) in names {
            assert_eq!(shorten(long), wanted, "{long}");
        }
    }

    proptest! {
        #[test]
        fn random_text_never_panics(text in "[a-z:<>(){}\\[\\] ,é*&#-]{0,60}|\\PC{0,30}|(operator[<>()a ]{0,4}){0,4}") {
            prop_assert!(shorten(&text).len() <= text.len());
        }
    }
}
