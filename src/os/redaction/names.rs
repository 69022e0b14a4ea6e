//! Names of flags, variables and headers, and what they say of their values.
//!
//! A name is split into words at `-`, `_`, `.` and changes of case; its last word says what the
//! value is: `db-pass` is a password, `pass-rate` a rate, `pin_memory` a setting, `token_file` a
//! path.

/// How sure a name makes it that its value is a secret.
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

/// Last words that make the value a secret.
const CERTAIN: &[&str] = &[
    "apikey",
    "authorization",
    "bearer",
    "cookie",
    "cookies",
    "cred",
    "credential",
    "credentials",
    "creds",
    "jwt",
    "passcode",
    "passin",
    "passout",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "pw",
    "pwd",
    "secret",
    "secrets",
];

/// Last words whose value is a number that is a secret.
const NUMBERS: &[&str] = &["cvv", "mfa", "otp", "pin", "totp"];

/// Last words that have other meanings, too.
const LIKELY: &[&str] = &["pass", "token"];

/// Last words that say little alone: a value that could be a secret is hidden.
const POSSIBLE: &[&str] = &[
    "auth",
    "dsn",
    "key",
    "keys",
    "login",
    "nonce",
    "pat",
    "salt",
    "session",
    "sessionid",
    "sid",
    "sig",
    "signature",
];

/// Words that, anywhere in a name, leave a doubt: `password_eu_west`.
const DOUBTFUL_ANYWHERE: &[&str] = &[
    "apikey",
    "credential",
    "credentials",
    "creds",
    "passphrase",
    "passwd",
    "password",
    "secret",
    "secrets",
];

/// Ends of words that are written together: `authtoken`. Not `tokens` or `tokenizer`, which are
/// about text.
const ENDINGS: &[&str] = &[
    "accesskey",
    "accountkey",
    "apikey",
    "credentials",
    "masterkey",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "pwd",
    "secret",
    "secretkey",
    "sharedkey",
    "signingkey",
    "token",
];

/// What makes a word in `pass` a password; others are `bypass`, `lowpass`, `compass`.
const BEFORE_PASS: &[&str] = &[
    "admin", "auth", "basic", "db", "ftp", "http", "key", "ldap", "login", "mail", "my", "mysql",
    "pg", "proxy", "redis", "root", "smtp", "sql", "ssh", "store", "user",
];

/// What makes a `key` a secret; others are of tables and dictionaries: `--img-key`, `--sort-key`.
const BEFORE_KEY: &[&str] = &[
    "access",
    "account",
    "admin",
    "aes",
    "anthropic",
    "api",
    "app",
    "application",
    "auth",
    "aws",
    "azure",
    "bot",
    "client",
    "comet",
    "consumer",
    "datadog",
    "decryption",
    "deploy",
    "encryption",
    "gcp",
    "google",
    "gpg",
    "hf",
    "hmac",
    "huggingface",
    "licence",
    "license",
    "master",
    "mlflow",
    "neptune",
    "openai",
    "pgp",
    "private",
    "rsa",
    "secret",
    "security",
    "sendgrid",
    "service",
    "session",
    "shared",
    "signing",
    "ssh",
    "ssl",
    "storage",
    "stripe",
    "subscription",
    "symmetric",
    "team",
    "tls",
    "twilio",
    "wandb",
    "webhook",
];

/// Keys that are kept in files.
const IN_FILES: &[&str] = &[
    "client",
    "deploy",
    "encryption",
    "gpg",
    "pgp",
    "private",
    "rsa",
    "server",
    "service",
    "ssh",
    "ssl",
    "tls",
];

/// What makes a `token` a piece of text, or a number of them.
const BEFORE_TEXT_TOKEN: &[&str] = &[
    "additional",
    "audio",
    "begin",
    "boi",
    "bos",
    "by",
    "class",
    "cls",
    "decoder",
    "dist",
    "end",
    "eoi",
    "eos",
    "eot",
    "extra",
    "fim",
    "first",
    "forced",
    "im",
    "image",
    "input",
    "lang",
    "language",
    "last",
    "mask",
    "max",
    "min",
    "n",
    "new",
    "next",
    "num",
    "output",
    "pad",
    "padding",
    "per",
    "prefix",
    "prompt",
    "register",
    "sep",
    "sos",
    "sot",
    "source",
    "special",
    "start",
    "stop",
    "suffix",
    "target",
    "think",
    "tool",
    "unk",
    "video",
    "vision",
];

/// What makes a `pass` one over something.
const BEFORE_COUNTED_PASS: &[&str] = &[
    "all", "allow", "backward", "band", "by", "compiler", "first", "forward", "fusion", "high",
    "last", "low", "max", "multi", "n", "num", "one", "opt", "per", "second", "single", "two",
];

/// What makes a `pin` a place to run or to stay.
const BEFORE_PLACED_PIN: &[&str] = &[
    "core", "cpu", "gpu", "mem", "memory", "node", "numa", "thread",
];

/// First words of switches, which have no value: `--use-auth-token`, `--ask-pass`.
const SWITCHES: &[&str] = &[
    "allow", "ask", "disable", "enable", "has", "is", "no", "prompt", "require", "skip", "use",
    "with", "without",
];

/// Last words that are passed over: `TOKEN_PROD`, `secret_value`.
const NEUTRAL_ENDS: &[&str] = &[
    "b64",
    "base64",
    "data",
    "default",
    "dev",
    "env",
    "header",
    "hex",
    "main",
    "new",
    "old",
    "pem",
    "plain",
    "plaintext",
    "primary",
    "prod",
    "production",
    "raw",
    "read",
    "ro",
    "rw",
    "secondary",
    "staging",
    "str",
    "string",
    "test",
    "text",
    "val",
    "value",
    "write",
];

/// Words of a name whose value may be a digest: forty hexadecimal digits, as a commit has and an
/// API key, too.
const DIGESTS: &[&str] = &[
    "artifact",
    "base",
    "blob",
    "branch",
    "build",
    "cache",
    "checkpoint",
    "checksum",
    "ckpt",
    "commit",
    "config",
    "data",
    "dataset",
    "digest",
    "dir",
    "etag",
    "experiment",
    "file",
    "fingerprint",
    "folder",
    "from",
    "git",
    "hash",
    "head",
    "id",
    "image",
    "job",
    "md5",
    "model",
    "name",
    "object",
    "parent",
    "path",
    "ref",
    "resume",
    "rev",
    "revision",
    "run",
    "sha",
    "sha1",
    "sha256",
    "snapshot",
    "source",
    "tag",
    "tree",
    "uuid",
    "version",
    "weights",
];

/// What a name says of its value.
pub(super) fn suspicion(name: &str) -> Suspicion {
    let words = words(name);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    while let [_, .., last] = words[..]
        && (NEUTRAL_ENDS.contains(&last) || last.len() == 1 || is_number(last))
    {
        words.pop();
    }
    let Some((last, before)) = words.split_last() else {
        return Suspicion::None;
    };
    let last = last.trim_end_matches(|c: char| c.is_ascii_digit());
    let before_is = |list: &[&str]| before.last().is_some_and(|word| list.contains(word));
    let is_private_key = ["key", "keys"].contains(&last) && before_is(BEFORE_KEY);
    match last {
        "token" if before_is(BEFORE_TEXT_TOKEN) => Suspicion::None,
        "pass" if before_is(BEFORE_COUNTED_PASS) => Suspicion::None,
        "pin" if before_is(BEFORE_PLACED_PIN) => Suspicion::None,
        // `cwd` is no password, and neither is the shell's old one.
        "oldpwd" => Suspicion::None,
        last if CERTAIN.contains(&last) || is_private_key => Suspicion::Certain,
        last if NUMBERS.contains(&last) => Suspicion::Number,
        last if LIKELY.contains(&last) => Suspicion::LikelyWord,
        last if ENDINGS.iter().any(|ending| last.ends_with(ending)) => Suspicion::Certain,
        last if last
            .strip_suffix("pass")
            .is_some_and(|before| BEFORE_PASS.contains(&before)) =>
        {
            Suspicion::Certain
        }
        last if POSSIBLE.contains(&last) => Suspicion::Possible,
        _ if words.iter().any(|word| DOUBTFUL_ANYWHERE.contains(word)) => Suspicion::Possible,
        _ => Suspicion::None,
    }
}

/// Whether a flag of this name has no value.
pub(super) fn is_switch(name: &str) -> bool {
    words(name)
        .first()
        .is_some_and(|word| SWITCHES.contains(&word.as_str()))
}

/// Whether the value is likely a digest.
pub(super) fn is_of_digest(name: &str) -> bool {
    words(name)
        .iter()
        .any(|word| DIGESTS.contains(&word.as_str()))
}

/// Whether the value may be the file of a key: `--ssl-key /etc/host.key`.
pub(super) fn is_of_key_file(name: &str) -> bool {
    match &words(name)[..] {
        [.., kind, last] => last.ends_with("key") && IN_FILES.contains(&kind.as_str()),
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
    // `-Dname=value`, as Java's and CMake's definitions are.
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
