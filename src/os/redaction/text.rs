//! Secrets within text: tokens of known shapes, URLs, headers, assignments.

use super::REDACTED;
use super::names::{Suspicion, suspicion};
use super::values::is_secret;
use regex::{Captures, Regex};
use std::sync::LazyLock;

/// Tokens with a known shape, as documented by their issuers, anywhere in a text.
const TOKEN_SHAPES: &[&str] = &[
    // PEM and PGP blocks; a cut one goes to its end.
    r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)",
    // JSON web tokens, complete or cut.
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?",
    r"\beyJ(?:hbGci|0eXAi)[A-Za-z0-9_-]{8,}",
    // AWS access key ids (IAM user guide, "unique identifiers"), and Bedrock's keys.
    r"\b(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[0-9A-Z]{16}\b",
    r"\bABSK[A-Za-z0-9+/]{40,}={0,2}",
    // Hugging Face.
    r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}",
    // Weights & Biases.
    r"\bwandb_v\d+_[A-Za-z0-9_]{16,}",
    // GitHub and GitLab.
    r"\bgh[opsur]_[A-Za-z0-9]{20,}",
    r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bgl(?:pat|ptt|dt|rt|cbt|soat|ft|imt|agent|oas)-[A-Za-z0-9_-]{16,}",
    r"\bGR1348941[A-Za-z0-9_-]{20}",
    // OpenAI, Anthropic and others with the same prefix; Stripe.
    r"\bsk-[A-Za-z0-9_-]{16,}",
    r"\b(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{10,}",
    r"\bwhsec_[A-Za-z0-9+/]{16,}",
    // Other services of models and data: Groq, xAI, Perplexity, NVIDIA, Replicate, Fireworks,
    // Together, LangSmith, Pinecone.
    r"\b(?:gsk|r8|fw|tgp_v1|lsv2_(?:pt|sk)|pcsk)_[A-Za-z0-9_-]{16,}",
    r"\b(?:xai|pplx|nvapi)-[A-Za-z0-9_-]{16,}",
    // Slack, and its hooks and Discord's.
    r"\bxox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}",
    r"\bxapp-\d-[A-Za-z0-9-]{10,}",
    r"\bhooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_+-]{8,}",
    r"\bdiscord(?:app)?\.com/api/webhooks/\d+/[A-Za-z0-9_-]{8,}",
    // Google: API keys, OAuth tokens and client secrets.
    r"\bAIza[0-9A-Za-z_-]{30,}",
    r"\bya29\.[0-9A-Za-z_-]{16,}",
    r"\bGOCSPX-[A-Za-z0-9_-]{20,}",
    r"\b1//0[A-Za-z0-9_-]{20,}",
    // Registries of packages and images: npm, PyPI, RubyGems, crates.io, Docker, Artifactory.
    r"\bnpm_[A-Za-z0-9]{30,}",
    r"\bpypi-[A-Za-z0-9_-]{16,}",
    r"\brubygems_[a-f0-9]{40,}",
    r"\bcio[A-Za-z0-9]{32}\b",
    r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{16,}",
    r"\bAKCp[A-Za-z0-9]{60,}",
    // Clouds and their tools: DigitalOcean, Databricks, Vault, Terraform, Heroku, Cloudflare,
    // Doppler, Pulumi, Azure, Alibaba.
    r"\bdo[opr]_v1_[a-f0-9]{32,}",
    r"\bdapi[a-f0-9]{32}",
    r"\bhv[sbr]\.[A-Za-z0-9_-]{20,}",
    r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}",
    r"\bHRKU-[A-Za-z0-9_-]{20,}",
    r"\bdp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{20,}",
    r"\bpul-[a-f0-9]{40}\b",
    r"\b[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}",
    r"\bLTAI[A-Za-z0-9]{12,}",
    // Tools for writing, monitoring and delivery: Notion, Atlassian, Linear, Figma, Grafana, New
    // Relic, Sentry, Postman, SendGrid, Mailgun, Twilio, Telegram, Shopify, Square, Airtable,
    // Dropbox, 1Password, age.
    r"\b(?:ntn|secret)_[A-Za-z0-9]{40,}",
    r"\bAT(?:ATT|CTT|BB)3x[A-Za-z0-9_=-]{16,}",
    r"\blin_(?:api|oauth)_[A-Za-z0-9]{32,}",
    r"\bfig[dou]h?_[A-Za-z0-9_-]{20,}",
    r"\bgl(?:sa|c)_[A-Za-z0-9+/_=]{20,}",
    r"\bNR(?:AK|AA|JS|II)-[A-Za-z0-9-]{16,}",
    r"\bsntr(?:ys|yu)_[A-Za-z0-9+/=_]{20,}",
    r"\bPMAK-[a-f0-9]{24}-[a-f0-9]{34}",
    r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"\bkey-[a-f0-9]{32}\b",
    r"\bSK[a-f0-9]{32}\b",
    r"\b\d{8,10}:AA[A-Za-z0-9_-]{32,}",
    r"\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    r"\b(?:sq0(?:atp|csp|idp)-|EAAA[A-Za-z0-9_-]{2})[A-Za-z0-9_-]{20,}",
    r"\bpat[A-Za-z0-9]{14}\.[a-f0-9]{64}",
    r"\bsl\.[A-Za-z0-9_-]{60,}",
    r"\bops_eyJ[A-Za-z0-9+/=]{60,}",
    r"\bAGE-SECRET-KEY-1[A-Z0-9]{50,}",
];

/// Secrets that the text before them marks; the first group is kept.
const SECRETS_IN_TEXT: &[&str] = &[
    r"(?i)(\bbearer\s+)[^\s'\x22,;)}<]+",
    // Base64 of a user and a password.
    r"(?i:(\b(?:basic|digest|negotiate)\s+))[A-Za-z0-9+/_-]*[A-Z0-9][A-Za-z0-9+/_-]{6,}={0,2}",
    // A header in a string, or to the end of its line.
    r"(?i)(\b(?:proxy-)?(?:authorization|(?:set-)?cookie|x-[a-z-]*(?:key|token|auth|secret)|private-token|api-key)\s*:\s+(?:(?:basic|bearer|token|apikey|digest)\s+)?)[^'\x22\r\n<]+",
    // A key of forty hexadecimal digits looks like a commit, so its service must be named before
    // it.
    r"(?i:(wandb.{0,60}?\b))[0-9a-f]{40}\b",
    // openssl's form of a password.
    r"(\b-?pass(?:in|out)?[ =:]pass:|^pass:)[^\s'\x22]+",
];

/// A name that is assigned to in code, JSON, YAML, a query or a connection string.
const ASSIGNMENT: &str = r#"(?x)
    (?P<name> [A-Za-z_+~-][A-Za-z0-9_.+~-]{0,127} )
    (?P<quote> \\*["']? ) \]? (?P<sign> \s* (?: => | := | ==? | : ) \s* )"#;

/// The assigned value.
const VALUE: &str = r#"(?x)
    ^(?: "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | \\+["'][^"'\\]*(?:\\+["'])? | ["']?[^\s"'`,;&)}\]]+ )"#;

/// A connection string: pairs between semicolons, whose names and values may have spaces.
const PAIRS: &str = r"^\s*[\w .-]+=[^;=]*=*(?:;\s*[\w .-]+=[^;]*)+;?\s*$";

static SHAPES: LazyLock<Vec<Regex>> = LazyLock::new(|| compile(TOKEN_SHAPES));
static IN_TEXT: LazyLock<Vec<Regex>> = LazyLock::new(|| compile(SECRETS_IN_TEXT));
static ASSIGNMENTS: LazyLock<Vec<Regex>> = LazyLock::new(|| compile(&[ASSIGNMENT]));
static VALUES: LazyLock<Vec<Regex>> = LazyLock::new(|| compile(&[VALUE]));
static CONNECTIONS: LazyLock<Vec<Regex>> = LazyLock::new(|| compile(&[PAIRS]));

/// A test checks that every pattern of the tables compiles.
fn compile(patterns: &[&str]) -> Vec<Regex> {
    patterns.iter().filter_map(|p| Regex::new(p).ok()).collect()
}

/// Text without recognizable secrets.
pub(super) fn redact(text: &str) -> String {
    if CONNECTIONS.iter().any(|pattern| pattern.is_match(text)) {
        let pairs: Vec<String> = text.split(';').map(redact_pair).collect();
        return pairs.join(";");
    }
    let mut text = text.to_owned();
    for pattern in SHAPES.iter() {
        text = pattern.replace_all(&text, REDACTED).into_owned();
    }
    text = redact_urls(&text);
    for pattern in IN_TEXT.iter() {
        let replaced = pattern.replace_all(&text, |found: &Captures<'_>| {
            format!("{}{REDACTED}", &found[1])
        });
        text = replaced.into_owned();
    }
    for pattern in ASSIGNMENTS.iter() {
        text = redact_assignments(pattern, &text);
    }
    text
}

fn redact_pair(pair: &str) -> String {
    match pair.split_once('=') {
        Some((name, value)) if !value.is_empty() && is_secret(name.trim(), value.trim()) => {
            format!("{name}={REDACTED}")
        }
        _ => redact(pair),
    }
}

fn redact_assignments(pattern: &Regex, text: &str) -> String {
    let mut redacted = String::new();
    let mut done = 0;
    for found in pattern.captures_iter(text) {
        let part = |name: &str| found.name(name).map_or("", |part| part.as_str());
        let start = found.get(0).map_or(done, |whole| whole.end());
        // The value is checked last, so that a line with a thousand assignments is read once.
        if start < done || suspicion(part("name")) == Suspicion::None {
            continue;
        }
        let values = VALUES
            .iter()
            .find_map(|pattern| pattern.find(&text[start..]));
        let value = values.map_or("", |value| value.as_str());
        let shown = value.trim_start_matches('\\');
        // `host:port` and `module:function` are not assignments.
        let assigns = !part("sign").contains(':')
            || part("sign").contains(":=")
            || part("sign").ends_with(char::is_whitespace)
            || !part("quote").is_empty()
            || shown.starts_with(['"', '\'']);
        let inner = shown.trim_matches(['"', '\'', '\\']);
        if assigns && !inner.starts_with(REDACTED) && is_secret(part("name"), inner) {
            let inside = value.trim_start_matches(['"', '\'', '\\']);
            let quotes = &value[..value.len() - inside.len()];
            redacted.push_str(&text[done..start]);
            redacted.push_str(quotes);
            redacted.push_str(REDACTED);
            if inside.ends_with(['"', '\'']) {
                redacted.push_str(quotes);
            }
            done = start + value.len();
        }
    }
    redacted.push_str(&text[done..]);
    redacted
}

/// Schemes of servers with a login: a colon after the user's name never precedes a port.
const LOGIN_SCHEMES: &[&str] = &[
    "amqp",
    "amqps",
    "clickhouse",
    "cockroachdb",
    "ftp",
    "ftps",
    "imap",
    "imaps",
    "jdbc",
    "ldap",
    "ldaps",
    "mariadb",
    "mongodb",
    "mssql",
    "mysql",
    "nats",
    "oracle",
    "postgres",
    "postgresql",
    "redis",
    "rediss",
    "sftp",
    "smtp",
    "smtps",
    "snowflake",
    "socks5",
    "ssh",
];

/// Removes the user part of each URL in any form: a password may contain unescaped `/` and `@`.
fn redact_urls(text: &str) -> String {
    let mut redacted = String::new();
    let mut done = 0;
    let is_end = |c: char| c.is_whitespace() || "\"'`<>\\".contains(c);
    // The end of the text without white space, and its last `@`.
    let (mut end, mut last_at) = (0, None);
    for (at, _) in text.match_indices("://") {
        let start = at + 3;
        if at < done {
            continue;
        }
        if start >= end {
            end = text[start..]
                .find(is_end)
                .map_or(text.len(), |length| start + length);
            last_at = text[start..end].rfind('@').map(|at| start + at);
        }
        if last_at.is_none_or(|last| last < start) {
            continue;
        }
        let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
        let scheme = text[done..at].trim_end_matches(is_of_scheme).len() + done;
        if let Some(length) = user_end(&text[scheme..at], &text[start..end]) {
            redacted.push_str(&text[done..start]);
            redacted.push_str(REDACTED);
            done = start + length;
        }
    }
    redacted.push_str(&text[done..]);
    redacted
}

/// Position of the `@` after the user part of `url`, which begins after `://`.
fn user_end(scheme: &str, url: &str) -> Option<usize> {
    let last_at = url.rfind('@')?;
    let authority = url.find(['/', '?', '#']).unwrap_or(url.len());
    let colon = url[..authority].find(':');
    let user = &url[..colon.unwrap_or(authority).min(last_at)];
    let scheme = scheme.split('+').next().unwrap_or(scheme);
    let logs_in = LOGIN_SCHEMES
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known));
    if let Some(colon) = colon {
        let behind = &url[colon + 1..];
        let digits = behind.len()
            - behind
                .trim_start_matches(|c: char| c.is_ascii_digit())
                .len();
        let is_port = (1..=5).contains(&digits) && behind[digits..].starts_with(['/', '?', '#']);
        let is_host = user.contains('.') || user.starts_with('[') || is_port;
        if logs_in || !is_host || url[..authority].contains('@') {
            return Some(last_at);
        }
        return None;
    }
    let at = url[..authority].rfind('@')?;
    let is_user = user == "git"
        || !scheme.starts_with("http")
            && url[..at].len() <= 16
            && url[..at].bytes().all(|byte| byte.is_ascii_lowercase());
    (!is_user).then_some(at)
}

/// A header as an argument: `X-Api-Key: abc`. The scheme of an authorization is kept.
pub(super) fn redact_header(argument: &str) -> Option<String> {
    const SCHEMES: [&str; 6] = [
        "basic ",
        "bearer ",
        "token ",
        "apikey ",
        "digest ",
        "negotiate ",
    ];
    let (name, value) = argument.split_once(':')?;
    let is_name = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    // The value may follow curl's `-H` directly.
    let own = name.strip_prefix("-H").unwrap_or(name);
    let trimmed = value.trim_start();
    if !is_name || trimmed.is_empty() || suspicion(own) == Suspicion::None {
        return None;
    }
    let is_set_apart = trimmed.len() < value.len() || name.contains('-');
    if !is_set_apart || !is_secret(own, trimmed) {
        return None;
    }
    let scheme = SCHEMES.iter().find(|scheme| {
        trimmed
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    let kept = argument.len() - trimmed.len() + scheme.map_or(0, |scheme| scheme.len());
    Some(format!("{}{REDACTED}", &argument[..kept]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        assert_eq!(SHAPES.len(), TOKEN_SHAPES.len());
        assert_eq!(IN_TEXT.len(), SECRETS_IN_TEXT.len());
        assert_eq!(
            (ASSIGNMENTS.len(), VALUES.len(), CONNECTIONS.len()),
            (1, 1, 1)
        );
    }
}
