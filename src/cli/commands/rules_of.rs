//! `torchspy rules --of FUNCTION`: what a function is, and by which rows.

use crate::cli::failure::Failure;
use crate::cli::rules::{Rules, by_id, head, some};
use crate::model::module::ModuleKind;
use crate::model::operator::OperatorMark;
use crate::model::text::file_name;
use crate::native::demangle::demangle;
use crate::torch::rules::{Decision, Explanation, Listed, RowId};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

/// Libraries that one line names.
const LIBRARIES: usize = 6;

/// A function, as it was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked<'a> {
    /// Without a name: any function of the file.
    Python(&'a str, Option<&'a str>),
    Native(&'a str, Option<&'a str>),
    Symbol(&'a str),
}

impl<'a> Asked<'a> {
    fn parse(text: &'a str) -> Self {
        let is_python = |file: &str| file.ends_with(".py") || file.starts_with('<');
        let (file, function) = match split(text) {
            Some((file, function)) => (file, Some(function)),
            None => (text, None),
        };
        let is_library = || file_name(file).contains(".so") && !file.contains('(');
        match function {
            _ if is_python(file) => Asked::Python(file, function),
            Some(_) => Asked::Native(file, function),
            None if is_library() => Asked::Native(file, None),
            None => Asked::Symbol(file),
        }
    }
}

/// The parts before and after the first colon that does not belong to a C++ name.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut colons = text.match_indices(':').map(|(at, _)| text.split_at(at));
    let is_lone =
        |(before, after): &(&str, &str)| !before.ends_with(':') && !after.starts_with("::");
    let (before, after) = colons.find(is_lone)?;
    Some((before, after.strip_prefix(':')?))
}

/// The rules for a function, for people.
pub(super) fn text(function: &str, rules: &Rules) -> Result<String, Failure> {
    let rows = rules.listed();
    let table = Table {
        rules,
        rows: by_id(&rows).collect(),
    };
    let set = rules.set;
    let native = |library: &str, symbol: Option<&str>| {
        let name = symbol.map(demangle);
        set.explain_native(ModuleKind::File, library, name.as_deref())
    };
    let (found, hint) = match Asked::parse(function) {
        Asked::Python(file, name) => (
            vec![(
                String::new(),
                set.explain_python(file, name.unwrap_or_default()),
            )],
            "give the path as a recording has it: company/loader.py:Loader.load, or /…/site-packages/torch/optim/sgd.py:SGD.step",
        ),
        Asked::Native(library, symbol) => (
            vec![(String::new(), native(library, symbol))],
            "give the library's file and the symbol as nm -C prints it: libfancy.so:fancy::run",
        ),
        Asked::Symbol(symbol) => (
            table.of_symbol(|library| native(library, Some(symbol))),
            "a C++ function has its namespaces, and an operator is its entry: aten::item is at::_ops::item::call\n\
             rows for a library's every function need its file: libfancy.so:fancy::run; a Python function is FILE.py:FUNCTION\n\
             torchspy rules PART prints the rows that have PART in them",
        ),
    };
    let found: Vec<(String, Explanation)> = found
        .into_iter()
        .filter(|(_, why)| !why.matching.is_empty())
        .collect();
    if found.is_empty() {
        return Err(Failure::message(format!("no row matches `{function}`")).hint(hint));
    }
    let mut text = format!("rules version {}\n", set.version);
    for (place, why) in &found {
        let _ = writeln!(text, "\n{function}{place}");
        table.explain(&mut text, why);
    }
    let is_added = |id: &RowId| table.rows.get(id).is_some_and(|row| row.file.is_none());
    let mut matching = found.iter().flat_map(|(_, why)| &why.matching);
    if table.rows.keys().any(is_added) && !matching.any(is_added) {
        text.push_str("\nnone of your rows matches\n");
    }
    Ok(text)
}

struct Table<'a> {
    rules: &'a Rules,
    rows: HashMap<RowId, &'a Listed>,
}

impl Table<'_> {
    /// What a symbol is in libraries that rows tell apart.
    fn of_symbol(&self, explain: impl Fn(&str) -> Explanation) -> Vec<(String, Explanation)> {
        let values = |keys: &'static [&'static str]| {
            let patterns = self.rows.values().flat_map(|row| &row.patterns);
            let patterns = patterns.filter(|(key, _)| keys.contains(&key.as_str()));
            patterns.flat_map(|(_, values)| values)
        };
        let is_python = |file: &&String| file.contains('/') || file.ends_with(".py");
        let files: BTreeSet<&str> = values(&["files", "file"])
            .filter(|file| !is_python(file))
            .map(String::as_str)
            .collect();
        let names_symbols = |id: &&RowId| {
            let row = self.rows.get(*id).filter(|_| id.subject == "native");
            let mut patterns = row.into_iter().flat_map(|row| &row.patterns);
            patterns.any(|(key, _)| ["start", "is", "has"].contains(&key.as_str()))
        };
        let mut found: Vec<(Vec<RowId>, Vec<&str>, Explanation)> = Vec::new();
        for library in std::iter::once("").chain(files) {
            let mut why = explain(library);
            // Its library is not known.
            why.decisions.retain(|each| each.row.subject != "family");
            why.matching.retain(|row| row.subject != "family");
            let rows: Vec<RowId> = why.matching.iter().filter(names_symbols).copied().collect();
            match found.iter_mut().find(|(other, ..)| *other == rows) {
                _ if rows.is_empty() => {}
                Some((_, libraries, _)) => libraries.push(library),
                None => found.push((rows, vec![library], why)),
            }
        }
        found
            .into_iter()
            .map(|(_, libraries, why)| {
                let is_anywhere = libraries.contains(&"");
                let place = || format!(", in {}", some(&libraries, LIBRARIES));
                (if is_anywhere { String::new() } else { place() }, why)
            })
            .collect()
    }

    fn explain(&self, text: &mut String, why: &Explanation) {
        let mut deciding: Vec<RowId> = Vec::new();
        for Decision { row, .. } in &why.decisions {
            if !deciding.contains(row) {
                deciding.push(*row);
            }
        }
        for id in &deciding {
            for decision in why.decisions.iter().filter(|each| each.row == *id) {
                let _ = writeln!(text, "    {}", self.meaning(decision, why));
            }
            if let Some(row) = self.rows.get(id) {
                let _ = writeln!(text, "        {}: {}", self.rules.place(row), head(row));
            }
        }
        let others = why.matching.iter().filter(|id| !deciding.contains(id));
        let others: Vec<String> = others
            .filter_map(|id| Some(self.rules.place(self.rows.get(id)?)))
            .collect();
        if !others.is_empty() {
            let _ = writeln!(text, "    match, but decide nothing: {}", others.join(", "));
        }
    }

    /// `phase = whole input`, with what follows from it.
    fn meaning(&self, Decision { meaning, row }: &Decision, why: &Explanation) -> String {
        let written = self.rows.get(row).and_then(|row| {
            let mut meanings = row.meanings.iter();
            meanings.find(|(key, _)| key == meaning)
        });
        let value = written.map_or("", |(_, value)| value.as_str());
        let more = match (*meaning, &why.rules.operator) {
            ("class", _) => self.class(value),
            ("operator", OperatorMark::Operator(name) | OperatorMark::Node(name)) => name.clone(),
            ("collective", _) if why.rules.collective.name.is_none() => {
                "no row of [[collective]] has its name".to_owned()
            }
            _ => String::new(),
        };
        // The name of a collective.
        let meaning = match row.subject {
            "collective" => "collective",
            _ => *meaning,
        };
        match more.is_empty() {
            true => format!("{meaning} = {value}"),
            false => format!("{meaning} = {value} ({more})"),
        }
    }

    fn class(&self, name: &str) -> String {
        let is = |(id, row): &(&RowId, &&Listed)| {
            let mut names = row.patterns.iter().flat_map(|(_, values)| values);
            id.subject == "class" && names.any(|each| each == name)
        };
        let row = self.rows.iter().filter(is).min_by_key(|(id, _)| id.at);
        let meanings = row.into_iter().flat_map(|(_, row)| &row.meanings);
        let meanings = meanings.map(|(key, value)| format!("{key} = {value}"));
        meanings.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_asked_for_as_people_write_it() {
        let cases = [
            (
                "company/loader.py:Loader.load",
                Asked::Python("company/loader.py", Some("Loader.load")),
            ),
            (
                "<eval_with_key>.3:forward",
                Asked::Python("<eval_with_key>.3", Some("forward")),
            ),
            ("/home/u/a.py", Asked::Python("/home/u/a.py", None)),
            (
                "libx.so.2:ns::run(a::B)",
                Asked::Native("libx.so.2", Some("ns::run(a::B)")),
            ),
            ("/x/libx.so", Asked::Native("/x/libx.so", None)),
            (
                "python3.11:PyEval_Eval",
                Asked::Native("python3.11", Some("PyEval_Eval")),
            ),
            ("ncclAllReduce", Asked::Symbol("ncclAllReduce")),
            (
                "at::_ops::item::call",
                Asked::Symbol("at::_ops::item::call"),
            ),
        ];
        for (text, wanted) in cases {
            assert_eq!(Asked::parse(text), wanted, "{text}");
        }
    }
}
