//! Byte-level BPE: train a vocabulary, encode text with it. Nothing here knows of Python but `py`.

pub mod encode;
pub mod split;
pub mod train;
pub mod vocab;
pub mod words;

pub mod arrow;
mod gpt4;
#[cfg(feature = "python")]
mod py;
#[cfg(test)]
mod testing;

use std::fmt;

/// What can be wrong with what a caller hands in; each carries the sentence to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    Pattern(String),
    Vocabulary(String),
    Input(String),
    /// The caller's progress callback asked to stop.
    Interrupted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Pattern(s) | Error::Vocabulary(s) | Error::Input(s) => f.write_str(s),
            Error::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}
pub type Result<T> = std::result::Result<T, Error>;
