//! A vocabulary: the bytes of its tokens, which pairs merge, and the merging of one word.

use crate::{Error, Result};

/// No merge. Larger than every id.
const NONE: u32 = u32::MAX;
/// A slot of the pair table has 21 bits for an id.
pub const MAX_VOCAB: usize = 1 << 21;
/// Bytes merged at once in a long word: the quadratic part of merging stays inside a block.
const BLOCK: usize = 32;

/// The merge of two ids, by open addressing: a slot holds left, right and result in 21, 21 and 22 bits.
struct PairTable {
    slots: Vec<u64>,
    shift: u32,
}

impl PairTable {
    fn new(pairs: usize) -> Self {
        let len = (pairs * 2).next_power_of_two().max(64);
        PairTable { slots: vec![u64::MAX; len], shift: 64 - len.trailing_zeros() }
    }

    /// The slot of a pair, or the free one where it belongs.
    #[inline(always)]
    fn find(&self, pair: u64) -> usize {
        let mut at = (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize;
        while self.slots[at] >> 22 != pair && self.slots[at] != u64::MAX {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    #[inline(always)]
    fn get(&self, left: u32, right: u32) -> u32 {
        match self.slots[self.find((left as u64) << 21 | right as u64)] {
            u64::MAX => NONE,
            slot => slot as u32 & ((1 << 22) - 1),
        }
    }

    fn insert(&mut self, left: u32, right: u32, merged: u32) {
        let pair = (left as u64) << 21 | right as u64;
        let at = self.find(pair);
        self.slots[at] = pair << 22 | merged as u64;
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
        let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        for (i, &(left, right)) in merges.iter().enumerate() {
            let known = tokens.len() as u32;
            if left >= known || right >= known {
                return Err(Error::Vocabulary(format!(
                    "merge {i} joins ids {left} and {right}, but at that point only ids below {known} exist; \
                     the merges are damaged or out of order"
                )));
            }
            tokens.push([&tokens[left as usize][..], &tokens[right as usize][..]].concat());
        }
        let mut vocabulary = Self::without_merges(&tokens)?;
        for (i, &(left, right)) in merges.iter().enumerate() {
            vocabulary.add_merge(left, right, 256 + i as u32);
        }
        Ok(vocabulary)
    }

    /// Tokens in rank order (tiktoken's form). A token's merge is the pair it comes down to when only lower ranks may
    /// merge; a token that comes down to more than a pair is only ever a whole word.
    pub fn from_ranks(tokens: &[Vec<u8>]) -> Result<Self> {
        let mut vocabulary = Self::without_merges(tokens)?;
        for (rank, token) in tokens.iter().enumerate().filter(|(_, token)| token.len() > 1) {
            if let [left, right] = vocabulary.merge(token)[..] {
                vocabulary.add_merge(left, right, rank as u32);
            }
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
        if word.len() <= 2 * BLOCK {
            let (mut ids, mut ranks) = ([0; 2 * BLOCK], [0; 2 * BLOCK]);
            let n = self.merge_into(word, &mut ids, &mut ranks);
            return out.extend_from_slice(&ids[..n]);
        }
        let (mut end, first) = (0, out.len());
        while end < word.len() {
            let mut start = end;
            end = word.len().min(end + BLOCK);
            let mut back = 2;
            loop {
                for id in out.drain(first.max(out.len().saturating_sub(back))..) {
                    start -= self.token(id).len();
                }
                let ids = self.merge(&word[start..end]);
                if out.len() == first || self.stay_apart(out[out.len() - 1], ids[0]) {
                    out.extend(ids);
                    break;
                }
                back *= 2;
            }
        }
    }

    /// Whether two tokens next to each other are encoded as just these two.
    fn stay_apart(&self, left: u32, right: u32) -> bool {
        self.merge(&[self.token(left), self.token(right)].concat()) == [left, right]
    }

    fn merge(&self, bytes: &[u8]) -> Vec<u32> {
        let (mut ids, mut ranks) = (vec![0; bytes.len()], vec![0; bytes.len()]);
        let n = self.merge_into(bytes, &mut ids, &mut ranks);
        ids.truncate(n);
        ids
    }

    /// Ids of a stretch of bytes, into `ids`; returns how many. The lowest rank merges first, left to right.
    #[inline(always)]
    fn merge_into(&self, bytes: &[u8], ids: &mut [u32], ranks: &mut [u32]) -> usize {
        let mut n = bytes.len();
        let (ids, ranks) = (&mut ids[..n], &mut ranks[..n]);
        for (id, &byte) in ids.iter_mut().zip(bytes) {
            *id = self.byte_ids[byte as usize];
        }
        // ranks[i]: what ids[i] and ids[i + 1] merge to, which is also how soon they do.
        for (rank, pair) in ranks.iter_mut().zip(bytes.windows(2)) {
            *rank = self.byte_pairs[(pair[0] as usize) << 8 | pair[1] as usize];
        }
        ranks[n - 1] = NONE;
        loop {
            let lowest = ranks[..n].iter().copied().min().expect("a word is not empty");
            if lowest == NONE {
                return n;
            }
            // One pass merges every occurrence: a merge only makes pairs of higher rank.
            let mut to = ranks.iter().position(|&rank| rank == lowest).expect("just seen");
            let mut from = to;
            while from < n {
                if ranks[from] == lowest {
                    ids[to] = lowest;
                    from += 2;
                } else {
                    ids[to] = ids[from];
                    from += 1;
                }
                // The rank to the left is new if either side of it is.
                if to > 0 && (ids[to] == lowest || ids[to - 1] == lowest) {
                    ranks[to - 1] = self.pairs.get(ids[to - 1], ids[to]);
                }
                ranks[to] = ranks[from - 1];
                to += 1;
            }
            n = to;
        }
    }
}
