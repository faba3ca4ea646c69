//! Text → pieces: the boundaries that merges never cross.
//!
//! GPT-4's pattern and its near relatives are split by hand-written code; every other pattern goes through a regular
//! expression. Both cover the text without gaps: what a pattern leaves unmatched becomes a piece of its own, so that
//! decoding gives the text back.

use crate::gpt4::HandSplitter;
use crate::{Error, Result};

/// nanochat's pattern: GPT-4's, with digits in groups of at most two.
pub const DEFAULT_PATTERN: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*",
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
);

/// Patterns the hand-written splitter knows: (pattern, digits in a group, whether trailing whitespace is one piece).
const HAND_PATTERNS: [(&str, usize, bool); 3] = [
    (DEFAULT_PATTERN, 2, false),
    (
        concat!(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*",
            r"|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        3,
        false,
    ),
    (
        concat!(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+",
            r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
        ),
        3,
        true,
    ),
];

/// Longest text taken at once; positions are u32.
pub const MAX_TEXT: usize = u32::MAX as usize - 64;

pub enum Splitter {
    Hand(HandSplitter),
    Regex(Box<fancy_regex::Regex>),
}

impl Splitter {
    pub fn new(pattern: &str) -> Result<Self> {
        if let Some(&(_, digits, whole_tail)) = HAND_PATTERNS.iter().find(|row| row.0 == pattern) {
            return Ok(Splitter::Hand(HandSplitter::new(digits, whole_tail)));
        }
        Self::regex(pattern)
    }

    /// The same pattern through the regular expression, also where hand-written code exists.
    pub fn regex(pattern: &str) -> Result<Self> {
        let regex = fancy_regex::RegexBuilder::new(pattern).backtrack_limit(usize::MAX).build();
        let regex =
            regex.map_err(|e| Error::Pattern(format!("the split pattern is not a valid regular expression: {e}")))?;
        Ok(Splitter::Regex(Box::new(regex)))
    }

    /// Ends of the pieces that follow `start`, as many as `ends` holds; 0 when the text is used up.
    #[inline]
    pub fn fill(&self, text: &str, start: usize, ends: &mut [u32]) -> Result<usize> {
        match self {
            Splitter::Hand(hand) => Ok(hand.fill(text.as_bytes(), start, ends)),
            Splitter::Regex(regex) => fill_regex(regex, text, start, ends),
        }
    }

    /// All pieces of a text, for tests and small things.
    pub fn pieces<'t>(&self, text: &'t str) -> Result<Vec<&'t str>> {
        let (mut pieces, mut start, mut ends) = (Vec::new(), 0, [0u32; 64]);
        loop {
            let n = self.fill(text, start, &mut ends)?;
            if n == 0 {
                return Ok(pieces);
            }
            for &end in &ends[..n] {
                pieces.push(&text[start..end as usize]);
                start = end as usize;
            }
        }
    }
}

fn fill_regex(regex: &fancy_regex::Regex, text: &str, start: usize, ends: &mut [u32]) -> Result<usize> {
    let (mut n, mut at) = (0, start);
    while n + 2 <= ends.len() && at < text.len() {
        let found = regex.find_from_pos(text, at);
        let found = found.map_err(|e| Error::Pattern(format!("the split pattern cannot be matched: {e}")))?;
        let (from, to) = match found {
            Some(m) if m.end() > at => (m.start(), m.end()),
            // Nothing more, or an empty match: what is left (or the next character) stands alone.
            Some(_) => (at, at + text[at..].chars().next().map_or(1, char::len_utf8)),
            None => (text.len(), text.len()),
        };
        for end in [from, to] {
            if end > at {
                ends[n] = end as u32;
                n += 1;
                at = end;
            }
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn hand_written_code_splits_as_the_regular_expression_does() {
        let (seed, rounds) = (0x5EED, if cfg!(debug_assertions) { 2_000 } else { 20_000 });
        println!("seed {seed}");
        let mut random = Random(seed);
        for (pattern, ..) in HAND_PATTERNS {
            let (hand, regex) = (Splitter::new(pattern).unwrap(), Splitter::regex(pattern).unwrap());
            assert!(matches!(hand, Splitter::Hand(_)));
            for _ in 0..rounds {
                let chars = 1 + random.below(200);
                let text = random.text(chars);
                assert_eq!(hand.pieces(&text).unwrap(), regex.pieces(&text).unwrap(), "{text:?}");
            }
        }
    }

    #[test]
    fn what_a_pattern_leaves_out_is_a_piece_too() {
        let splitter = Splitter::new("[a-z]+").unwrap();
        assert_eq!(splitter.pieces("12ab cd").unwrap(), ["12", "ab", " ", "cd"]);
        assert_eq!(Splitter::new("x*").unwrap().pieces("axxé").unwrap(), ["a", "xx", "é"]);
    }

    #[test]
    fn a_broken_pattern_is_an_error() {
        assert!(matches!(Splitter::new("(["), Err(Error::Pattern(_))));
    }
}
