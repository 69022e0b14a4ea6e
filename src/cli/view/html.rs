//! Pages of the server's own: the list of recordings, and what is around the page of one.

use super::library::Listed;
use crate::report::command::shown_command;
use crate::report::label::{LONG, clean};
use crate::report::naming::utc_time;
use std::fmt::Write;
use std::path::Path;

/// What these pages may load: their own files, and the page in its frame, whose links open editors.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; frame-src 'self' vscode: idea: mvim:; img-src data:; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// Files beside them: name, type and text.
pub(super) const ASSETS: &[(&str, &str, &str)] = &[
    (
        "view.css",
        "text/css; charset=utf-8",
        include_str!("view.css"),
    ),
    (
        "list.js",
        "text/javascript; charset=utf-8",
        include_str!("list.js"),
    ),
    (
        "run.js",
        "text/javascript; charset=utf-8",
        include_str!("run.js"),
    ),
];

/// Width of a command line, characters.
const COMMAND: usize = 100;

/// A name as a part of an address.
pub(super) fn encoded(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => text.push(byte as char),
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

/// A text between tags or in an attribute, without characters that reorder others.
fn escaped(text: &str) -> String {
    let text = clean(text, LONG);
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

fn page(title: &str, script: &str, root: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} - torchspy</title>\n<link rel=\"icon\" href=\"data:,\">\n\
         <link rel=\"stylesheet\" href=\"{root}view.css\">\n\
         <script defer src=\"{root}{script}\"></script>\n</head>\n{body}\n</html>\n"
    )
}

/// The list of recordings. Its script adds what takes reading them.
pub(super) fn index(folder: &Path, listed: &[Listed], left_out: usize) -> String {
    let mut rows = String::new();
    for each in listed {
        row(&mut rows, each);
    }
    let folder = folder.display().to_string();
    let count = match listed.len() {
        0 => "no recordings (.tspy) in this folder".to_owned(),
        1 => "1 recording".to_owned(),
        several => format!("{several} recordings, the newest first"),
    };
    let job = match listed.len() {
        0 | 1 => "",
        _ => {
            "<p><a href=\"job\">All ranks of one job</a>: who arrives last, since when, and why</p>\n"
        }
    };
    let more = match left_out {
        0 => String::new(),
        more => format!("; {more} older ones are left out"),
    };
    let body = format!(
        "<body class=\"list\">\n<h1>{}</h1>\n<p class=\"dim\">{count}{more}</p>\n{job}<table>\n<thead><tr>\
         <th>recording</th><th>command</th><th>host</th><th>start</th><th class=\"number\">duration</th>\
         <th class=\"number\">steps</th><th>verdict</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</body>",
        escaped(&folder)
    );
    page(&folder, "list.js", "", &body)
}

fn row(out: &mut String, each: &Listed) {
    let name = escaped(&each.name);
    let address = encoded(&each.name);
    let _ = match &each.head {
        Ok(run) => writeln!(
            out,
            "<tr data-name=\"{address}\"{}><td><a href=\"run/{address}\">{name}</a></td><td>{}</td>\
             <td>{}</td><td>{}</td><td class=\"number duration\"></td><td class=\"number steps\"></td>\
             <td class=\"verdict dim\">…</td></tr>",
            if each.growing {
                " class=\"growing\""
            } else {
                ""
            },
            escaped(&shown_command(&run.command, COMMAND)),
            escaped(&run.host),
            utc_time(run.started_wall_ns),
        ),
        Err(error) => writeln!(
            out,
            "<tr><td>{name}</td><td colspan=\"6\" class=\"error\">cannot be read: {} ({} bytes)</td></tr>",
            escaped(&error.to_string()),
            each.size
        ),
    };
}

/// The page around the page of a recording.
pub(super) fn shell(name: &str, has_list: bool) -> String {
    let list = match has_list {
        true => "<a href=\"../\">all recordings</a>",
        false => "",
    };
    let body = format!(
        "<body class=\"run\" data-name=\"{}\">\n<header>{list}<b>{}</b>\
         <span id=\"status\" role=\"status\" class=\"dim\">reading…</span>\
         <span class=\"grow\"></span><button id=\"detail\" hidden></button>\
         <button id=\"whole\" hidden>Back to the whole recording</button></header>\n\
         <iframe id=\"page\" title=\"the page of the recording\"></iframe>\n</body>",
        encoded(name),
        escaped(name)
    );
    page(name, "run.js", "../", &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_and_addresses_are_encoded() {
        let name = "a\"><script>x</script>'\u{202e} &%2f.tspy";
        let text = shell(name, true);
        assert!(
            !text.contains("<script>x") && !text.contains('\u{202e}'),
            "{text}"
        );
        assert!(
            text.contains("&lt;script&gt;x") && text.contains("%26%252f.tspy"),
            "{text}"
        );
        let attribute = text
            .split("data-name=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        assert!(
            attribute
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"%-_.".contains(&byte))
        );
    }
}
