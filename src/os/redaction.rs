//! Taking secrets out of command lines and values before they are kept.
//!
//! Three tables: words that make a name a secret's, shapes of well-known tokens, and secrets inside longer text. They
//! err on the side of hiding: `--pad-token x` loses its value, too.

use regex::{Captures, Regex};
use std::sync::LazyLock;

/// What stands in a secret's place.
pub const REDACTED: &str = "<redacted>";

/// Words of a flag's or variable's name that make its value a secret.
const SECRET_WORDS: &[&str] = &[
    "api",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "dsn",
    "key",
    "keys",
    "passphrase",
    "passwd",
    "password",
    "pat",
    "pwd",
    "secret",
    "secrets",
    "token",
];

/// Ends of words written together: `apikey`, `authtoken`. Not `tokens` or `tokenizer`, which are about text.
const SECRET_ENDINGS: &[&str] = &[
    "apikey",
    "accesskey",
    "passwd",
    "password",
    "secret",
    "secretkey",
    "token",
];

/// Tokens that are known by their looks, wherever they stand.
const TOKEN_SHAPES: &[&str] = &[
    // AWS access key ids (IAM user guide, "unique identifiers").
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    // Hugging Face user access tokens.
    r"\bhf_[A-Za-z0-9]{16,}",
    // Weights & Biases: 40 hexadecimal digits, alone or behind a version prefix. Git commits look the same and go, too.
    r"\b[0-9a-f]{40}\b",
    r"\bwandb_v\d+_[A-Za-z0-9_]{16,}",
    // GitHub and GitLab.
    r"\bgh[opsur]_[A-Za-z0-9]{20,}",
    r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bglpat-[A-Za-z0-9_-]{16,}",
    // OpenAI, Anthropic and those who copied the prefix.
    r"\bsk-[A-Za-z0-9_-]{16,}",
    // Slack.
    r"\bxox[a-z]-[A-Za-z0-9-]{10,}",
    // Google API keys.
    r"\bAIza[0-9A-Za-z_-]{30,}",
    // JSON web tokens.
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?",
    // PEM blocks.
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
];

/// Secrets within longer text; the first group stays.
const SECRETS_IN_TEXT: &[&str] = &[
    // The user part of a URL.
    r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/@]+(?:@)",
    // Secret parameters of a URL.
    r"(?i)([?&][^=&\s]*(?:token|key|secret|password|sig|signature|credential)[^=&\s]*=)[^&#\s]+",
    r"(?i)(\bbearer\s+)[^\s'\x22]+",
    // Assignments in code given with -c, JSON and the like.
    r"(?i)((?:token|password|passwd|secret|api_?key|access_?key)['\x22]?\]?\s*[=:]\s*['\x22]?)[^\s'\x22,;)}&]+",
];

static SHAPES: LazyLock<Vec<Regex>> = LazyLock::new(|| compile(TOKEN_SHAPES));
static IN_TEXT: LazyLock<Vec<Regex>> = LazyLock::new(|| compile(SECRETS_IN_TEXT));

/// A test holds that every pattern of the tables compiles.
fn compile(patterns: &[&str]) -> Vec<Regex> {
    patterns.iter().filter_map(|p| Regex::new(p).ok()).collect()
}

/// Whether a flag or variable of this name holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    words(name).iter().any(|word| {
        SECRET_WORDS.contains(&word.as_str())
            || SECRET_ENDINGS.iter().any(|ending| word.ends_with(ending))
    })
}

/// Text without the secrets that show by their looks.
pub fn redact_text(text: &str) -> String {
    let mut text = text.to_owned();
    for pattern in IN_TEXT.iter() {
        let replaced = pattern.replace_all(&text, |found: &Captures<'_>| {
            let kept = found.get(1).map_or("", |group| group.as_str());
            let at = if found[0].ends_with('@') { "@" } else { "" };
            format!("{kept}{REDACTED}{at}")
        });
        text = replaced.into_owned();
    }
    for pattern in SHAPES.iter() {
        text = pattern.replace_all(&text, REDACTED).into_owned();
    }
    text
}

/// A command line without secrets: values of secret flags (`--token x`, `--token=x`), `KEY=value` words, and whatever
/// [`redact_text`] finds.
pub fn redact_command<S: AsRef<str>>(arguments: &[S]) -> Vec<String> {
    let mut hide_next = false;
    let redact = |argument: &S| {
        let argument = argument.as_ref();
        if std::mem::take(&mut hide_next) && !argument.starts_with("--") {
            return REDACTED.to_owned();
        }
        match argument.split_once('=') {
            Some((name, _)) if is_flag_or_variable(name) && is_secret_name(name) => {
                format!("{name}={REDACTED}")
            }
            Some(_) => redact_text(argument),
            None => {
                hide_next = argument.starts_with('-')
                    && is_flag_or_variable(argument)
                    && is_secret_name(argument);
                redact_text(argument)
            }
        }
    };
    arguments.iter().map(redact).collect()
}

fn is_flag_or_variable(name: &str) -> bool {
    name.len() <= 128
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.+/:".contains(&byte))
}

/// The words of a name in kebab-case, snake_case, dotted or camelCase, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before_was_lower = false;
    for character in name.chars() {
        let starts_word = character.is_ascii_uppercase() && before_was_lower;
        if starts_word || !character.is_ascii_alphanumeric() {
            words.push(String::new());
        }
        if character.is_ascii_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.push(character.to_ascii_lowercase());
        }
        before_was_lower = character.is_ascii_lowercase() || character.is_ascii_digit();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_pattern_compiles() {
        assert_eq!(SHAPES.len(), TOKEN_SHAPES.len());
        assert_eq!(IN_TEXT.len(), SECRETS_IN_TEXT.len());
    }

    #[test]
    fn secret_names() {
        for name in [
            "--api-key",
            "--apiKey",
            "HF_TOKEN",
            "WANDB_API_KEY",
            "--password",
            "--db.passwd",
            "AWS_SECRET_ACCESS_KEY",
            "--authtoken",
            "client_secret",
            "--wandb-api-key",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in [
            "--tokenizer",
            "--max-tokens",
            "--lr",
            "--keyboard",
            "--epochs",
            "--compat",
            "monkey",
            "--path",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn commands_lose_their_secrets_and_nothing_else() {
        let secret = "hunter2hunter2";
        let hugging = format!("hf_{}", "a1".repeat(17));
        let cases: &[(&[&str], &[&str])] = &[
            (
                &["python", "train.py", "--lr", "0.1"],
                &["python", "train.py", "--lr", "0.1"],
            ),
            (
                &["x", "--api-key", secret, "--lr", "1"],
                &["x", "--api-key", REDACTED, "--lr", "1"],
            ),
            (
                &["x", "--token", "--lr", "1"],
                &["x", "--token", "--lr", "1"],
            ),
            (
                &["x", "--password=hunter2hunter2"],
                &["x", "--password=<redacted>"],
            ),
            (
                &["env", "WANDB_API_KEY=hunter2hunter2", "LR=1"],
                &["env", "WANDB_API_KEY=<redacted>", "LR=1"],
            ),
            (
                &["x", "s3://user:hunter2hunter2@host/b"],
                &["x", "s3://<redacted>@host/b"],
            ),
            (
                &["x", "https://h/p?a=1&X-Amz-Signature=hunter2hunter2&b=2"],
                &["x", "https://h/p?a=1&X-Amz-Signature=<redacted>&b=2"],
            ),
            (&["x", &hugging], &["x", REDACTED]),
            (&["x", "AKIAABCDEFGHIJKLMNOP"], &["x", REDACTED]),
            (
                &["x", "0123456789abcdef0123456789abcdef01234567"],
                &["x", REDACTED],
            ),
            (
                &["python", "-c", "login(token='hunter2hunter2'); train(lr=1)"],
                &["python", "-c", "login(token='<redacted>'); train(lr=1)"],
            ),
            (
                &["x", "-H", "Authorization: Bearer hunter2hunter2"],
                &["x", "-H", "Authorization: Bearer <redacted>"],
            ),
            (
                &["x", "model.tokenizer=gpt2"],
                &["x", "model.tokenizer=gpt2"],
            ),
        ];
        for (given, wanted) in cases {
            let got = redact_command(given);
            assert_eq!(&got, wanted);
            assert!(!got.concat().contains(secret), "{got:?}");
        }
    }

    proptest! {
        #[test]
        fn a_secret_flag_never_leaks(name in "[a-z]{0,6}[-_](token|password|api-key|secret)", value in "[A-Za-z0-9+/]{12,40}") {
            let joined = redact_command(&[format!("--{name}={value}")]).concat();
            prop_assert!(!joined.contains(&value));
            let apart = redact_command(&[format!("--{name}"), value.clone()]).concat();
            prop_assert!(!apart.contains(&value));
        }

        #[test]
        fn any_text_is_survived(text in "\\PC{0,200}") {
            let _ = redact_command(&[text.as_str(), "x"]);
        }
    }
}
