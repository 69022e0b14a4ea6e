//! Names of flags, variables and headers, and whether their values are secrets. The words are in
//! `names.toml`.

use serde::Deserialize;
use std::sync::LazyLock;

/// How strongly a name suggests that its value is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Suspicion {
    /// The value is shown, unless its own shape forbids it.
    None,
    /// The value is hidden where it could be a secret.
    Possible,
    /// The value is hidden, unless it is a number that no such secret has: a `token` that is an
    /// int, `pass=2`.
    LikelyWord,
    /// As above; also a short number is a secret: `pin=1234`.
    Number,
    /// The value is hidden.
    Certain,
}

/// The word lists of `names.toml`, which explains each.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Words {
    certain: Vec<String>,
    numbers: Vec<String>,
    likely: Vec<String>,
    possible: Vec<String>,
    doubtful_anywhere: Vec<String>,
    endings: Vec<String>,
    before_pass: Vec<String>,
    before_key: Vec<String>,
    before_key_in_file: Vec<String>,
    before_text_token: Vec<String>,
    before_counted_pass: Vec<String>,
    before_placed_pin: Vec<String>,
    switches: Vec<String>,
    neutral_ends: Vec<String>,
    digests: Vec<String>,
}

static WORDS: LazyLock<Words> = LazyLock::new(|| {
    toml::from_str(include_str!("names.toml")).expect("names.toml is compiled in, and tested")
});

fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|each| each == word)
}

/// How strongly `name` suggests that its value is a secret.
pub(super) fn suspicion(name: &str) -> Suspicion {
    let words = words(name);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    while let [_, .., last] = words[..]
        && (has(&WORDS.neutral_ends, last) || last.len() == 1 || is_number(last))
    {
        words.pop();
    }
    let Some((last, before)) = words.split_last() else {
        return Suspicion::None;
    };
    let last = last.trim_end_matches(|c: char| c.is_ascii_digit());
    let before_is = |list: &[String]| before.last().is_some_and(|word| has(list, word));
    let is_private_key = ["key", "keys"].contains(&last) && before_is(&WORDS.before_key);
    let ends_in_secret = || {
        let mut endings = WORDS.endings.iter();
        endings.any(|ending| last.ends_with(ending.as_str()))
            || last
                .strip_suffix("pass")
                .is_some_and(|before| has(&WORDS.before_pass, before))
    };
    match last {
        "token" if before_is(&WORDS.before_text_token) => Suspicion::None,
        "pass" if before_is(&WORDS.before_counted_pass) => Suspicion::None,
        "pin" if before_is(&WORDS.before_placed_pin) => Suspicion::None,
        // `cwd` is not a password, nor is the shell's previous one.
        "oldpwd" => Suspicion::None,
        last if has(&WORDS.certain, last) || is_private_key => Suspicion::Certain,
        last if has(&WORDS.numbers, last) => Suspicion::Number,
        last if has(&WORDS.likely, last) => Suspicion::LikelyWord,
        _ if ends_in_secret() => Suspicion::Certain,
        last if has(&WORDS.possible, last) => Suspicion::Possible,
        _ if words.iter().any(|word| has(&WORDS.doubtful_anywhere, word)) => Suspicion::Possible,
        _ => Suspicion::None,
    }
}

/// Whether a flag of this name has no value.
pub(super) fn is_switch(name: &str) -> bool {
    words(name)
        .first()
        .is_some_and(|word| has(&WORDS.switches, word))
}

/// Whether the value is likely a digest.
pub(super) fn is_of_digest(name: &str) -> bool {
    words(name).iter().any(|word| has(&WORDS.digests, word))
}

/// Whether the value may be the file of a key: `--ssl-key /etc/host.key`.
pub(super) fn is_of_key_file(name: &str) -> bool {
    match &words(name)[..] {
        [.., kind, last] => last.ends_with("key") && has(&WORDS.before_key_in_file, kind),
        _ => false,
    }
}

/// Whether it can be a name at all.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.+~/:@".contains(&byte))
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

/// The words of a name in kebab-case, snake_case, dotted or camelCase, in lower case.
/// `AWSSecretKey` has three.
fn words(name: &str) -> Vec<String> {
    // `-Dname=value`, definitions of Java and CMake.
    let name = name.strip_prefix("-D").unwrap_or(name);
    let characters: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (at, &character) in characters.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| characters[at]);
        let after = characters.get(at + 1);
        let starts_word = character.is_ascii_uppercase()
            && before.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || before.is_ascii_uppercase() && after.is_some_and(char::is_ascii_lowercase)
            });
        if starts_word || !character.is_ascii_alphanumeric() {
            words.push(String::new());
        }
        if character.is_ascii_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.push(character.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets() {
        for name in [
            "--api-key",
            "--apiKey",
            "HF_TOKEN",
            "WANDB_API_KEY",
            "--password",
            "--db.passwd",
            "AWS_SECRET_ACCESS_KEY",
            "AWSSecretAccessKey",
            "--authtoken",
            "client_secret",
            "--pass",
            "--db-pass",
            "DB_PASS",
            "--creds",
            "--pin",
            "--otp",
            "--jwt",
            "--opt.auth.pw",
            "-pw",
            "X-Api-Key",
            "AccountKey",
            "SharedAccessKey",
            "dbPass",
            "pgpass",
            "-Dpassword",
            "PASSWORD2",
            "TOKEN_PROD",
            "secret_value",
            "-eHF_TOKEN",
            "MYSQL_PWD",
            "Cookie",
        ] {
            assert!(suspicion(name) > Suspicion::Possible, "{name}");
        }
    }

    #[test]
    fn names_of_other_things() {
        for name in [
            "--tokenizer",
            "--max-tokens",
            "--lr",
            "--keyboard",
            "--epochs",
            "--compat",
            "monkey",
            "--path",
            "--pin-memory",
            "trainer.pin_memory",
            "--pass-rate",
            "--passes",
            "--author",
            "--pad-token",
            "eos_token_id",
            "--token-file",
            "--num-pass",
            "--bypass",
            "--api-url",
            "--secretary",
            "--cpu-pin",
            "SharedAccessKeyName",
            "--max-new-token",
            "--key-dim",
            "--compass",
        ] {
            assert_eq!(suspicion(name), Suspicion::None, "{name}");
        }
        for name in [
            "--img-key",
            "--sort-key",
            "--auth",
            "--session",
            "password_eu_west",
        ] {
            assert_eq!(suspicion(name), Suspicion::Possible, "{name}");
        }
    }
}
