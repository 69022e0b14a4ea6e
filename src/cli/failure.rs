//! An error for the user: the cause, what to do next, and an exit status.

use std::fmt;

/// What ends torchspy early.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What went wrong, outermost context first.
    pub(crate) error: anyhow::Error,
    pub(crate) hint: Option<String>,
    pub(crate) status: u8,
}

impl Failure {
    /// An error at work: status 1.
    pub(crate) fn new(error: impl Into<anyhow::Error>) -> Self {
        Self {
            error: error.into(),
            hint: None,
            status: 1,
        }
    }

    /// An error with this text.
    pub(crate) fn message(text: impl fmt::Display) -> Self {
        Self::new(anyhow::anyhow!("{text}"))
    }

    /// Invalid arguments: status 2, and always a hint.
    pub(crate) fn usage(text: impl fmt::Display, hint: impl Into<String>) -> Self {
        Self::message(text).hint(hint).status(2)
    }

    /// Adds what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds what to do about it, where that is known.
    pub(crate) fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    /// Sets the exit status.
    pub(crate) fn status(mut self, status: u8) -> Self {
        self.status = status;
        self
    }

    /// The error and its causes in one line, each once: many errors already contain their cause.
    pub(crate) fn text(&self) -> String {
        let mut text = self.error.to_string();
        for cause in self.error.chain().skip(1).map(ToString::to_string) {
            if !text.ends_with(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        text
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(error)
    }
}
