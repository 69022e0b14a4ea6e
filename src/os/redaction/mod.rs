//! Removes secrets from command lines and values before they are kept.
//!
//! Rules are data: what a name implies for its value ([`names`]), which values can be secrets
//! ([`values`]), shapes of tokens and what marks a secret in longer text ([`text`]), and programs
//! whose short options take one ([`programs`]). In doubt a value is hidden; a test lists what must
//! not be changed.

mod names;
mod programs;
mod text;
mod values;

use names::{Suspicion, is_name, is_switch, suspicion};
use programs::SecretOption;
use values::{could_be_secret, is_hex_key, is_plain, is_secret, looks_random};

/// What replaces a secret.
pub const REDACTED: &str = "<redacted>";

/// Maximum depth of arguments within arguments: `bash -c "env A='b=c' …"`.
const MAX_DEPTH: u32 = 4;

/// Whether secrets are removed from what is read of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redaction {
    #[default]
    On,
    /// Everything is kept: `--no-redact`.
    Off,
}

impl Redaction {
    /// A command line without secrets: values of secret flags (`--token x`, `--token=x`),
    /// `KEY=value` words, and whatever [`Redaction::text`] finds.
    pub fn command<S: AsRef<str>>(self, arguments: &[S]) -> Vec<String> {
        let arguments = arguments.iter().map(AsRef::as_ref);
        match self {
            Redaction::Off => arguments.map(str::to_owned).collect(),
            Redaction::On => {
                let mut walk = Walk::default();
                arguments.map(|argument| walk.word(argument, 0)).collect()
            }
        }
    }

    /// Text without secrets that are recognizable by their shape.
    pub fn text(self, text: &str) -> String {
        match self {
            Redaction::Off => text.to_owned(),
            Redaction::On => text::redact(text),
        }
    }

    /// The value of a variable of this name.
    pub fn value(self, name: &str, value: &str) -> String {
        match self {
            Redaction::Off => value.to_owned(),
            Redaction::On if is_secret(name, value) => REDACTED.to_owned(),
            Redaction::On => redact_value(name, value, 0),
        }
    }
}

/// What an argument implies for the next one.
#[derive(Debug, Default)]
enum Pending {
    #[default]
    Nothing,
    /// It is the value of this name.
    Value(String),
    Secret,
    /// It is a secret if it can be one.
    Possible,
    /// It is a user's name, possibly followed by a password.
    User,
}

/// A command line, argument by argument.
#[derive(Debug, Default)]
struct Walk {
    pending: Pending,
    option: Option<&'static SecretOption>,
    before: String,
}

impl Walk {
    fn word(&mut self, word: &str, depth: u32) -> String {
        let redacted = self.redact(word, depth);
        if !word.starts_with('-') {
            self.before.clear();
            self.before.push_str(word);
        }
        redacted
    }

    fn redact(&mut self, word: &str, depth: u32) -> String {
        match std::mem::take(&mut self.pending) {
            Pending::Nothing => {}
            Pending::Secret => return REDACTED.to_owned(),
            Pending::Possible if could_be_secret(word) => return REDACTED.to_owned(),
            Pending::Possible => {}
            Pending::Value(name) => {
                if let Some(redacted) = self.value_of(&name, word, depth) {
                    return redacted;
                }
            }
            Pending::User => {
                if let Some(redacted) = redact_password_of_user(word) {
                    return redacted;
                }
            }
        }
        if let Some(redacted) = self.program_option(word) {
            return redacted;
        }
        if word.starts_with('-') && is_name(word) && !word.contains(':') {
            self.pending = match word {
                _ if is_switch(word) && suspicion(word) > Suspicion::None => Pending::Possible,
                "-u" | "-U" | "--user" | "--proxy-user" => Pending::User,
                _ => Pending::Value(word.to_owned()),
            };
            return text::redact(word);
        }
        // `git config user.password x`, `aws configure set aws_secret_access_key x`.
        if is_name(word)
            && !word.contains('/')
            && word.contains(['.', '_', '-'])
            && suspicion(word) == Suspicion::Certain
            && self.before != "-m"
        {
            self.pending = Pending::Possible;
        }
        redact_argument(word, &self.before, depth)
    }

    /// The argument after a flag of this name; `None` if the argument is a flag itself.
    fn value_of(&mut self, name: &str, word: &str, depth: u32) -> Option<String> {
        let suspicion = suspicion(name);
        if word.starts_with('-') {
            let hides = matches!(suspicion, Suspicion::Certain | Suspicion::LikelyWord);
            if !hides || word.parse::<f64>().is_ok() {
                return None;
            }
            // Also if the value looks like a flag. Another secret's flag keeps its own value
            // hidden.
            if names::suspicion(word) > Suspicion::Possible && !word.contains('=') {
                self.pending = Pending::Secret;
            }
            return Some(REDACTED.to_owned());
        }
        if is_secret(name, word) {
            return Some(REDACTED.to_owned());
        }
        Some(match suspicion {
            Suspicion::None => redact_value(name, word, depth),
            // The name is suspicious, but does not hide this value by itself.
            _ => redact_argument(word, name, depth),
        })
    }

    /// Options of programs that are known by name.
    fn program_option(&mut self, word: &str) -> Option<String> {
        if let Some(option) = SecretOption::of(word, &self.before) {
            self.option = Some(option);
            return None;
        }
        let option = self.option?;
        let Some(value) = option
            .value_in(word)
            .filter(|value| !is_plain(value) || value.is_empty())
        else {
            if option.wraps && !word.starts_with('-') {
                self.option = None;
            }
            return None;
        };
        if option.is_apart && value.is_empty() {
            self.pending = Pending::Secret;
            return Some(word.to_owned());
        }
        Some(format!("{}{REDACTED}", option.flag()))
    }
}

/// The value of a name that is not secret.
fn redact_value(name: &str, value: &str, depth: u32) -> String {
    if is_hex_key(name, value) || looks_random(value) && !names::is_of_digest(name) {
        return REDACTED.to_owned();
    }
    redact_argument(value, name, depth)
}

/// One argument. `before` is the argument before it, or its name.
fn redact_argument(argument: &str, before: &str, depth: u32) -> String {
    if depth >= MAX_DEPTH {
        return text::redact(argument);
    }
    if let Some(redacted) = text::redact_header(argument) {
        return redacted;
    }
    if let Some((name, value)) = argument.split_once('=')
        && is_name(name)
        && !name.contains("://")
        // The padding of base64.
        && !matches!(value, "" | "=")
    {
        if is_secret(name, value.trim_matches(['"', '\''])) {
            return format!("{name}={REDACTED}");
        }
        if matches!(name, "-u" | "-U" | "--user" | "--proxy-user")
            && let Some(redacted) = redact_password_of_user(value)
        {
            return format!("{name}={redacted}");
        }
        // Read as one text first: `a=1;Password=x;b=2` and `https://h/p?a=b&token=c`.
        let whole = text::redact(argument);
        return match whole.split_once('=') {
            Some((name, value)) => format!("{name}={}", redact_value(name, value, depth + 1)),
            None => whole,
        };
    }
    // `--password:x`, and curl's `-uname:x`.
    if argument.starts_with('-')
        && let Some((name, value)) = argument.split_once(':')
        && is_name(name)
    {
        if is_secret(name, value) && !value.starts_with("//") {
            return format!("{name}:{REDACTED}");
        }
        if let Some(user) = argument.strip_prefix("-u")
            && let Some(redacted) = redact_password_of_user(user)
        {
            return format!("-u{redacted}");
        }
    }
    if argument.contains(char::is_whitespace) {
        return redact_script(&text::redact(argument), depth + 1);
    }
    if let Some(redacted) = redact_login(argument) {
        return redacted;
    }
    let is_git = before == "git" || before.ends_with("/git") || before == "checkout";
    if !is_git && is_hex_key(before, argument) || looks_random(argument) {
        return REDACTED.to_owned();
    }
    text::redact(argument)
}

/// A command line in one argument: `sh -c '…'`, and a process's title.
fn redact_script(text: &str, depth: u32) -> String {
    let mut walk = Walk::default();
    let mut redacted = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let space = rest.len() - rest.trim_start().len();
        redacted.push_str(&rest[..space]);
        rest = &rest[space..];
        let (word, behind) = rest.split_at(word_end(rest));
        let inner = quoted(word).unwrap_or(word);
        let new = walk.word(inner, depth);
        match new == inner {
            true => redacted.push_str(word),
            false if inner.len() == word.len() => redacted.push_str(&new),
            false => {
                let quote = &word[..1];
                redacted.push_str(&format!("{quote}{new}{quote}"));
            }
        }
        rest = behind;
    }
    redacted
}

/// The text between the quotes of a quoted word.
fn quoted(word: &str) -> Option<&str> {
    ['"', '\'']
        .iter()
        .find_map(|&quote| word.strip_prefix(quote)?.strip_suffix(quote))
}

/// The end of the first word of `text`. A quote that is never closed is an apostrophe.
fn word_end(text: &str) -> usize {
    let mut next = 0;
    while let Some(character) = text[next..].chars().next() {
        if character.is_whitespace() {
            break;
        }
        let behind = next + character.len_utf8();
        next = match character {
            '"' | '\'' => text[behind..]
                .find(character)
                .map_or(behind, |length| behind + length + 1),
            _ => behind,
        };
    }
    next
}

/// `name:password`, and `name%password` of smbclient; not `1000:1000`, which are ids.
fn redact_password_of_user(word: &str) -> Option<String> {
    let at = word.find([':', '%'])?;
    let (user, password) = (&word[..at], &word[at + 1..]);
    let are_ids = [user, password]
        .iter()
        .all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    let is_user = !user.is_empty() && !user.contains(['/', '=', '$', '{', '(']);
    let is_none = password.is_empty() || password.starts_with("//") || are_ids;
    (is_user && !is_none).then(|| format!("{}{REDACTED}", &word[..=at]))
}

/// `user:password@host`, without a scheme.
fn redact_login(argument: &str) -> Option<String> {
    let colon = argument.find(':')?;
    let at = argument.rfind('@').filter(|&at| at > colon + 1)?;
    let (user, host) = (&argument[..colon], &argument[at + 1..]);
    let is_user = !user.is_empty()
        && user
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let is_host = host.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !host.starts_with("sha256:")
        && (!argument[colon..at].contains('/') || could_be_secret(&argument[colon + 1..at]));
    (is_user && is_host && !argument[colon..].starts_with("://"))
        .then(|| format!("{user}:{REDACTED}{}", &argument[at..]))
}

#[cfg(test)]
mod tests;
