//! Text that came from a target, made safe to print.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `text` with everything escaped that could act on a terminal or mislead its reader: control
/// characters (C0, C1, delete, so ANSI sequences too), line and paragraph separators, and
/// bidirectional and invisible format characters (Unicode TR 36, section 2; CVE-2021-42574). A
/// backslash stays as it is: what is printed is for reading, not for parsing.
pub fn printable(text: &str) -> Cow<'_, str> {
    let Some(first) = text.find(is_unprintable) else {
        return Cow::Borrowed(text);
    };
    let (clean, rest) = text.split_at(first);
    let mut safe = String::with_capacity(text.len() + 8);
    safe.push_str(clean);
    for character in rest.chars() {
        match character {
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            other if is_unprintable(other) && u32::from(other) <= 0xff => {
                // Writing to a String does not fail.
                let _ = write!(safe, "\\x{:02x}", u32::from(other));
            }
            other if is_unprintable(other) => {
                let _ = write!(safe, "\\u{{{:x}}}", u32::from(other));
            }
            other => safe.push(other),
        }
    }
    Cow::Owned(safe)
}

/// JSON without characters that could act on a terminal or mislead its reader: JSON itself allows
/// delete, C1 controls and bidirectional characters unescaped. They are within strings, where an
/// escape means the same.
pub fn printable_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            // The layout's own.
            '\n' => safe.push('\n'),
            other if is_unprintable(other) => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    // Writing to a String does not fail.
                    let _ = write!(safe, "\\u{unit:04x}");
                }
            }
            other => safe.push(other),
        }
    }
    safe
}

/// A source path from the package on: the part after `site-packages/` or the standard library's
/// folder, as py-spy shortens paths. Other paths are unchanged.
pub fn package_path(file: &str) -> &str {
    for folder in ["/site-packages/", "/dist-packages/"] {
        if let Some(at) = file.rfind(folder) {
            return &file[at + folder.len()..];
        }
    }
    if let Some(at) = file.rfind("/lib/python3")
        && let Some((_, rest)) = file[at + "/lib/".len()..].split_once('/')
    {
        return rest;
    }
    file
}

/// Whether a character could act on a terminal or mislead its reader; see [`printable`].
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// The name of a notebook's cell, if `path` is the file name of one. Until ipykernel 6 it is
/// `<ipython-input-12-HASH>`, with the cell's number. Since then it is `/tmp/ipykernel_PID/HASH.py`
/// (ipykernel/compiler.py, `get_file_name`), with a hash of the cell's text; [`numbered_cell`] puts
/// the number before that if it is known.
pub fn notebook_cell(path: &str) -> Option<String> {
    if let Some(rest) = path.strip_prefix("<ipython-input-") {
        let number = rest.split('-').next().filter(|number| is_number(number))?;
        return Some(format!("cell {number}"));
    }
    let (_, file) = in_kernel(path)?;
    if let Some((number, hash)) = file
        .strip_prefix(CELL_NUMBER)
        .and_then(|file| file.split_once("]-"))
    {
        return (is_number(number) && is_number(hash)).then(|| format!("Jupyter cell [{number}]"));
    }
    is_number(file).then(|| format!("Jupyter cell #{file}"))
}

/// The hash in the file name of a cell, if `path` is one.
pub fn cell_hash(path: &str) -> Option<u32> {
    let (_, hash) = in_kernel(path)?;
    is_number(hash).then(|| hash.parse().ok()).flatten()
}

/// The file of the cell `path` under its number: `/tmp/ipykernel_811/In[12]-HASH.py`.
pub fn numbered_cell(path: &str, number: u32) -> String {
    match in_kernel(path) {
        Some((folder, hash)) => format!("{folder}/{CELL_NUMBER}{number}]-{hash}.py"),
        None => path.to_owned(),
    }
}

/// The text before the number in the name of a cell's file.
const CELL_NUMBER: &str = "In[";

/// The folder of a kernel's cells, and the name without `.py` of a file in it.
fn in_kernel(path: &str) -> Option<(&str, &str)> {
    let (folder, file) = path.rsplit_once('/')?;
    let pid = folder.rsplit('/').next()?.strip_prefix("ipykernel_")?;
    is_number(pid).then_some((folder, file.strip_suffix(".py")?))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::{cell_hash, notebook_cell, numbered_cell, printable};
    use std::borrow::Cow;

    #[test]
    fn plain_text_is_borrowed() {
        assert!(matches!(
            printable("at::native::add<Größe, 大>"),
            Cow::Borrowed(_)
        ));
    }

    #[test]
    fn control_bytes_are_escaped() {
        assert_eq!(printable("a\x1b[31mred\x07\n"), "a\\x1b[31mred\\x07\\n");
        assert_eq!(printable("\u{9b}2J\x7f"), "\\x9b2J\\x7f");
    }

    #[test]
    fn direction_overrides_are_escaped() {
        assert_eq!(
            printable("x\u{202e}y\u{2066}z\u{200b}"),
            "x\\u{202e}y\\u{2066}z\\u{200b}"
        );
    }

    #[test]
    fn nothing_unprintable_is_left() {
        let all: String = (0..0x11_0000).filter_map(char::from_u32).collect();
        assert!(!printable(&all).contains(super::is_unprintable));
    }

    #[test]
    fn cells_of_notebooks_have_names() {
        for (path, wanted) in [
            ("<ipython-input-12-4ac0e3b1>", Some("cell 12")),
            (
                "/tmp/ipykernel_811/3405691582.py",
                Some("Jupyter cell #3405691582"),
            ),
            (
                "/tmp/ipykernel_811/In[12]-3405691582.py",
                Some("Jupyter cell [12]"),
            ),
            ("/tmp/ipykernel_811/In[x]-3405691582.py", None),
            ("/tmp/ipykernel_811/train.py", None),
            ("/tmp/ipykernel_x/3405691582.py", None),
            ("<ipython-input-x>", None),
            ("train.py", None),
        ] {
            assert_eq!(notebook_cell(path).as_deref(), wanted, "{path}");
        }
    }

    #[test]
    fn cells_are_numbered_once() {
        let cell = "/tmp/ipykernel_811/3405691582.py";
        assert_eq!(cell_hash(cell), Some(3_405_691_582));
        let numbered = numbered_cell(cell, 12);
        assert_eq!(numbered, "/tmp/ipykernel_811/In[12]-3405691582.py");
        assert_eq!(cell_hash(&numbered), None);
        assert_eq!(cell_hash("/tmp/ipykernel_811/99999999999.py"), None);
        assert_eq!(cell_hash("train.py"), None);
    }
}
