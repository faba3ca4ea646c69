//! Text → ids, for one vocabulary.
//!
//! A text is split into words (`split`), a word's ids are remembered in a map (`words`), and only a word not seen
//! before is merged (`vocab`). Each thread has a map of its own and keeps it for the next call.

use crate::split::{Splitter, MAX_TEXT};
use crate::vocab::Vocabulary;
use crate::words::{WordMap, SHORT};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// Words handled at once: keys first, so that their slots are on the way when they are read.
const WORDS: usize = 256;
/// Longer words are merged each time: they hardly ever come back.
const LONGEST_REMEMBERED: usize = 256;
/// Bytes a thread may remember; beyond that it starts afresh.
const MAX_REMEMBERED: usize = 128 << 20;
/// Bytes of words, or of the text if it is longer, beyond which a thread that encodes single texts forgets all words. It
/// keeps the memory: a server that encodes short texts for months would grow if it were taken and given back.
const REMEMBERED_OF_SINGLE: usize = 4 << 20;
/// Bytes of memory, or of the text, beyond which it is given back.
const KEPT_OF_SINGLE: usize = 16 << 20;
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

impl<T: AsRef<str> + Sync> Texts for Vec<T> {
    fn len(&self) -> usize {
        Vec::len(self)
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
        self.words.bytes() + size_of::<u32>() * self.spill.capacity()
    }

    fn bytes_of_words(&self) -> usize {
        self.words.bytes_of_words() + size_of::<u32>() * self.spill.len()
    }

    /// Forgets all words, and keeps the memory.
    fn clear(&mut self) {
        self.words.clear();
        self.spill.clear();
    }
}

/// Cores that the process may use.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |number| number.get()))
}

pub struct Encoder {
    splitter: Splitter,
    pub vocabulary: Vocabulary,
    caches: Mutex<Vec<Cache>>,
    caches_of_single: Mutex<Vec<Cache>>,
}

impl Encoder {
    pub fn new(vocabulary: Vocabulary, splitter: Splitter) -> Self {
        Encoder { splitter, vocabulary, caches: Mutex::new(Vec::new()), caches_of_single: Mutex::new(Vec::new()) }
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
            if cache.bytes() > MAX_REMEMBERED {
                *cache = Cache::for_text(bytes.len());
            }
            cache.words.prepare(bytes, start, &ends[..n], &mut keys);
            // A token is at least one byte long, and a remembered word is written as INLINE ids.
            out.reserve(ends[n - 1] as usize - start + INLINE);
            for (&end, key) in ends[..n].iter().zip(&keys) {
                let value = match cache.words.get(key.0, key.1) {
                    Some(value) => *value,
                    None => self.look_up(&bytes[start..end as usize], *key, cache),
                };
                let size = end as usize - start;
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
                    if size > LONGEST_REMEMBERED {
                        cache.spill.truncate(value[1] as usize);
                    }
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
        cache.scratch.clear();
        self.vocabulary.encode_word(word, &mut cache.scratch);
        let value = remembered(&cache.scratch, &mut cache.spill);
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
        self.caches.lock().expect("no thread panics while it holds this").push(cache);
    }

    /// Ids of one text.
    pub fn encode<T: Id>(&self, text: &str) -> Result<Vec<T>> {
        let caches = || self.caches_of_single.lock().expect("no thread panics while it holds this");
        let kept = caches().pop();
        let mut cache = kept.unwrap_or_else(|| Cache::for_text(text.len()));
        let mut ids = Vec::new();
        let outcome = self.encode_into(text, &mut ids, &mut cache);
        if cache.bytes_of_words() > REMEMBERED_OF_SINGLE.max(text.len()) {
            cache.clear();
        }
        let mut kept = caches();
        // More threads than cores would fill theirs seldom, and for hours.
        if kept.len() < cores() && cache.bytes() <= KEPT_OF_SINGLE.max(text.len()) {
            kept.push(cache);
        }
        outcome.map(|()| ids)
    }

    /// Ids of all texts one after another, and where those of each begin (with a last offset for the end).
    pub fn encode_batch<T: Id>(
        &self,
        texts: &dyn Texts,
        prepend: Option<u32>,
        threads: usize,
    ) -> Result<(Vec<T>, Vec<u64>)> {
        self.encode_chunks(texts, prepend, threads, CHUNK)
    }

    fn encode_chunks<T: Id>(
        &self,
        texts: &dyn Texts,
        prepend: Option<u32>,
        threads: usize,
        chunk: usize,
    ) -> Result<(Vec<T>, Vec<u64>)> {
        let jobs = chunks(texts, chunk);
        let threads = threads.clamp(1, jobs.len().max(1));
        let size: usize = (0..texts.len()).map(|i| texts.size(i)).sum();
        let encode = |job: &Range<usize>, ids: &mut Vec<T>, ends: &mut Vec<u64>, cache: &mut Cache| -> Result<()> {
            for i in job.clone() {
                ids.extend(prepend.map(T::from_u32));
                self.encode_into(texts.get(i)?, ids, cache)?;
                ends.push(ids.len() as u64);
            }
            Ok(())
        };
        let (mut ids, mut offsets) = (Vec::with_capacity(size / 3), Vec::with_capacity(texts.len() + 1));
        offsets.push(0);
        if threads == 1 {
            let mut cache = self.take_cache(size);
            let outcome = encode(&(0..texts.len()), &mut ids, &mut offsets, &mut cache);
            self.keep_cache(cache);
            return outcome.map(|()| (ids, offsets));
        }
        let (next, output) = (AtomicUsize::new(0), Mutex::new(Output::new(ids, offsets)));
        let work = || -> Result<()> {
            let mut cache = self.take_cache(size / threads);
            let (mut ids, mut ends) = (Vec::new(), Vec::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(number) else { break };
                encode(job, &mut ids, &mut ends, &mut cache)?;
                (ids, ends) = output.lock().expect("no thread panics while it holds this").take_in(number, ids, ends);
            }
            self.keep_cache(cache);
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("workers do not panic"))
        })?;
        let output = output.into_inner().expect("no thread panicked");
        Ok((output.ids, output.offsets))
    }
}

/// The chunks of all threads, put in order as they come: the few that are early wait, and their arrays are used again,
/// so that little memory is touched beside the result itself.
struct Output<T> {
    ids: Vec<T>,
    offsets: Vec<u64>,
    next: usize,                                // number of the first chunk that is not in
    early: BTreeMap<usize, (Vec<T>, Vec<u64>)>, // ids of a chunk, and where each of its texts ends in them
    spare: Vec<(Vec<T>, Vec<u64>)>,
}

impl<T: Id> Output<T> {
    fn new(ids: Vec<T>, offsets: Vec<u64>) -> Self {
        Output { ids, offsets, next: 0, early: BTreeMap::new(), spare: Vec::new() }
    }

    /// Takes a chunk; gives back empty arrays for the next one.
    fn take_in(&mut self, number: usize, ids: Vec<T>, ends: Vec<u64>) -> (Vec<T>, Vec<u64>) {
        self.early.insert(number, (ids, ends));
        while let Some((mut ids, mut ends)) = self.early.remove(&self.next) {
            let base = self.ids.len() as u64;
            self.offsets.extend(ends.drain(..).map(|end| base + end));
            self.ids.append(&mut ids);
            self.spare.push((ids, ends));
            self.next += 1;
        }
        self.spare.pop().unwrap_or_default()
    }
}

/// Neighbouring texts, about `chunk` bytes together.
fn chunks(texts: &dyn Texts, chunk: usize) -> Vec<Range<usize>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::DEFAULT_PATTERN;
    use crate::testing::{naive_merge, naive_train, Random};

    fn splitter() -> Splitter {
        Splitter::new(DEFAULT_PATTERN).unwrap()
    }

    #[test]
    fn single_texts_with_ever_new_words_take_little_memory() {
        let mut random = Random(7);
        let encoder = Encoder::new(Vocabulary::from_merges(&[]).unwrap(), splitter());
        let mut sizes: Vec<usize> = Vec::new();
        for number in 0..3000 {
            let text: String = (0..200).map(|word| format!(" {}{}", random.text(6), number * 200 + word)).collect();
            let ids: Vec<u32> = encoder.encode(&text).unwrap();
            assert_eq!(ids.len(), text.len());
            let caches = encoder.caches_of_single.lock().unwrap();
            let words: usize = caches.iter().map(Cache::bytes_of_words).sum();
            assert!(words <= REMEMBERED_OF_SINGLE, "{words}");
            sizes.push(caches.iter().map(Cache::bytes).sum());
        }
        // What was taken stays, and no more is.
        assert!(sizes.windows(2).all(|pair| pair[0] <= pair[1]), "{sizes:?}");
        assert!(
            sizes[1500] == sizes[2999] && sizes[2999] <= 4 * REMEMBERED_OF_SINGLE,
            "{} {}",
            sizes[1500],
            sizes[2999]
        );
        // One long text takes more, and gives it back.
        let text: String = (0..400_000).map(|number| format!(" {number}x{number}")).collect();
        let _: Vec<u32> = encoder.encode(&text).unwrap();
        let after: usize = encoder.caches_of_single.lock().unwrap().iter().map(Cache::bytes).sum();
        assert!(after <= KEPT_OF_SINGLE.max(text.len()), "{after}");
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
                assert_eq!(encoder.encode_chunks::<u32>(&texts, Some(9), threads, chunk).unwrap(), expected);
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
        let none: Vec<&str> = vec![];
        assert_eq!(encoder.encode_batch::<u16>(&none, None, 4).unwrap(), (vec![], vec![0]));
        assert_eq!(encoder.encode_batch::<u16>(&vec!["", "a", ""], None, 4).unwrap(), (vec![97], vec![0, 0, 1, 1]));
    }
}
