//! Text → ids, for one vocabulary.
//!
//! A text is split into words (`split`), a word's ids are remembered in a map (`words`), and only a word not seen
//! before is merged (`vocab`). Each thread has a map of its own and keeps it for the next call.

use crate::split::{Splitter, MAX_TEXT};
use crate::vocab::Vocabulary;
use crate::words::{ask_for_huge_pages, WordMap, SHORT};
use crate::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// Words handled at once: keys first, so that their slots are on the way when they are read.
const WORDS: usize = 256;
/// Longer words are merged each time: they hardly ever come back.
const LONGEST_REMEMBERED: usize = 256;
/// Bytes a thread may remember; beyond that it starts afresh.
const MAX_REMEMBERED: usize = 256 << 20;
/// Bytes of text handed to a thread at a time.
const CHUNK: usize = 1 << 20;

/// A type that ids are handed out in.
pub trait Id: Copy + Default + Send + Sync + 'static {
    fn from_u32(id: u32) -> Self;
}

impl Id for u16 {
    #[inline(always)]
    fn from_u32(id: u32) -> Self {
        id as u16
    }
}

impl Id for u32 {
    #[inline(always)]
    fn from_u32(id: u32) -> Self {
        id
    }
}

/// A batch of texts. `get` is called from several threads.
pub trait Texts: Sync {
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes of text i.
    fn size(&self, i: usize) -> usize;
    /// Text i, or why it is none.
    fn get(&self, i: usize) -> Result<&str>;
}

impl<T: AsRef<str> + Sync> Texts for [T] {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }
    fn size(&self, i: usize) -> usize {
        self[i].as_ref().len()
    }
    fn get(&self, i: usize) -> Result<&str> {
        Ok(self[i].as_ref())
    }
}

/// What is remembered of a word: up to four ids, the first with their number in its top byte, or where in `spill`
/// more of them lie: [SPILLED, start, number, 0].
type Remembered = [u32; INLINE];
const INLINE: usize = 4;
const SPILLED: u32 = 0xFF << 24;
const ID_MASK: u32 = (1 << 24) - 1;

fn remembered(ids: &[u32], spill: &mut Vec<u32>) -> Remembered {
    if ids.len() > INLINE {
        spill.extend_from_slice(ids);
        return [SPILLED, (spill.len() - ids.len()) as u32, ids.len() as u32, 0];
    }
    let mut value = [0; INLINE];
    value[..ids.len()].copy_from_slice(ids);
    value[0] |= (ids.len() as u32) << 24;
    value
}

struct Cache {
    words: WordMap<Remembered>,
    spill: Vec<u32>,
    scratch: Vec<u32>,
}

impl Cache {
    /// Room for the words of a text of that many bytes (one in about 150 bytes is new).
    fn for_text(bytes: usize) -> Self {
        let words = (bytes / 192).clamp(1 << 10, 1 << 19);
        Cache { words: WordMap::new(words), spill: Vec::new(), scratch: Vec::new() }
    }

    fn bytes(&self) -> usize {
        self.words.bytes() + size_of::<u32>() * self.spill.len()
    }
}

pub struct Encoder {
    splitter: Splitter,
    pub vocabulary: Vocabulary,
    whole_words: WordMap<Remembered>, // tokens that only a whole word becomes
    caches: Mutex<Vec<Cache>>,
}

impl Encoder {
    pub fn new(vocabulary: Vocabulary, splitter: Splitter) -> Self {
        let mut whole_words = WordMap::new(2 * vocabulary.only_whole.len());
        for &id in &vocabulary.only_whole {
            *whole_words.entry(vocabulary.token(id)) = remembered(&[id], &mut Vec::new());
        }
        Encoder { splitter, vocabulary, whole_words, caches: Mutex::new(Vec::new()) }
    }

    /// Ids of one text appended to `out`.
    #[inline(always)]
    fn encode_into<T: Id>(&self, text: &str, out: &mut Vec<T>, cache: &mut Cache) -> Result<()> {
        if text.len() > MAX_TEXT {
            let message =
                format!("a text of {} bytes is too long to encode at once; cut it below {MAX_TEXT}", text.len());
            return Err(Error::Input(message));
        }
        let bytes = text.as_bytes();
        let (mut ends, mut keys) = ([0u32; WORDS], [(0u128, 0u64); WORDS]);
        let mut start = 0;
        loop {
            let n = self.splitter.fill(text, start, &mut ends)?;
            if n == 0 {
                return Ok(());
            }
            cache.words.prepare(bytes, start, &ends[..n], &mut keys);
            // A token is at least one byte long, and a remembered word is written as INLINE ids.
            out.reserve(ends[n - 1] as usize - start + INLINE);
            for (&end, key) in ends[..n].iter().zip(&keys) {
                let value = match cache.words.get(key.0, key.1) {
                    Some(value) => *value,
                    None => self.look_up(&bytes[start..end as usize], *key, cache),
                };
                start = end as usize;
                if value[0] < SPILLED {
                    let ids = [value[0] & ID_MASK, value[1], value[2], value[3]].map(T::from_u32);
                    let len = out.len();
                    // SAFETY: reserved above.
                    unsafe {
                        out.as_mut_ptr().add(len).cast::<[T; INLINE]>().write_unaligned(ids);
                        out.set_len(len + (value[0] >> 24) as usize);
                    }
                } else {
                    let spilled = &cache.spill[value[1] as usize..][..value[2] as usize];
                    out.extend(spilled.iter().map(|&id| T::from_u32(id)));
                }
            }
        }
    }

    /// The ids of a word that is long, or not remembered yet.
    #[cold]
    #[inline(never)]
    fn look_up(&self, word: &[u8], key: (u128, u64), cache: &mut Cache) -> Remembered {
        if word.len() > SHORT {
            if let Some(value) = cache.words.get_long(word) {
                return *value;
            }
        }
        let value = self.whole_words.find(word).copied().unwrap_or_else(|| {
            cache.scratch.clear();
            self.vocabulary.encode_word(word, &mut cache.scratch);
            remembered(&cache.scratch, &mut cache.spill)
        });
        if word.len() <= SHORT {
            *cache.words.short_entry(key.0, key.1) = value;
        } else if word.len() <= LONGEST_REMEMBERED {
            *cache.words.long_entry(word) = value;
        }
        value
    }

    fn take_cache(&self, bytes: usize) -> Cache {
        let kept = self.caches.lock().expect("no thread panics while it holds this").pop();
        kept.unwrap_or_else(|| Cache::for_text(bytes))
    }

    fn keep_cache(&self, cache: Cache) {
        if cache.bytes() <= MAX_REMEMBERED {
            self.caches.lock().expect("no thread panics while it holds this").push(cache);
        }
    }

    /// Ids of one text.
    pub fn encode<T: Id>(&self, text: &str) -> Result<Vec<T>> {
        let mut cache = self.take_cache(text.len());
        let mut ids = Vec::new();
        let outcome = self.encode_into(text, &mut ids, &mut cache);
        self.keep_cache(cache);
        outcome.map(|()| ids)
    }

    /// Ids of all texts one after another, and where those of each begin (with a last offset for the end).
    pub fn encode_batch<T, B>(&self, texts: &B, prepend: Option<u32>, threads: usize) -> Result<(Vec<T>, Vec<u64>)>
    where
        T: Id,
        B: Texts + ?Sized,
    {
        self.encode_chunks(texts, prepend, threads, CHUNK)
    }

    fn encode_chunks<T, B>(
        &self,
        texts: &B,
        prepend: Option<u32>,
        threads: usize,
        chunk: usize,
    ) -> Result<(Vec<T>, Vec<u64>)>
    where
        T: Id,
        B: Texts + ?Sized,
    {
        let jobs = chunks(texts, chunk);
        let threads = threads.clamp(1, jobs.len().max(1));
        let size: usize = (0..texts.len()).map(|i| texts.size(i)).sum();
        let next = AtomicUsize::new(0);
        // Each thread takes chunks in turn; what it encodes lies in one array of its own, cut at `ends`.
        let work = || -> Result<Part<T>> {
            let mut cache = self.take_cache(size / threads);
            let mut part = Part { ids: roomy(size / threads / 3), ends: Vec::new(), jobs: Vec::new() };
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                part.jobs.push((job.start, part.ids.len(), part.ends.len()));
                for i in job.clone() {
                    part.ids.extend(prepend.map(T::from_u32));
                    self.encode_into(texts.get(i)?, &mut part.ids, &mut cache)?;
                    part.ends.push(part.ids.len());
                }
                if cache.bytes() > MAX_REMEMBERED {
                    cache = Cache::for_text(size);
                }
            }
            self.keep_cache(cache);
            Ok(part)
        };
        if threads == 1 {
            let part = work()?;
            let offsets = std::iter::once(0).chain(part.ends.iter().map(|&end| end as u64));
            return Ok((part.ids, offsets.collect()));
        }
        let parts = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().expect("workers do not panic")).collect::<Result<Vec<_>>>()
        })?;
        Ok(join(&parts, texts.len()))
    }
}

/// What one thread has encoded.
struct Part<T> {
    ids: Vec<T>,
    ends: Vec<usize>,                 // of each text, in `ids`
    jobs: Vec<(usize, usize, usize)>, // of each chunk: its first text, and where its ids and its ends begin
}

/// Neighbouring texts, about `chunk` bytes together.
fn chunks(texts: &(impl Texts + ?Sized), chunk: usize) -> Vec<std::ops::Range<usize>> {
    let (mut chunks, mut start, mut size) = (Vec::new(), 0, 0);
    for i in 0..texts.len() {
        size += texts.size(i);
        if size >= chunk || i + 1 == texts.len() {
            chunks.push(start..i + 1);
            (start, size) = (i + 1, 0);
        }
    }
    chunks
}

fn roomy<T>(len: usize) -> Vec<T> {
    let mut room = Vec::<T>::with_capacity(len);
    ask_for_huge_pages(room.spare_capacity_mut());
    room
}

/// Puts the chunks of all threads in the order of the texts.
fn join<T: Id>(parts: &[Part<T>], texts: usize) -> (Vec<T>, Vec<u64>) {
    let mut jobs: Vec<_> = parts.iter().flat_map(|part| (0..part.jobs.len()).map(move |j| (part, j))).collect();
    jobs.sort_unstable_by_key(|(part, j)| part.jobs[*j].0);
    let mut ids = roomy(parts.iter().map(|part| part.ids.len()).sum());
    let mut offsets = Vec::with_capacity(texts + 1);
    offsets.push(0);
    for (part, j) in jobs {
        let (_, first_id, first_end) = part.jobs[j];
        let (_, last_id, last_end) = part.jobs.get(j + 1).copied().unwrap_or((0, part.ids.len(), part.ends.len()));
        let base = ids.len();
        ids.extend_from_slice(&part.ids[first_id..last_id]);
        offsets.extend(part.ends[first_end..last_end].iter().map(|&end| (base + end - first_id) as u64));
    }
    (ids, offsets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::DEFAULT_PATTERN;
    use crate::testing::{naive_merge, naive_train, Random};

    fn splitter() -> Splitter {
        Splitter::new(DEFAULT_PATTERN).unwrap()
    }

    #[test]
    fn a_batch_is_its_texts_one_by_one_however_many_threads() {
        let seed = 0xE4C;
        println!("seed {seed}");
        let mut random = Random(seed);
        let texts: Vec<String> = (0..400).map(|i| random.text(i % 300)).collect();
        let words: Vec<&str> = texts[..40].iter().flat_map(|text| splitter().pieces(text).unwrap()).collect();
        let merges = naive_train(&words, 300);
        let encoder = Encoder::new(Vocabulary::from_merges(&merges).unwrap(), splitter());
        let mut expected = (Vec::new(), vec![0]);
        for text in &texts {
            expected.0.push(9);
            for piece in splitter().pieces(text).unwrap() {
                expected.0.extend(naive_merge(piece.as_bytes(), &merges));
            }
            expected.1.push(expected.0.len() as u64);
        }
        // Small chunks, so that every thread gets several.
        for threads in [1, 2, 5] {
            for chunk in [1, 1000, CHUNK] {
                assert_eq!(encoder.encode_chunks::<u32, _>(&texts[..], Some(9), threads, chunk).unwrap(), expected);
            }
        }
        for (text, ends) in texts.iter().zip(expected.1.windows(2)) {
            let ids = &expected.0[ends[0] as usize + 1..ends[1] as usize];
            assert_eq!(encoder.encode::<u32>(text).unwrap(), ids);
        }
    }

    #[test]
    fn no_texts_and_empty_texts() {
        let encoder = Encoder::new(Vocabulary::from_merges(&[]).unwrap(), splitter());
        let none: [&str; 0] = [];
        assert_eq!(encoder.encode_batch::<u16, _>(&none[..], None, 4).unwrap(), (vec![], vec![0]));
        assert_eq!(encoder.encode_batch::<u16, _>(&["", "a", ""][..], None, 4).unwrap(), (vec![97], vec![0, 0, 1, 1]));
    }
}
