//! Training: count the words of a text, then merge the most frequent pair, again and again.
//!
//! Memory grows with the number of distinct words. The result does not depend on the number of threads: only counts
//! decide, and among equal counts the smaller pair of ids.

use crate::encode::Texts;
use crate::split::{Splitter, MAX_TEXT};
use crate::words::{WordMap, SHORT};
use crate::{Error, Result};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often each word occurs, over all texts added.
pub struct WordCounter {
    splitter: Splitter,
    maps: Vec<WordMap<u64>>, // one a thread
    chars_left: u64,
    doc_cap: usize,
    pub chars: u64, // read so far
}

impl WordCounter {
    /// `max_chars` characters are read in all, `doc_cap` of each text.
    pub fn new(splitter: Splitter, threads: usize, max_chars: Option<u64>, doc_cap: Option<usize>) -> Self {
        let maps = (0..threads.max(1)).map(|_| WordMap::new(1 << 10)).collect();
        let (chars_left, doc_cap) = (max_chars.unwrap_or(u64::MAX), doc_cap.unwrap_or(usize::MAX));
        WordCounter { splitter, maps, chars_left, doc_cap, chars: 0 }
    }

    /// Counts the words of some texts; false when no more text is wanted.
    pub fn add(&mut self, texts: &dyn Texts) -> Result<bool> {
        /// Texts given to a thread at a time.
        const BATCH: usize = 16;
        let mut read = Vec::with_capacity(texts.len());
        for i in 0..texts.len() {
            if self.chars_left == 0 {
                break;
            }
            let cap = self.doc_cap.min(usize::try_from(self.chars_left).unwrap_or(usize::MAX));
            let (text, chars) = first_chars(texts.get(i)?, cap);
            if text.len() > MAX_TEXT {
                let message = format!("text {i} has {} bytes; cut it below {MAX_TEXT}, or set doc_cap", text.len());
                return Err(Error::Input(message));
            }
            self.chars_left -= chars as u64;
            self.chars += chars as u64;
            read.push(text);
        }
        let (splitter, next) = (&self.splitter, AtomicUsize::new(0));
        let count = |map: &mut WordMap<u64>| -> Result<()> {
            loop {
                let from = next.fetch_add(BATCH, Ordering::Relaxed);
                if from >= read.len() {
                    return Ok(());
                }
                for text in &read[from..read.len().min(from + BATCH)] {
                    count_words(splitter, text, map)?;
                }
            }
        };
        std::thread::scope(|scope| {
            let (first, others) = self.maps.split_first_mut().expect("at least one");
            let others: Vec<_> = others.iter_mut().map(|map| scope.spawn(|| count(map))).collect();
            let mut outcome = count(first);
            for other in others {
                outcome = outcome.and(other.join().expect("workers do not panic"));
            }
            outcome
        })?;
        Ok(self.chars_left > 0)
    }

    pub fn finish(self) -> WordMap<u64> {
        let mut maps = self.maps.into_iter();
        let mut all = maps.next().expect("at least one");
        for map in maps {
            map.for_each(|word, count| *all.entry(word) += count);
        }
        all
    }
}

/// The first `cap` characters of a text, and how many those are.
fn first_chars(text: &str, cap: usize) -> (&str, usize) {
    if text.len() > cap {
        if let Some((end, _)) = text.char_indices().nth(cap) {
            return (&text[..end], cap);
        }
    }
    (text, text.chars().count())
}

fn count_words(splitter: &Splitter, text: &str, map: &mut WordMap<u64>) -> Result<()> {
    let (mut ends, mut keys) = ([0u32; 256], [(0u128, 0u64); 256]);
    let mut start = 0;
    loop {
        let n = splitter.fill(text, start, &mut ends)?;
        if n == 0 {
            return Ok(());
        }
        map.prepare(text.as_bytes(), start, &ends[..n], &mut keys);
        for (&end, key) in ends[..n].iter().zip(&keys) {
            let end = end as usize;
            *if end - start <= SHORT {
                map.short_entry(key.0, key.1)
            } else {
                map.long_entry(&text.as_bytes()[start..end])
            } += 1;
            start = end;
        }
    }
}

/// No token: the gap between words, or a place inside a merged token.
const GAP: u32 = u32::MAX;
const INSIDE: u32 = u32::MAX - 1;

/// A byte of a word. The first and the last byte of a token hold its id, so that both neighbours of a token are found
/// from their lengths alone.
#[derive(Clone, Copy)]
struct Cell {
    token: u32,
    word: u32,
}

/// What is known of a pair: how often it occurs, and where it was when it came to be (a place may be stale).
#[derive(Clone, Copy, Default)]
struct Pair {
    key: u64, // left << 32 | right, plus one: 0 is a free slot
    count: u64,
    first: u64, // of its places in `Merger::places`
    places: u32,
}

/// Pairs by open addressing.
struct Pairs {
    slots: Vec<Pair>,
    used: usize,
}

impl Pairs {
    fn find(&self, key: u64) -> usize {
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & (self.slots.len() - 1);
        while self.slots[at].key != key && self.slots[at].key != 0 {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    fn get(&mut self, pair: u64) -> &mut Pair {
        let at = self.find(pair + 1);
        &mut self.slots[at]
    }

    fn insert(&mut self, pair: u64, count: u64, first: u64, places: u32) {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            let larger = vec![Pair::default(); self.slots.len() * 2];
            // A pair whose count fell to zero never comes back.
            let kept: Vec<Pair> =
                std::mem::replace(&mut self.slots, larger).into_iter().filter(|p| p.key != 0 && p.count > 0).collect();
            self.used = kept.len();
            for pair in kept {
                let at = self.find(pair.key);
                self.slots[at] = pair;
            }
        }
        let at = self.find(pair + 1);
        debug_assert_eq!(self.slots[at].key, 0, "a pair comes to be only once");
        self.slots[at] = Pair { key: pair + 1, count, first, places };
        self.used += 1;
    }
}

fn key(left: u32, right: u32) -> u64 {
    (left as u64) << 32 | right as u64
}

/// The tokens on one side of a merge: how often each stands there, and where.
#[derive(Default)]
struct Side {
    count: Vec<u64>,      // by token
    places: Vec<u32>,     // number of places, by token; then where the next one goes
    seen: Vec<u32>,       // tokens with at least one
    met: Vec<(u32, u32)>, // (token, place of the pair it will form), in text order
}

impl Side {
    fn meet(&mut self, token: u32, place: usize, count: u64) {
        let i = token as usize;
        if self.places[i] == 0 {
            self.seen.push(token);
        }
        self.places[i] += 1;
        self.count[i] += count;
        self.met.push((token, place as u32));
    }
}

struct Merger {
    cells: Vec<Cell>,
    counts: Vec<u64>,  // of each word
    lengths: Vec<u32>, // bytes of each token
    places: Vec<u32>,  // of all pairs: where in `cells` the pair starts
    pairs: Pairs,
    queue: BinaryHeap<(u64, Reverse<u64>)>, // counts may be out of date (too high)
    left: Side,
    right: Side,
}

/// The `merges` most frequent pairs in the order they merge; fewer when no pair is left.
/// `progress` is told how many are done and answers whether to go on.
pub fn learn_merges(
    words: WordMap<u64>,
    merges: usize,
    mut progress: impl FnMut(usize) -> bool,
) -> Result<Vec<(u32, u32)>> {
    let mut merger = Merger::new(words)?;
    let mut learned = Vec::new();
    while learned.len() < merges {
        if learned.len() % 64 == 0 && !progress(learned.len()) {
            return Err(Error::Interrupted);
        }
        let Some((count, Reverse(pair))) = merger.queue.pop() else { break };
        let now = merger.pairs.get(pair).count;
        if now < count {
            if now > 0 {
                merger.queue.push((now, Reverse(pair)));
            }
            continue;
        }
        let (left, right) = ((pair >> 32) as u32, pair as u32);
        merger.merge(left, right);
        learned.push((left, right));
    }
    if !progress(learned.len()) {
        return Err(Error::Interrupted);
    }
    Ok(learned)
}

impl Merger {
    fn new(words: WordMap<u64>) -> Result<Self> {
        let mut size = 1;
        words.for_each(|word, _| size += word.len() + 1);
        if size >= INSIDE as usize {
            let message = format!(
                "the text has {size} bytes of distinct words, more than the trainer's 4 billion; set max_chars"
            );
            return Err(Error::Input(message));
        }
        let (mut cells, mut counts) = (Vec::with_capacity(size), Vec::with_capacity(words.len()));
        let gap = Cell { token: GAP, word: 0 };
        cells.push(gap);
        words.for_each(|word, count| {
            if word.len() > 1 {
                cells.extend(word.iter().map(|&byte| Cell { token: byte as u32, word: counts.len() as u32 }));
                cells.push(gap);
                counts.push(count);
            }
        });
        drop(words);
        let side = || Side { count: vec![0; 256], places: vec![0; 256], ..Side::default() };
        let mut merger = Merger {
            cells,
            counts,
            lengths: vec![1; 256],
            places: Vec::new(),
            pairs: Pairs { slots: vec![Pair::default(); 1 << 17], used: 0 },
            queue: BinaryHeap::new(),
            left: side(),
            right: side(),
        };
        merger.count_byte_pairs();
        Ok(merger)
    }

    fn count_byte_pairs(&mut self) {
        let (mut counts, mut next) = (vec![0u64; 1 << 16], vec![0usize; (1 << 16) + 1]);
        let byte_pairs = |cells: &[Cell], visit: &mut dyn FnMut(usize, usize, u32)| {
            for (at, two) in cells.windows(2).enumerate() {
                if two[0].token != GAP && two[1].token != GAP {
                    visit((two[0].token << 8 | two[1].token) as usize, at, two[0].word);
                }
            }
        };
        byte_pairs(&self.cells, &mut |pair, _, word| {
            counts[pair] += self.counts[word as usize];
            next[pair + 1] += 1;
        });
        for pair in 0..1 << 16 {
            next[pair + 1] += next[pair];
            if counts[pair] > 0 {
                let (id, first) = (key(pair as u32 >> 8, pair as u32 & 0xFF), next[pair]);
                self.pairs.insert(id, counts[pair], first as u64, 0);
                self.queue.push((counts[pair], Reverse(id)));
            }
        }
        for pair in (0..1 << 16).filter(|&pair| counts[pair] > 0) {
            self.pairs.get(key(pair as u32 >> 8, pair as u32 & 0xFF)).places = (next[pair + 1] - next[pair]) as u32;
        }
        self.places = vec![0; next[1 << 16]];
        byte_pairs(&self.cells, &mut |pair, at, _| {
            self.places[next[pair]] = at as u32;
            next[pair] += 1;
        });
    }

    /// Replaces every `a` followed by `b` by a new token, left to right, and brings the counts up to date.
    fn merge(&mut self, a: u32, b: u32) {
        let new = self.lengths.len() as u32;
        let (a_len, b_len) = (self.lengths[a as usize] as usize, self.lengths[b as usize] as usize);
        self.lengths.push((a_len + b_len) as u32);
        for side in [&mut self.left, &mut self.right] {
            side.count.push(0);
            side.places.push(0);
        }
        let Pair { first, places, .. } = *self.pairs.get(key(a, b));
        let mut rejoined = 0; // how often the pair (new, a), just met, became (new, new)
        for i in first as usize..first as usize + places as usize {
            let start = self.places[i] as usize;
            let middle = start + a_len;
            if self.cells[start].token != a || self.cells[middle].token != b {
                continue; // stale
            }
            let end = middle + b_len;
            let count = self.counts[self.cells[start].word as usize];
            let before = self.cells[start - 1].token;
            if before != GAP {
                self.left.meet(before, start - self.lengths[before as usize] as usize, count);
                rejoined += if before == new { count } else { 0 };
            }
            let after = self.cells[end].token;
            if after != GAP {
                self.right.meet(after, start, count);
            }
            self.cells[middle].token = INSIDE;
            self.cells[start].token = new;
            self.cells[end - 1].token = new;
        }
        for i in 0..self.left.seen.len() {
            let before = self.left.seen[i];
            if before != new {
                self.pairs.get(key(before, a)).count -= self.left.count[before as usize];
            }
        }
        for i in 0..self.right.seen.len() {
            let after = self.right.seen[i];
            // (a, a) in a run: the pair that is merging counts itself.
            let pair = self.pairs.get(key(b, after));
            pair.count = pair.count.saturating_sub(self.right.count[after as usize]);
        }
        self.pairs.get(key(a, b)).count = 0;
        if rejoined > 0 {
            self.right.count[a as usize] -= rejoined;
        }
        self.add_pairs(new, true);
        self.add_pairs(new, false);
    }

    /// Enters the pairs that the new token forms with those met on one side of it.
    fn add_pairs(&mut self, new: u32, on_left: bool) {
        let side = if on_left { &mut self.left } else { &mut self.right };
        let mut first = self.places.len();
        self.places.resize(first + side.met.len(), 0);
        for &token in &side.seen {
            let (count, places) = (&mut side.count[token as usize], &mut side.places[token as usize]);
            if *count > 0 {
                let pair = if on_left { key(token, new) } else { key(new, token) };
                self.pairs.insert(pair, *count, first as u64, *places);
                self.queue.push((*count, Reverse(pair)));
            }
            *count = 0;
            first += *places as usize;
            *places = (first - *places as usize) as u32;
        }
        for &(token, place) in &side.met {
            let next = &mut side.places[token as usize];
            self.places[*next as usize] = place;
            *next += 1;
        }
        for token in side.seen.drain(..) {
            side.places[token as usize] = 0;
        }
        side.met.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::DEFAULT_PATTERN;
    use crate::testing::{naive_train, Random};

    fn train(
        texts: &[&str],
        threads: usize,
        max_chars: Option<u64>,
        doc_cap: Option<usize>,
        merges: usize,
    ) -> Vec<(u32, u32)> {
        let mut counter = WordCounter::new(Splitter::new(DEFAULT_PATTERN).unwrap(), threads, max_chars, doc_cap);
        counter.add(&texts.to_vec()).unwrap();
        learn_merges(counter.finish(), merges, |_| true).unwrap()
    }

    fn naive(texts: &[&str], merges: usize) -> Vec<(u32, u32)> {
        let splitter = Splitter::new(DEFAULT_PATTERN).unwrap();
        let words: Vec<&str> = texts.iter().flat_map(|text| splitter.pieces(text).unwrap()).collect();
        naive_train(&words, merges)
    }

    #[test]
    fn merges_are_those_of_the_definition() {
        let seed = 0x7EA1;
        println!("seed {seed}");
        let mut random = Random(seed);
        for _ in 0..40 {
            let texts: Vec<String> = (0..8).map(|_| random.text(120)).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let expected = naive(&texts, 200);
            assert_eq!(train(&texts, 1, None, None, 200), expected);
            assert_eq!(train(&texts, 3, None, None, 200), expected);
        }
    }

    #[test]
    fn runs_of_one_letter_merge_left_to_right() {
        for text in ["aaaaaaa", "abababab", "aabaabaab", "aaabaaab", "abcabcabcab"] {
            assert_eq!(train(&[text], 1, None, None, 50), naive(&[text], 50), "{text}");
        }
    }

    #[test]
    fn training_ends_when_no_pair_is_left() {
        assert_eq!(train(&["ab", "ab"], 1, None, None, 50), [(97, 98)]);
        assert_eq!(train(&["", "a", "b"], 1, None, None, 50), []);
    }

    #[test]
    fn limits_count_characters() {
        assert_eq!(train(&["한국어", "abcd"], 1, None, Some(2), 50), naive(&["한국", "ab"], 50));
        assert_eq!(train(&["한국어", "abcd"], 1, Some(5), None, 50), naive(&["한국어", "ab"], 50));
    }

    #[test]
    fn progress_can_stop_it() {
        let words = || {
            let mut counter = WordCounter::new(Splitter::new(DEFAULT_PATTERN).unwrap(), 1, None, None);
            counter.add(&vec!["some text"]).unwrap();
            counter.finish()
        };
        assert_eq!(learn_merges(words(), 10, |_| false), Err(Error::Interrupted));
        assert_eq!(learn_merges(words(), 3, |_| true).unwrap().len(), 3);
        // At the last report too.
        assert_eq!(learn_merges(words(), 3, |done| done < 3), Err(Error::Interrupted));
    }
}
