//! Named blocks in a source file: `with torchspy.region("augment"):`, torch's `record_function` and
//! `nvtx.range` of the same form, and functions under `@torchspy.mark("augment")`.
//!
//! The block is in the source and nowhere else: entering it leaves nothing in memory that a sample
//! could read, and costs next to nothing. A name that is not written there as text is not found.

use regex::Regex;
use std::sync::LazyLock;

/// The longest source that is searched, bytes.
pub const MAX_SOURCE: u64 = 4 << 20;
/// The most blocks of a file.
const MAX_REGIONS: usize = 1024;
/// The longest name, characters.
const MAX_NAME: usize = 100;

/// A named block of a function's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRegion {
    pub name: String,
    /// Where the function that has the block begins, as `co_firstlineno`: its first decorator, or
    /// its `def`. 0 in a module.
    pub function_line: u32,
    /// The first and the last line that run inside.
    pub lines: (u32, u32),
    /// Whether it was marked with torchspy's own names.
    pub is_ours: bool,
}

impl SourceRegion {
    /// Whether it is a part of the function that begins at `first_line`, or of the module.
    pub fn is_in(&self, first_line: u32, is_module: bool) -> bool {
        match self.function_line {
            0 => is_module,
            begin => !is_module && begin == first_line,
        }
    }
}

/// Calls that name a block. A name in one kind of quotes may hold the other.
static NAMED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r#"(?:^|[\s@(,])((?:\w+\.)*)(region|mark|record_function|range|annotate)\(\s*(?:name\s*=\s*)?[rRuU]?(?:"([^"\\\n]+)"|'([^'\\\n]+)')\s*[,)]"#,
    )
    .ok()
});

/// The named blocks of `source`, outer ones first.
pub fn source_regions(source: &str) -> Vec<SourceRegion> {
    let words = ["torchspy", "record_function", "nvtx"];
    if !words.iter().any(|word| source.contains(word)) {
        return Vec::new();
    }
    let mut blocks = Blocks {
        source,
        ..Blocks::default()
    };
    logical_lines(source, |line| blocks.take(line));
    blocks.close(0);
    let mut found = blocks.found;
    found.sort_by_key(|region| (region.lines.0, std::cmp::Reverse(region.lines.1)));
    found
}

/// A statement, or the head of a compound one.
struct Line<'s> {
    text: &'s str,
    /// Columns before it; a tab goes to the next multiple of 8.
    indent: usize,
    first: u32,
    last: u32,
}

#[derive(Default)]
struct Blocks<'s> {
    source: &'s str,
    open: Vec<Open>,
    /// Names in decorators of the function that comes next, and the first decorator's line.
    decorators: Vec<(String, bool)>,
    decorated_at: Option<u32>,
    last_line: u32,
    found: Vec<SourceRegion>,
}

struct Open {
    indent: usize,
    kind: Kind,
}

enum Kind {
    /// A function by its first line.
    Function(u32),
    Class,
    /// By its place in `found`.
    Region(usize),
}

impl Blocks<'_> {
    fn take(&mut self, line: &Line<'_>) {
        self.close(line.indent);
        let words = line
            .text
            .strip_prefix("async")
            .map_or(line.text, str::trim_start);
        let begins = |word: &str| {
            words.strip_prefix(word).is_some_and(|rest| {
                !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_')
            })
        };
        if line.text.starts_with('@') {
            self.decorated_at.get_or_insert(line.first);
            let named = self.names(line.text);
            self.decorators.extend(named);
            self.last_line = line.last;
            return;
        }
        let decorators = std::mem::take(&mut self.decorators);
        let first = self.decorated_at.take().unwrap_or(line.first);
        let is_short = !line.text.trim_end().ends_with(':');
        if begins("def") {
            self.push(line.indent, Kind::Function(first));
            self.regions(line, decorators, first, is_short);
        } else if begins("class") {
            self.push(line.indent, Kind::Class);
        } else if begins("with") {
            let function = self.open.iter().rev().find_map(|open| match open.kind {
                Kind::Function(line) => Some(Some(line)),
                // Its body is code of its own.
                Kind::Class => Some(None),
                Kind::Region(_) => None,
            });
            let names = self.names(line.text);
            if let Some(function) = function.unwrap_or(Some(0)) {
                self.regions(line, names, function, is_short);
            }
        }
        self.last_line = line.last;
    }

    fn regions(
        &mut self,
        line: &Line<'_>,
        names: Vec<(String, bool)>,
        function_line: u32,
        is_short: bool,
    ) {
        for (name, is_ours) in names {
            if self.found.len() >= MAX_REGIONS {
                return;
            }
            let begin = if is_short { line.first } else { line.last + 1 };
            self.found.push(SourceRegion {
                name,
                function_line,
                lines: (begin, line.last),
                is_ours,
            });
            self.push(line.indent, Kind::Region(self.found.len() - 1));
        }
    }

    fn push(&mut self, indent: usize, kind: Kind) {
        self.open.push(Open { indent, kind });
    }

    /// Ends the blocks of heads that are not to the left of `indent`.
    fn close(&mut self, indent: usize) {
        while let Some(open) = self.open.pop_if(|open| open.indent >= indent) {
            if let Kind::Region(at) = open.kind
                && let Some(region) = self.found.get_mut(at)
            {
                region.lines.1 = self.last_line;
            }
        }
    }

    /// The names in calls of `text`, and whether the call is torchspy's.
    fn names(&self, text: &str) -> Vec<(String, bool)> {
        let Some(named) = NAMED.as_ref() else {
            return Vec::new();
        };
        let calls = named.captures_iter(text).filter_map(|call| {
            let part = |at| call.get(at).map_or("", |part| part.as_str());
            let is_known = match part(2) {
                "record_function" => true,
                "range" | "annotate" => part(1).ends_with("nvtx."),
                _ => match part(1).strip_suffix('.') {
                    None => self.source.contains("from torchspy import"),
                    Some("torchspy") => true,
                    Some(other) => self.source.contains(&format!("torchspy as {other}")),
                },
            };
            let name = format!("{}{}", part(3), part(4));
            let is_ours = matches!(part(2), "region" | "mark");
            (is_known && name.chars().count() <= MAX_NAME).then_some((name, is_ours))
        });
        calls.collect()
    }
}

/// Calls `take` for each logical line: brackets, continued lines and long strings joined, comments
/// and empty lines left out.
fn logical_lines<'s>(source: &'s str, mut take: impl FnMut(&Line<'s>)) {
    let bytes = source.as_bytes();
    let (mut at, mut number) = (0, 1);
    while at < bytes.len() {
        let mut indent = 0;
        while let Some(blank) = bytes.get(at).filter(|byte| b" \t\x0c".contains(byte)) {
            indent = match blank {
                b'\t' => (indent / 8 + 1) * 8,
                b' ' => indent + 1,
                _ => 0,
            };
            at += 1;
        }
        let (begin, first) = (at, number);
        let mut end = at;
        let mut depth = 0_usize;
        loop {
            match bytes.get(at) {
                None => break,
                Some(b'\n') => {
                    number += 1;
                    at += 1;
                    // A bracket that stays open was inside of a string within a string.
                    if depth == 0 || begins_statement(bytes.get(at..).unwrap_or_default()) {
                        break;
                    }
                }
                Some(b'\\') => {
                    number += u32::from(bytes.get(at + 1) == Some(&b'\n'));
                    at += 2;
                }
                Some(b'#') => {
                    while bytes.get(at).is_some_and(|byte| *byte != b'\n') {
                        at += 1;
                    }
                }
                Some(quote @ (b'"' | b'\'')) => {
                    let string_end = end_of_string(bytes, at, *quote);
                    let text = bytes.get(at..string_end).unwrap_or_default();
                    let lines = text.iter().filter(|byte| **byte == b'\n').count();
                    number = number.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
                    at = string_end;
                    end = at;
                }
                Some(other) => {
                    match other {
                        b'(' | b'[' | b'{' => depth += 1,
                        b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    at += 1;
                    if !other.is_ascii_whitespace() {
                        end = at;
                    }
                }
            }
        }
        let ended = bytes.get(at.wrapping_sub(1)) == Some(&b'\n');
        let text = source.get(begin..end).unwrap_or_default();
        if !text.is_empty() {
            take(&Line {
                text,
                indent,
                first,
                last: number - u32::from(ended),
            });
        }
    }
}

/// Whether a line begins with a word that brackets cannot hold.
fn begins_statement(line: &[u8]) -> bool {
    let text = line.trim_ascii_start();
    let starts = |word: &&str| {
        let rest = text.strip_prefix(word.as_bytes());
        rest.is_some_and(|rest| rest.first().is_some_and(|next| b" (\t".contains(next)))
    };
    ["with", "def", "class", "async with", "async def"]
        .iter()
        .any(starts)
        && {
            let blank = line.len() - text.len();
            !line.get(..blank).unwrap_or_default().contains(&b'\n')
        }
}

/// Behind the string that begins at `at`; the end of the line where it has no end.
fn end_of_string(bytes: &[u8], at: usize, quote: u8) -> usize {
    let is_long = bytes.get(at..at + 3) == Some(&[quote; 3]);
    let length = if is_long { 3 } else { 1 };
    let mut next = at + length;
    loop {
        match bytes.get(next) {
            None => return bytes.len(),
            Some(b'\\') => next += 2,
            Some(b'\n') if !is_long => return next,
            Some(byte) if *byte == quote => {
                if !is_long || bytes.get(next..next + 3) == Some(&[quote; 3]) {
                    return next + length;
                }
                next += 1;
            }
            Some(_) => next += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name function_line first..last`, by file.
    fn found(source: &str) -> Vec<String> {
        source_regions(source)
            .iter()
            .map(|region| {
                let (first, last) = region.lines;
                format!("{} {} {first}..{last}", region.name, region.function_line)
            })
            .collect()
    }

    #[test]
    fn a_block_belongs_to_the_function_that_has_it() {
        let source = "\
import torchspy
from torchspy import region

def train():
    with torchspy.region(\"augment\"):
        x = (1,
             2)
        # with torchspy.region(\"comment\"):

        def later():
            return x
        y = later()
    with region('loss'), open('f'):
        pass
    z = \"\"\"
with region('text'):
    no
\"\"\"
    with region(\"one\"): work()
    return y

with torchspy.region(
    \"whole\",
):
    train()
";
        assert_eq!(
            found(source),
            [
                "augment 4 6..12",
                "loss 4 14..14",
                "one 4 19..19",
                "whole 0 25..25"
            ]
        );
        let augment = &source_regions(source)[0];
        assert!(augment.is_ours);
        // A function that is defined inside runs at some other time.
        assert!(augment.is_in(4, false) && !augment.is_in(10, false));
        let whole = &source_regions(source)[3];
        assert!(whole.is_in(1, true) && !whole.is_in(1, false));
    }

    #[test]
    fn decorators_mark_the_body() {
        let source = "\
import torchspy as ts, functools

class Data:
    @functools.cache
    @ts.mark(\"decode\")
    async def get(self, *,
                  at=0):
        return at

    @ts.mark(\"class\")
    class Inner:
        with ts.region(\"body\"):
            pass

    def plain(self):
        return 1
";
        assert_eq!(found(source), ["decode 4 8..8"]);
    }

    #[test]
    fn strings_within_strings_end_no_block() {
        let source = "\
import torchspy as t
def f(x):
    text = f\"{'a' + \"b(\"}\"
    with t.region(name=\"after\"):
        y = [x
             async for x in (1, 2)]
    with t.mark(r'raw'):
        pass
";
        assert_eq!(found(source), ["after 2 5..6", "raw 2 8..8"]);
    }

    #[test]
    fn torch_s_own_names_count_where_they_are_text() {
        let source = "\
from torch.profiler import record_function
def step(nvtx, name, ranges):
\twith torch.profiler.record_function(\"fwd it's\"):
\t\twith nvtx.range('copy', domain=1):
\t\t\tpass
        # this is deeper than a tab
\twith record_function(name):
\t\tpass
\twith record_function(f\"{name}\"):
\t\tpass
\twith ranges.range(\"not nvtx\"):
\t\tpass
\twith region(\"not torchspy's\"):
\t\tpass
\tasync with a.record_function(\"b\") as c:
\t\tpass";
        assert_eq!(
            found(source),
            ["fwd it's 2 4..5", "copy 2 5..5", "b 2 16..16"]
        );
        assert!(!source_regions(source)[0].is_ours);
    }

    #[test]
    fn what_is_no_python_is_survived() {
        for text in [
            "torchspy\nwith region(\"x\"",
            "torchspy\n\\",
            "torchspy\nwith region(\"é\"):\n\té = \"\\",
            "torchspy\n'''",
            "from torchspy import region\r\nwith region(\"x\"):\r\n    pass\r\n",
            "torchspy\n)))]}\n@\n@x\n\u{feff}",
        ] {
            source_regions(text);
        }
        assert_eq!(
            found("from torchspy import region\r\nwith region(\"x\"):\r\n    pass\r\n"),
            ["x 0 3..3"]
        );
    }
}
