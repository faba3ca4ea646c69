//! What the tests share: random text, and the definition of BPE written down without any thought of speed.

/// A small generator of its own (xorshift), so that the crate needs no dependency for its tests.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    /// Text in which the pattern's alternatives meet: runs from small alphabets, and any character at all.
    pub fn text(&mut self, chars: usize) -> String {
        const ALPHABETS: [&str; 9] = [
            "abcXYZ",
            "0123456789",
            " ",
            " \t\n\r",
            "\r\n",
            "'sdmtlvreSDMTLVREſ",
            ".,!?\"'-’“",
            "한국어ëß漢字",
            "\u{a0}\u{3000}\u{85}²½٣Ⅷ\u{301}🙂",
        ];
        let mut text = String::new();
        while text.chars().count() < chars {
            let alphabet: Vec<char> = ALPHABETS[self.below(ALPHABETS.len())].chars().collect();
            let longest = if self.below(20) == 0 { 90 } else { 4 };
            let run = 1 + self.below(longest);
            for _ in 0..run {
                match self.below(50) {
                    0 => text.extend(char::from_u32(self.below(0x110000) as u32)),
                    _ => text.push(alphabet[self.below(alphabet.len())]),
                }
            }
        }
        text
    }
}

/// The ids of a word by definition: as long as any two neighbours merge, those that were learned first, leftmost.
pub fn naive_merge(word: &[u8], merges: &[(u32, u32)]) -> Vec<u32> {
    let mut ids: Vec<u32> = word.iter().map(|&byte| byte as u32).collect();
    for (i, &(left, right)) in merges.iter().enumerate() {
        let mut at = 0;
        while at + 1 < ids.len() {
            if (ids[at], ids[at + 1]) == (left, right) {
                ids.splice(at..at + 2, [256 + i as u32]);
            }
            at += 1;
        }
    }
    ids
}

/// The merges of some words by definition: count all pairs, merge the most frequent (of equals the smallest), repeat.
pub fn naive_train(words: &[&str], merges: usize) -> Vec<(u32, u32)> {
    let mut words: Vec<Vec<u32>> = words.iter().map(|word| word.bytes().map(u32::from).collect()).collect();
    let mut learned = Vec::new();
    while learned.len() < merges {
        let mut counts = std::collections::BTreeMap::new();
        for pair in words.iter().flat_map(|word| word.windows(2)) {
            *counts.entry((pair[0], pair[1])).or_insert(0) += 1;
        }
        let Some((&best, _)) = counts.iter().min_by_key(|(&pair, &count)| (std::cmp::Reverse(count), pair)) else {
            break;
        };
        for word in &mut words {
            let mut at = 0;
            while at + 1 < word.len() {
                if (word[at], word[at + 1]) == best {
                    word.splice(at..at + 2, [256 + learned.len() as u32]);
                }
                at += 1;
            }
        }
        learned.push(best);
    }
    learned
}
