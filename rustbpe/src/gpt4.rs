//! GPT-4's split pattern as code.
//!
//! Two forms that are tested against the regular expression and so against each other: `starts` finds the pieces of a
//! window of 64 bytes with arithmetic on bit masks, without a branch a byte; `piece_end` goes character by character
//! where masks do not reach (the end of the text, pieces longer than a window, digits and spaces beyond ASCII).

use regex_syntax::hir::{Class, HirKind};
use std::sync::LazyLock;

/// Character classes of the GPT-4 pattern; every character has exactly one.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Other = 0,
    Letter = 1,
    Number = 2,
    Space = 3,
    Newline = 4, // \r and \n; the rest of whitespace is Space
}

/// Class of every character, two levels: 4352 blocks of 256 characters share their distinct contents.
struct Table {
    block: Vec<u16>,
    kinds: Vec<[Kind; 256]>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut flat = vec![Kind::Other; 0x110000];
    for (class, kind) in [(r"\p{L}", Kind::Letter), (r"\p{N}", Kind::Number), (r"\s", Kind::Space)] {
        let hir = regex_syntax::parse(class).expect("a literal class");
        let HirKind::Class(Class::Unicode(ranges)) = hir.kind() else { unreachable!("a Unicode class") };
        for range in ranges.ranges() {
            flat[range.start() as usize..=range.end() as usize].fill(kind);
        }
    }
    (flat['\r' as usize], flat['\n' as usize]) = (Kind::Newline, Kind::Newline);
    let (mut block, mut kinds) = (Vec::new(), Vec::<[Kind; 256]>::new());
    for chunk in flat.chunks_exact(256) {
        let at = kinds.iter().position(|k| k[..] == *chunk).unwrap_or_else(|| {
            kinds.push(chunk.try_into().expect("256 characters"));
            kinds.len() - 1
        });
        block.push(at as u16);
    }
    Table { block, kinds }
});

/// GPT-4's pattern as code: at each position the first alternative that fits, as the regular expression has them.
pub struct HandSplitter {
    digits: usize,
    whole_tail: bool,
}

impl HandSplitter {
    /// `digits`: how many make a group; `whole_tail`: whether whitespace at the end of the text stays in one piece.
    pub fn new(digits: usize, whole_tail: bool) -> Self {
        HandSplitter { digits, whole_tail }
    }

    /// As `Splitter::fill`.
    pub fn fill(&self, text: &[u8], start: usize, ends: &mut [u32]) -> usize {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
            // SAFETY: the processor has what this is compiled for.
            return unsafe { self.fill_avx2(text, start, ends) };
        }
        self.fill_anywhere(text, start, ends)
    }

    /// The same code, compiled for processors whose arithmetic on bit masks is cheaper.
    ///
    /// # Safety
    /// The processor has AVX2, BMI1 and BMI2. (A safe function with features needs Rust 1.86.)
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    unsafe fn fill_avx2(&self, text: &[u8], start: usize, ends: &mut [u32]) -> usize {
        self.fill_anywhere(text, start, ends)
    }

    #[inline(always)]
    fn fill_anywhere(&self, text: &[u8], start: usize, ends: &mut [u32]) -> usize {
        let cursor = Cursor { text, table: &TABLE };
        let (mut n, mut at) = (0, start);
        while at < text.len() && n < ends.len() {
            let inner = match text[at..].first_chunk::<WINDOW>() {
                Some(window) if n + WINDOW <= ends.len() => self.starts(&cursor, at, window) & !1,
                _ => 0,
            };
            if inner == 0 {
                at = self.piece_end(&cursor, at);
                ends[n] = at as u32;
                n += 1;
                continue;
            }
            let mut left = inner;
            while left != 0 {
                ends[n] = at as u32 + left.trailing_zeros();
                n += 1;
                left &= left - 1;
            }
            at = ends[n - 1] as usize;
        }
        n
    }

    /// Where pieces start in the window at `at`, itself the start of a piece: one bit a byte, computed for all bytes at
    /// once. What depends on bytes behind the window is left out; the next window begins at the last start found.
    #[inline(always)]
    fn starts(&self, cursor: &Cursor, at: usize, window: &[u8; WINDOW]) -> u64 {
        let Masks { mut letter, digit, space, newline, mut other, wide, blank, apostrophe } = Masks::of(window);
        let mut known = WINDOW as u32; // bytes whose class is known
        let mut inside = 0; // continuation bytes
        if wide != 0 {
            let mut left = wide;
            while left != 0 {
                let first = left.trailing_zeros();
                let (kind, next) = match first + 4 <= WINDOW as u32 {
                    true => cursor.wide(window[first as usize], at + first as usize),
                    false => (Kind::Space, at + first as usize + 1),
                };
                let char = !0 >> (64 - (next - at) as u32) & (!0 << first);
                match kind {
                    Kind::Letter => letter |= char,
                    Kind::Other => other |= char,
                    // Rare, and counted in characters: left to `piece_end`.
                    _ => {
                        known = first;
                        break;
                    }
                }
                inside |= char & (char << 1);
                left &= !char;
            }
        }
        let blanks = space & !newline;
        // Punctuation takes the newlines right behind it.
        let behind = other << 1 & newline;
        let taken = (behind.wrapping_add(newline) & !newline).wrapping_sub(behind) & newline;
        let (space, newline) = (space & !taken, newline & !taken);
        // A run of spaces is a piece, but its last blank leads the word behind it.
        let mut starts = space & !(space << 1) | blanks & (!space >> 1);
        // In a run with newlines the piece ends at the last of them.
        let mut tails = blanks & (newline << 1);
        while tails != 0 {
            let tail = tails & tails.wrapping_neg();
            let behind = tail.wrapping_add(blanks) & !blanks & !(tail - 1);
            let behind = behind & behind.wrapping_neg();
            if behind == 0 || behind.trailing_zeros() >= known {
                known = known.min(tail.trailing_zeros());
            } else if behind & newline == 0 {
                starts |= tail;
            }
            tails &= tails - 1;
        }
        // Punctuation runs, led by a blank if there is one; a single character leads the letters behind it.
        let punctuation = other & !(other << 1) & !(blank << 1);
        let after_first = (punctuation << 1).wrapping_add(inside) & !inside;
        let led = (after_first | blanks << 1) & letter;
        starts |= punctuation | letter & !(letter << 1) & !led;
        let mut quotes = apostrophe & punctuation & (letter >> 1);
        while quotes != 0 {
            let quote = quotes.trailing_zeros();
            if let (true, Some(end)) = (quote < 60, cursor.contraction(at + quote as usize + 1)) {
                starts |= 1 << (end - at) & letter;
            }
            quotes &= quotes - 1;
        }
        let mut group = digit & !(digit << 1);
        let whole = digit & digit << 1 & if self.digits == 3 { digit << 2 } else { !0 };
        while group != 0 {
            starts |= group;
            group = group << self.digits & whole;
        }
        // A start may depend on the three bytes behind it (a blank on one, an apostrophe on three).
        starts & ((1 << known.saturating_sub(3)) - 1)
    }

    #[inline(always)]
    fn piece_end(&self, c: &Cursor, start: usize) -> usize {
        let (kind, next) = c.kind(start);
        match kind {
            Kind::Letter => c.run(next, Kind::Letter),
            Kind::Number => (1..self.digits).fold(next, |at, _| match c.kind(at) {
                (Kind::Number, after) if at < c.text.len() => after,
                _ => at,
            }),
            Kind::Newline => self.space_end(c, start),
            Kind::Space | Kind::Other => {
                if c.text[start] == b'\'' {
                    if let Some(end) = c.contraction(start + 1) {
                        return end;
                    }
                }
                let (following, after) = c.kind(next);
                if following == Kind::Letter {
                    c.run(after, Kind::Letter)
                } else if kind == Kind::Other
                    || (c.text[start] == b' ' && following == Kind::Other && next < c.text.len())
                {
                    let mut at = c.run(next, Kind::Other);
                    while at < c.text.len() && matches!(c.text[at], b'\r' | b'\n') {
                        at += 1;
                    }
                    at
                } else {
                    self.space_end(c, start)
                }
            }
        }
    }

    /// `\s*[\r\n]|\s+(?!\S)|\s+`: through the last newline of the run; without one, all of it but the last
    /// character (which leads the next word), unless that is all there is.
    #[cold]
    #[inline(never)]
    fn space_end(&self, c: &Cursor, start: usize) -> usize {
        let (mut at, mut last, mut newline) = (start, start, None);
        while at < c.text.len() {
            match c.kind(at) {
                (Kind::Newline, next) => {
                    (last, at) = (at, next);
                    newline = Some(next);
                }
                (Kind::Space, next) => (last, at) = (at, next),
                _ => break,
            }
        }
        match newline {
            _ if self.whole_tail && at == c.text.len() => at,
            Some(end) => end,
            None if at == c.text.len() || last == start => at,
            None => last,
        }
    }
}

/// Bytes classified at once.
const WINDOW: usize = 64;

/// Classes of the bytes of a window, one bit a byte.
struct Masks {
    letter: u64,
    digit: u64,
    space: u64,   // with newlines
    newline: u64, // \r and \n
    other: u64,
    wide: u64,       // not ASCII
    blank: u64,      // exactly a space
    apostrophe: u64, // among `other`
}

impl Masks {
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn of(window: &[u8; WINDOW]) -> Masks {
        use std::arch::x86_64::*;
        let mut masks = [0u64; 7];
        for (i, sixteen) in window.chunks_exact(16).enumerate() {
            // SAFETY: SSE2 is part of x86-64, and the chunk has 16 bytes.
            unsafe {
                let bytes = _mm_loadu_si128(sixteen.as_ptr() as *const __m128i);
                let is = |byte: u8| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8));
                let within = |bytes, first: u8, count: u8| {
                    let shifted = _mm_sub_epi8(bytes, _mm_set1_epi8(first as i8));
                    _mm_cmpeq_epi8(_mm_min_epu8(shifted, _mm_set1_epi8(count as i8 - 1)), shifted)
                };
                let bits = |lanes| (_mm_movemask_epi8(lanes) as u32 as u64) << (16 * i);
                masks[0] |= bits(within(_mm_or_si128(bytes, _mm_set1_epi8(0x20)), b'a', 26));
                masks[1] |= bits(within(bytes, b'0', 10));
                masks[2] |= bits(within(bytes, b'\t', 5));
                masks[3] |= bits(_mm_or_si128(is(b'\n'), is(b'\r')));
                masks[4] |= bits(bytes);
                masks[5] |= bits(is(b' '));
                masks[6] |= bits(is(b'\''));
            }
        }
        Masks::new(masks)
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn of(window: &[u8; WINDOW]) -> Masks {
        Masks::plain(window)
    }

    /// The same byte by byte.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn plain(window: &[u8; WINDOW]) -> Masks {
        let mut masks = [0u64; 7];
        for (i, &byte) in window.iter().enumerate() {
            let tests = [
                byte.is_ascii_alphabetic(),
                byte.is_ascii_digit(),
                (b'\t'..=b'\r').contains(&byte),
                byte == b'\n' || byte == b'\r',
                byte >= 0x80,
                byte == b' ',
                byte == b'\'',
            ];
            for (mask, test) in masks.iter_mut().zip(tests) {
                *mask |= (test as u64) << i;
            }
        }
        Masks::new(masks)
    }

    #[inline(always)]
    fn new([letter, digit, control, newline, wide, blank, apostrophe]: [u64; 7]) -> Masks {
        let space = control | blank;
        Masks { letter, digit, space, newline, other: !(letter | digit | space | wide), wide, blank, apostrophe }
    }
}

struct Cursor<'t> {
    text: &'t [u8],
    table: &'t Table,
}

impl Cursor<'_> {
    /// Class of the character at `at` and where the next one starts; past the end, Other.
    #[inline(always)]
    fn kind(&self, at: usize) -> (Kind, usize) {
        match self.text.get(at) {
            Some(&byte) if byte < 0x80 => (ASCII[byte as usize], at + 1),
            Some(&byte) => self.wide(byte, at),
            None => (Kind::Other, at),
        }
    }

    /// Class of a character beyond ASCII. The text is valid UTF-8: its continuation bytes are there.
    #[inline(always)]
    fn wide(&self, lead: u8, at: usize) -> (Kind, usize) {
        let low = |i: usize| (self.text[at + i] & 0x3F) as usize;
        let (char, next) = match lead {
            0xE0..=0xEF => ((lead as usize & 0x0F) << 12 | low(1) << 6 | low(2), at + 3),
            0xF0.. => ((lead as usize & 0x07) << 18 | low(1) << 12 | low(2) << 6 | low(3), at + 4),
            _ => ((lead as usize & 0x1F) << 6 | low(1), at + 2),
        };
        (self.table.kinds[self.table.block[char >> 8] as usize][char & 0xFF], next)
    }

    #[inline(always)]
    fn run(&self, mut at: usize, kind: Kind) -> usize {
        while at < self.text.len() {
            match self.kind(at) {
                (k, next) if k == kind => at = next,
                _ => break,
            }
        }
        at
    }

    /// `(?i:[sdmt]|ll|ve|re)` after an apostrophe. ſ (U+017F) is an s to the regular expression.
    #[inline]
    fn contraction(&self, at: usize) -> Option<usize> {
        let lower = |i: usize| self.text.get(at + i).map_or(0, |b| b | 0x20);
        match (lower(0), lower(1)) {
            (b's' | b'd' | b'm' | b't', _) => Some(at + 1),
            (b'l', b'l') | (b'v', b'e') | (b'r', b'e') => Some(at + 2),
            _ if self.text[at..].starts_with("ſ".as_bytes()) => Some(at + 2),
            _ => None,
        }
    }
}

/// Classes of ASCII.
static ASCII: [Kind; 128] = {
    let mut kinds = [Kind::Other; 128];
    let mut i = 0;
    while i < 128 {
        kinds[i] = match i as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Kind::Letter,
            b'0'..=b'9' => Kind::Number,
            b'\r' | b'\n' => Kind::Newline,
            b' ' | 0x09..=0x0D => Kind::Space,
            _ => Kind::Other,
        };
        i += 1;
    }
    kinds
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_equal_those_computed_byte_by_byte() {
        for shift in 0..=255u8 {
            let window = std::array::from_fn(|i| (i as u8).wrapping_mul(37).wrapping_add(shift));
            let (fast, plain) = (Masks::of(&window), Masks::plain(&window));
            assert_eq!(
                (fast.letter, fast.digit, fast.space, fast.newline),
                (plain.letter, plain.digit, plain.space, plain.newline)
            );
            assert_eq!(
                (fast.other, fast.wide, fast.blank, fast.apostrophe),
                (plain.other, plain.wide, plain.blank, plain.apostrophe)
            );
        }
    }
}
