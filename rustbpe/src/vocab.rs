//! A vocabulary: the bytes of its tokens, which pairs merge, and the merging of one word.

use crate::{Error, Result};
use std::collections::HashSet;

/// A slot of the pair table has 21 bits for an id.
pub const MAX_VOCAB: usize = 1 << 21;
/// Bytes of all tokens together. Text makes tokens of a few bytes; merges made up can double them 60 times over.
const MAX_BYTES: usize = 1 << 28;
/// No merge: 22 bits, larger than every id.
const NONE: u32 = (1 << 22) - 1;
const NO_MERGE: i32 = (NONE << 6) as i32;
/// Bytes by which the encoding of a long word grows at least, and where it repeats itself.
const BLOCK: usize = 40;
const REPETITIVE_BLOCK: usize = 512;

/// The merge of two ids, by open addressing: a slot holds left, right and result in 21, 21 and 22 bits. A free slot is
/// all ones, so that its result reads NONE. Most pairs asked for do not merge; `filter`, with eight bits a slot and small
/// enough for the cache, turns nearly all of them away, so the table can be dense.
struct PairTable {
    slots: Vec<u64>,
    filter: Vec<u64>,
    shift: u32, // of a hash to a slot
}

impl PairTable {
    fn new(pairs: usize) -> Self {
        let len = (pairs * 5 / 4).next_power_of_two().max(64);
        PairTable { slots: vec![u64::MAX; len], filter: vec![0; len / 8], shift: 64 - len.trailing_zeros() }
    }

    /// A pair, and its hash.
    #[inline(always)]
    fn key(left: u32, right: u32) -> (u64, u64) {
        let pair = (left as u64) << 21 | right as u64;
        (pair, pair.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// The bit of a hash in the filter: its word, and the bit in that.
    #[inline(always)]
    fn filter_bit(&self, hash: u64) -> (usize, u64) {
        let bit = hash >> (self.shift - 3);
        (bit as usize / 64, 1 << (bit % 64))
    }

    /// The slot of a pair, or the free one where it belongs.
    #[inline(always)]
    fn find(&self, (pair, hash): (u64, u64)) -> usize {
        let mut at = (hash >> self.shift) as usize;
        while self.slots[at] >> 22 != pair && self.slots[at] != u64::MAX {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    #[inline(always)]
    fn get(&self, left: u32, right: u32) -> u32 {
        let key = Self::key(left, right);
        let (word, bit) = self.filter_bit(key.1);
        match self.filter[word] & bit {
            0 => NONE,
            _ => self.slots[self.find(key)] as u32 & NONE,
        }
    }

    fn insert(&mut self, left: u32, right: u32, merged: u32) {
        let key = Self::key(left, right);
        let (word, bit) = self.filter_bit(key.1);
        self.filter[word] |= bit;
        let at = self.find(key);
        self.slots[at] = key.0 << 22 | merged as u64;
    }
}

pub struct Vocabulary {
    byte_ids: [u32; 256],
    byte_pairs: Box<[u32]>, // what two bytes merge to, by left << 8 | right
    pairs: PairTable,
    bytes: Vec<u8>,   // of all tokens, one after another
    ends: Vec<usize>, // of each token in `bytes`
}

impl Vocabulary {
    /// 256 bytes (id = byte), then merges in the order they were learned (id = 256 + index).
    pub fn from_merges(merges: &[(u32, u32)]) -> Result<Self> {
        let (mut seen, mut size) = (HashSet::new(), 0);
        let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        for (i, &(left, right)) in merges.iter().enumerate() {
            let known = tokens.len() as u32;
            if left >= known || right >= known {
                return Err(Error::Vocabulary(format!(
                    "merge {i} joins ids {left} and {right}, but at that point only ids below {known} exist; \
                     the merges are damaged or out of order"
                )));
            }
            if !seen.insert((left, right)) {
                return Err(Error::Vocabulary(format!("merge {i} joins ids {left} and {right} a second time")));
            }
            let token = [&tokens[left as usize][..], &tokens[right as usize][..]].concat();
            size += token.len();
            if size > MAX_BYTES {
                let message =
                    format!("merge {i} makes the tokens longer than {MAX_BYTES} bytes in all; they are damaged");
                return Err(Error::Vocabulary(message));
            }
            tokens.push(token);
        }
        let mut vocabulary = Self::without_merges(&tokens)?;
        for (i, &(left, right)) in merges.iter().enumerate() {
            vocabulary.add_merge(left, right, 256 + i as u32);
        }
        Ok(vocabulary)
    }

    /// Tokens in the order they were learned (tiktoken's form). A token's merge is the pair it comes down to when only
    /// the tokens before it may merge.
    pub fn from_ranks(tokens: &[Vec<u8>]) -> Result<Self> {
        let mut vocabulary = Self::without_merges(tokens)?;
        let mut ids = Vec::new();
        for (rank, token) in tokens.iter().enumerate().filter(|(_, token)| token.len() > 1) {
            ids.clear();
            vocabulary.merge(token, &mut ids);
            let [left, right] = ids[..] else {
                return Err(Error::Vocabulary(format!(
                    "token {rank} ({:?}) does not come down to two tokens before it but to {}; \
                     the tokens have to be in the order they were learned, each once",
                    String::from_utf8_lossy(token),
                    ids.len()
                )));
            };
            vocabulary.add_merge(left, right, rank as u32);
        }
        Ok(vocabulary)
    }

    fn without_merges(tokens: &[Vec<u8>]) -> Result<Self> {
        if tokens.len() > MAX_VOCAB {
            let message = format!("a vocabulary holds at most {MAX_VOCAB} tokens, not {}", tokens.len());
            return Err(Error::Vocabulary(message));
        }
        if let Some(id) = tokens.iter().position(Vec::is_empty) {
            return Err(Error::Vocabulary(format!("token {id} has no bytes")));
        }
        let mut byte_ids = [NONE; 256];
        for (id, token) in tokens.iter().enumerate().filter(|(_, token)| token.len() == 1) {
            byte_ids[token[0] as usize] = id as u32;
        }
        if let Some(byte) = byte_ids.iter().position(|&id| id == NONE) {
            let message = format!("no token stands for the single byte {byte:#04x}; all 256 bytes are needed");
            return Err(Error::Vocabulary(message));
        }
        let ends = tokens.iter().scan(0, |end, token| {
            *end += token.len();
            Some(*end)
        });
        Ok(Vocabulary {
            byte_ids,
            byte_pairs: vec![NONE; 1 << 16].into(),
            pairs: PairTable::new(tokens.len()),
            ends: ends.collect(),
            bytes: tokens.concat(),
        })
    }

    fn add_merge(&mut self, left: u32, right: u32, merged: u32) {
        if let (&[l], &[r]) = (self.token(left), self.token(right)) {
            self.byte_pairs[(l as usize) << 8 | r as usize] = merged;
        }
        self.pairs.insert(left, right, merged);
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of a token.
    #[inline]
    pub fn token(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..self.ends[id]]
    }

    /// Ids of one word of any length, appended to `out`.
    ///
    /// A long word is encoded as a prefix that grows block by block. Its last tokens are taken back and merged again
    /// with the new block; what results is the encoding of the whole as soon as the seam holds, because ids are the
    /// encoding of their bytes exactly when every neighbouring two of them are: a merge across them would show there.
    pub fn encode_word(&self, word: &[u8], out: &mut Vec<u32>) {
        if word.len() <= 64 {
            return self.merge(word, out);
        }
        let (mut end, first, mut merged) = (0, out.len(), Vec::new());
        while end < word.len() {
            let ahead = &word[end..word.len().min(end + 64)];
            let mut block = if is_repetitive(ahead) { REPETITIVE_BLOCK } else { BLOCK };
            let (mut start, mut back) = (end, 2);
            loop {
                for id in out.drain(first.max(out.len().saturating_sub(back))..) {
                    start -= self.token(id).len();
                }
                // Of long tokens more is taken back: then more must come, or the work would be mostly repetition.
                block = block.max(2 * (end - start));
                let stretch = &word[start..word.len().min(end + block)];
                merged.clear();
                self.merge(stretch, &mut merged);
                if out.len() == first || self.stay_apart(out[out.len() - 1], merged[0]) {
                    out.append(&mut merged);
                    end = start + stretch.len();
                    break;
                }
                back *= 2;
            }
        }
    }

    /// Whether two tokens next to each other are encoded as just these two.
    fn stay_apart(&self, left: u32, right: u32) -> bool {
        let mut ids = Vec::with_capacity(8);
        self.merge(&[self.token(left), self.token(right)].concat(), &mut ids);
        ids == [left, right]
    }

    /// Ids of a stretch of bytes, appended to `out`: the lowest rank merges first, the leftmost of equals.
    fn merge(&self, bytes: &[u8], out: &mut Vec<u32>) {
        match bytes.len() {
            ..=16 => self.merge_few::<16>(bytes, out),
            17..=32 => self.merge_few::<32>(bytes, out),
            33..=64 if !is_repetitive(bytes) => self.merge_few::<64>(bytes, out),
            _ => self.merge_many(bytes, out),
        }
    }

    /// The same for up to N <= 64 bytes. A token lives at its first byte; one word of bits says
    /// which bytes those are, so that neighbours are found by counting zeros and nothing moves.
    #[inline(always)]
    fn merge_few<const N: usize>(&self, bytes: &[u8], out: &mut Vec<u32>) {
        let mut ids = [0; N];
        // What ids[at] and the next one merge to, above the place: the smallest merges first.
        let mut merges = [NO_MERGE; N];
        let mut starts = !0u64 >> (64 - bytes.len());
        for (id, &byte) in ids.iter_mut().zip(bytes) {
            *id = self.byte_ids[byte as usize];
        }
        for (at, pair) in bytes.windows(2).enumerate() {
            merges[at] = (self.byte_pairs[(pair[0] as usize) << 8 | pair[1] as usize] << 6) as i32 | at as i32;
        }
        loop {
            let first = *merges.iter().min().expect("N is not 0");
            if first >= NO_MERGE {
                break;
            }
            let (id, at) = (first as u32 >> 6, first as usize % 64);
            let behind = starts & (!1 << at);
            let (taken, behind) = (behind.trailing_zeros() as usize, behind & behind.wrapping_sub(1));
            starts &= !(1 << taken);
            ids[at] = id;
            merges[taken % N] = NO_MERGE;
            merges[at] = match behind {
                0 => NO_MERGE,
                _ => (self.pairs.get(id, ids[behind.trailing_zeros() as usize % N]) << 6) as i32 | at as i32,
            };
            let before = starts & ((1 << at) - 1);
            if before != 0 {
                let left = 63 - before.leading_zeros() as usize;
                merges[left] = (self.pairs.get(ids[left], id) << 6) as i32 | left as i32;
            }
        }
        while starts != 0 {
            out.push(ids[starts.trailing_zeros() as usize % N]);
            starts &= starts - 1;
        }
    }

    /// The same for any number of bytes, in passes: one pass merges every occurrence of the lowest rank, which is
    /// right because a merge only makes pairs of higher rank.
    fn merge_many(&self, bytes: &[u8], out: &mut Vec<u32>) {
        let mut ids: Vec<u32> = bytes.iter().map(|&byte| self.byte_ids[byte as usize]).collect();
        let byte_pair = |pair: &[u8]| self.byte_pairs[(pair[0] as usize) << 8 | pair[1] as usize];
        let mut ranks: Vec<u32> = bytes.windows(2).map(byte_pair).chain([NONE]).collect();
        loop {
            let lowest = *ranks.iter().min().expect("never empty");
            if lowest == NONE {
                return out.append(&mut ids);
            }
            let mut to = ranks.iter().position(|&rank| rank == lowest).expect("just seen");
            let mut from = to;
            while from < ids.len() {
                let merges = ranks[from] == lowest;
                ids[to] = if merges { lowest } else { ids[from] };
                from += 1 + merges as usize;
                // The rank to the left is new if either side of it is.
                if to > 0 && (ids[to] == lowest || ids[to - 1] == lowest) {
                    ranks[to - 1] = self.pairs.get(ids[to - 1], ids[to]);
                }
                ranks[to] = ranks[from - 1];
                to += 1;
            }
            ids.truncate(to);
            ranks.truncate(to);
        }
    }
}

/// Whether a stretch is made of few different bytes: then many equal pairs merge in one pass.
fn is_repetitive(bytes: &[u8]) -> bool {
    let mut seen = [0u64; 4];
    for &byte in bytes {
        seen[byte as usize / 64] |= 1 << (byte % 64);
    }
    seen.iter().map(|word| word.count_ones() as usize).sum::<usize>() * 16 <= bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{naive_merge, Random};

    /// A vocabulary in which every merge joins two tokens at random: more tangled than any text makes it.
    fn tangled(random: &mut Random, alphabet: &[u8], size: usize) -> Vec<(u32, u32)> {
        let mut merges: Vec<(u32, u32)> = Vec::new();
        let mut texts: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        while merges.len() < size {
            let mut pick = || match random.below(2) {
                0 => alphabet[random.below(alphabet.len())] as u32,
                _ => 256 + random.below(merges.len() + 1) as u32,
            };
            let (left, right) = (pick(), pick());
            if left.max(right) as usize >= texts.len() {
                continue;
            }
            let joined = [&texts[left as usize][..], &texts[right as usize][..]].concat();
            // Only what training could have made: two tokens that stay apart until then, and no text twice.
            if joined.len() < 40 && !texts.contains(&joined) && naive_merge(&joined, &merges) == [left, right] {
                merges.push((left, right));
                texts.push(joined);
            }
        }
        merges
    }

    #[test]
    fn every_way_to_merge_gives_what_the_definition_gives() {
        let seed = 0xB9E;
        println!("seed {seed}");
        let mut random = Random(seed);
        for round in 0..30 {
            let alphabet = &b"abcdefgh"[..2 + round % 7];
            let merges = tangled(&mut random, alphabet, 60);
            let vocabulary = Vocabulary::from_merges(&merges).unwrap();
            for _ in 0..60 {
                let longest = if random.below(4) == 0 { 700 } else { 70 };
                let len = 1 + random.below(longest);
                let word: Vec<u8> = match random.below(4) {
                    0 => vec![alphabet[random.below(alphabet.len())]; len],
                    _ => (0..len).map(|_| alphabet[random.below(alphabet.len())]).collect(),
                };
                let expected = naive_merge(&word, &merges);
                let (mut encoded, mut passes) = (Vec::new(), Vec::new());
                vocabulary.encode_word(&word, &mut encoded);
                vocabulary.merge_many(&word, &mut passes);
                assert_eq!(encoded, expected, "{word:?} by {merges:?}");
                assert_eq!(passes, expected, "{word:?} by {merges:?}");
            }
        }
    }

    #[test]
    fn a_vocabulary_given_by_ranks_is_the_one_given_by_merges() {
        let mut random = Random(7);
        let merges = tangled(&mut random, b"abc", 80);
        let by_merges = Vocabulary::from_merges(&merges).unwrap();
        let tokens: Vec<Vec<u8>> = (0..by_merges.len() as u32).map(|id| by_merges.token(id).to_vec()).collect();
        let by_ranks = Vocabulary::from_ranks(&tokens).unwrap();
        for &(left, right) in &merges {
            assert_eq!(by_ranks.pairs.get(left, right), by_merges.pairs.get(left, right));
        }
    }

    #[test]
    fn what_is_no_vocabulary_is_an_error() {
        assert!(Vocabulary::from_merges(&[(256, 97)]).is_err());
        assert!(Vocabulary::from_merges(&[(97, 98), (97, 98)]).is_err());
        let doubling: Vec<(u32, u32)> = std::iter::once((97, 97)).chain((256..320).map(|id| (id, id))).collect();
        assert!(Vocabulary::from_merges(&doubling).is_err());
        assert!(Vocabulary::from_ranks(&[vec![97]]).is_err());
        let tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        for odd in [vec![], vec![b"abc".to_vec(), b"ab".to_vec()], vec![b"ab".to_vec(), b"ab".to_vec()]] {
            let odd = if odd.is_empty() { vec![Vec::new()] } else { odd };
            assert!(Vocabulary::from_ranks(&[tokens.clone(), odd].concat()).is_err());
        }
    }
}
