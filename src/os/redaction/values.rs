//! Values, and whether they can be secrets.

use super::names::{Suspicion, is_of_digest, is_of_key_file, suspicion};

/// Values that are never secret: switches, and types in code.
const PLAIN: &[&str] = &[
    "", "any", "auto", "bool", "bytes", "default", "false", "int", "no", "none", "null", "off",
    "on", "optional", "prompt", "str", "true", "yes",
];
/// Minimum length of a text that a doubtful name hides.
const SHORTEST: usize = 6;
/// Minimum length of a value that is hidden only because it is random: 16 bytes in base64 without
/// padding have 22 characters.
const SHORTEST_RANDOM: usize = 20;
/// Minimum number of digits of a secret number.
const SECRET_DIGITS: usize = 3;
/// Minimum share of neighbouring characters of different kinds (lower, upper, digit): 0.62 in
/// random base 62, about 0.3 in CamelCase.
const RANDOM_CHANGES: f64 = 0.45;
/// Length of an older W&B API key, and of a git commit.
const HEX_KEY: usize = 40;

/// Whether `value` has to be hidden under `name`.
pub(super) fn is_secret(name: &str, value: &str) -> bool {
    let suspicion = suspicion(name);
    if suspicion == Suspicion::None || is_plain(value) {
        return false;
    }
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    match suspicion {
        Suspicion::None => false,
        Suspicion::Possible => could_be_secret(value),
        Suspicion::LikelyWord if digits => value.len() >= SECRET_DIGITS,
        Suspicion::LikelyWord => !is_text_token(value),
        Suspicion::Number if digits => value.len() >= SECRET_DIGITS,
        Suspicion::Number => true,
        Suspicion::Certain if is_path(value) => {
            // The shell's own PWD, and keys that are files.
            !is_of_key_file(name) && !name.eq_ignore_ascii_case("pwd")
        }
        Suspicion::Certain => true,
    }
}

/// `true`, `None`, a type, a number of one or two digits.
pub(super) fn is_plain(value: &str) -> bool {
    let value = value.trim_matches(['"', '\'', ' ', ')', ']', '}', ',', ';']);
    PLAIN.iter().any(|plain| value.eq_ignore_ascii_case(plain))
        || value.len() < SECRET_DIGITS && value.bytes().all(|byte| byte.is_ascii_digit())
}

/// `[PAD]`, `<s>`, `<|endoftext|>`.
fn is_text_token(value: &str) -> bool {
    let inner = value
        .strip_prefix('<')
        .and_then(|rest| rest.strip_suffix('>'))
        .or_else(|| {
            value
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
        });
    inner.is_some_and(|inner| {
        inner.len() <= 24
            && inner
                .bytes()
                .all(|byte| byte.is_ascii_alphabetic() || b"|/_".contains(&byte))
    })
}

fn is_path(value: &str) -> bool {
    ["/", "./", "../", "~"]
        .iter()
        .any(|start| value.starts_with(start))
        || [".pem", ".key", ".crt", ".json", ".yaml", ".pub"]
            .iter()
            .any(|end| value.ends_with(end))
}

/// Whether a value may be a secret that somebody chose or was given: mixed, and neither a number
/// nor a path.
pub(super) fn could_be_secret(value: &str) -> bool {
    let value = value.trim_matches(['"', '\'']);
    let has = |kind: fn(&u8) -> bool| value.bytes().any(|byte| kind(&byte));
    let (lower, upper) = (
        has(u8::is_ascii_lowercase),
        value.bytes().skip(1).any(|byte| byte.is_ascii_uppercase()),
    );
    value.len() >= SHORTEST
        && !is_plain(value)
        && !is_path(value)
        && !value.contains("://")
        && value.parse::<f64>().is_err()
        && !is_dotted_name(value)
        && ((lower || upper) && has(u8::is_ascii_digit)
            || lower && upper
            || has(|byte| b"!#$%^&*+=~|?:".contains(byte)))
}

/// `layer1.0.weight`, `model/vit`: words with small numbers.
fn is_dotted_name(value: &str) -> bool {
    let is_word = |part: &str| {
        let letters = part.trim_end_matches(|c: char| c.is_ascii_digit());
        part.len() - letters.len() <= 3 && letters.bytes().all(|byte| byte.is_ascii_lowercase())
    };
    value.contains(['.', '/', '_']) && value.split(['.', '/', '_']).all(is_word)
}

/// Whether a value is random text, such as a key. Paths are not: caches have names like that.
pub(super) fn looks_random(value: &str) -> bool {
    if value.len() < SHORTEST_RANDOM
        || is_path(value)
        || value.contains("://")
        || !value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_+/=".contains(&byte))
    {
        return false;
    }
    // Base64 contains `/`, too: a path has no other character of it.
    let is_base64 = value.contains('+') || value.ends_with('=') || value.len() == HEX_KEY;
    if value.contains('/') && !is_base64 {
        return false;
    }
    let runs = value.split(|c: char| !(c.is_ascii_alphanumeric() || is_base64 && c == '/'));
    let longest = runs.max_by_key(|run| run.len()).unwrap_or_default();
    longest.len() >= SHORTEST_RANDOM * 4 / 5 && is_mixed(longest.as_bytes())
}

fn is_mixed(run: &[u8]) -> bool {
    let kind = |byte: &u8| match byte {
        b'a'..=b'z' => 0,
        b'A'..=b'Z' => 1,
        b'0'..=b'9' => 2,
        _ => 3,
    };
    let count = |wanted| run.iter().filter(|byte| kind(byte) == wanted).count();
    let changes = run
        .windows(2)
        .filter(|pair| kind(&pair[0]) != kind(&pair[1]));
    count(0) > 1
        && count(1) > 1
        && count(2) > 1
        && changes.count() as f64 >= RANDOM_CHANGES * run.len() as f64
}

/// Whether `value`, alone under `name`, is a key of forty hexadecimal digits and not a digest.
pub(super) fn is_hex_key(name: &str, value: &str) -> bool {
    value.len() == HEX_KEY
        && value
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        && !is_of_digest(name)
}
