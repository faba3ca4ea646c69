//! A hash map from words to 16-byte values: the trainer counts in it, the encoder remembers in it.
//!
//! Words of up to 15 bytes (nearly all) are packed into a u128 with their length, so that a look-up is one load, one
//! multiplication and one comparison in a slot of 32 bytes that never straddles a cache line. Longer words are
//! compared in an arena. Linear probing; nothing is ever removed, so a probe ends at the first free slot.

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::mem::MaybeUninit;

/// Longest word that is packed.
pub const SHORT: usize = 15;

/// Values are plain bits: a slot of zeros is a free slot.
pub trait Value: Copy + Default {}
impl Value for u64 {}
impl Value for [u32; 4] {}

/// Packs a word of 1..=15 bytes at the start of `from`, which must be at least 16 bytes long.
#[inline(always)]
fn pack(from: &[u8], len: usize) -> u128 {
    debug_assert!((1..=SHORT).contains(&len));
    let bytes = u128::from_le_bytes(from[..16].try_into().expect("16 bytes"));
    bytes & (u128::MAX >> (128 - 8 * len)) | (len as u128) << 120
}

/// The same at the end of a text, where fewer than 16 bytes are left.
fn pack_tail(word: &[u8]) -> u128 {
    let mut padded = [0; 16];
    padded[..word.len()].copy_from_slice(word);
    pack(&padded, word.len())
}

/// The packed word text[start..end]; 0 for one too long to pack.
#[inline(always)]
fn pack_word(text: &[u8], start: usize, end: usize) -> u128 {
    let len = end - start;
    if len > SHORT {
        return 0;
    }
    match text.get(start..start + 16) {
        Some(sixteen) => pack(sixteen, len),
        None => pack_tail(&text[start..end]),
    }
}

/// Bytes of a packed word.
fn unpack(key: u128) -> ([u8; 16], usize) {
    (key.to_le_bytes(), (key >> 120) as usize)
}

#[inline(always)]
fn hash(key: u128) -> u64 {
    mix(key as u64 ^ 0x9E37_79B9_7F4A_7C15, (key >> 64) as u64 ^ 0xD1B5_4A32_D192_ED03)
}

#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

fn hash_long(word: &[u8]) -> u64 {
    let (eights, rest) = word.split_at(word.len() & !7);
    let mut state = word.len() as u64 ^ 0x2545_F491_4F6C_DD1D;
    for eight in eights.chunks_exact(8) {
        state = mix(state ^ u64::from_le_bytes(eight.try_into().expect("8 bytes")), 0x9E37_79B9_7F4A_7C15);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(state ^ u64::from_le_bytes(last), 0xD1B5_4A32_D192_ED03)
}

#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Slot<V> {
    key: u128, // 0: free
    value: V,
}

/// The slots of one map: a power of two of them, zeroed, in huge pages where the system has them.
struct Slots<V> {
    at: *mut Slot<V>,
    len: usize,
}

// SAFETY: Slots owns its memory like a Box<[Slot<V>]> does.
unsafe impl<V: Send> Send for Slots<V> {}
unsafe impl<V: Sync> Sync for Slots<V> {}

const HUGE_PAGE: usize = 2 << 20;

/// Large memory read at random is bound by address translation on pages of 4 kB.
fn ask_for_huge_pages<T>(room: &mut [MaybeUninit<T>]) {
    #[cfg(target_os = "linux")]
    if size_of_val(room) >= HUGE_PAGE {
        let at = room.as_mut_ptr() as *mut u8;
        let skip = at.align_offset(HUGE_PAGE).min(size_of_val(room));
        // SAFETY: advice on memory that is borrowed here; it changes no content, and a refusal does no harm.
        unsafe { libc::madvise(at.add(skip).cast(), size_of_val(room) - skip, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = room;
}

impl<V> Slots<V> {
    fn layout(len: usize) -> Layout {
        let bytes = len * size_of::<Slot<V>>();
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { 64 };
        Layout::from_size_align(bytes, align).expect("a table that fits in memory")
    }

    fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc(layout) };
        if at.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: freshly allocated, that long.
        let room = unsafe { std::slice::from_raw_parts_mut(at as *mut MaybeUninit<u8>, layout.size()) };
        ask_for_huge_pages(room); // before the first touch, or it comes too late
        room.fill(MaybeUninit::new(0)); // a slot of zeros is valid for every V used: plain integers
        Slots { at: at as *mut Slot<V>, len }
    }

    #[inline(always)]
    fn slice(&self) -> &[Slot<V>] {
        // SAFETY: `at` points to `len` initialised slots owned by self.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    #[inline(always)]
    fn slice_mut(&mut self) -> &mut [Slot<V>] {
        // SAFETY: as above, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl<V> Drop for Slots<V> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.at as *mut u8, Self::layout(self.len)) }
    }
}

struct Table<V> {
    slots: Slots<V>,
    used: usize,
}

impl<V: Value> Table<V> {
    fn new(slots: usize) -> Self {
        Table { slots: Slots::new(slots.next_power_of_two()), used: 0 }
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.slots.len - 1)
    }

    #[inline(always)]
    fn prefetch(&self, hash: u64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults.
        unsafe {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            _mm_prefetch(self.slots.at.add(self.home(hash)) as *const i8, _MM_HINT_T0);
        }
    }

    /// The slot that holds the key, or the free one where it belongs.
    #[inline(always)]
    fn find(&self, hash: u64, is_it: impl Fn(u128) -> bool) -> usize {
        let slots = self.slots.slice();
        let mut at = self.home(hash);
        loop {
            // SAFETY: `at` is masked to the table's length, a power of two.
            let key = unsafe { slots.get_unchecked(at) }.key;
            if key == 0 || is_it(key) {
                return at;
            }
            at = (at + 1) & (slots.len() - 1);
        }
    }

    /// The value of a packed word.
    #[inline(always)]
    fn get(&self, key: u128, hash: u64) -> Option<&V> {
        let at = self.find(hash, |k| k == key);
        // SAFETY: `find` returns an index into the table.
        let slot = unsafe { self.slots.slice().get_unchecked(at) };
        (slot.key != 0).then_some(&slot.value)
    }

    /// Doubles the table when it is three quarters full.
    #[inline(always)]
    fn make_room(&mut self, hash_of: impl Fn(u128) -> u64) {
        if self.used * 4 >= self.slots.len * 3 {
            self.grow(hash_of);
        }
    }

    fn clear(&mut self) {
        self.slots.slice_mut().fill(Slot { key: 0, value: V::default() });
        self.used = 0;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, hash_of: impl Fn(u128) -> u64) {
        let mut larger = Table { slots: Slots::new(self.slots.len * 2), used: self.used };
        for slot in self.slots.slice().iter().filter(|slot| slot.key != 0) {
            let at = larger.find(hash_of(slot.key), |_| false);
            larger.slots.slice_mut()[at] = *slot;
        }
        *self = larger;
    }
}

/// Key of a long word's slot: 32 bits of its hash, its place in the arena, its length.
fn long_key(hash: u64, start: usize, len: usize) -> u128 {
    (hash >> 32) as u128 | (start as u128) << 32 | (len as u128) << 88
}

fn long_span(key: u128) -> std::ops::Range<usize> {
    let start = (key >> 32) as usize & ((1 << 56) - 1);
    start..start + (key >> 88) as usize
}

pub struct WordMap<V: Value> {
    short: Table<V>,
    long: Table<V>,
    arena: Vec<u8>,
}

impl<V: Value> WordMap<V> {
    pub fn new(slots: usize) -> Self {
        WordMap { short: Table::new(slots.max(16)), long: Table::new(16), arena: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.short.used + self.long.used
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory in use.
    pub fn bytes(&self) -> usize {
        (self.short.slots.len + self.long.slots.len) * size_of::<Slot<V>>() + self.arena.capacity()
    }

    /// Bytes of the words alone, without free room.
    pub fn bytes_of_words(&self) -> usize {
        self.len() * size_of::<Slot<V>>() + self.arena.len()
    }

    /// Forgets all words, and keeps the memory.
    pub fn clear(&mut self) {
        self.short.clear();
        self.long.clear();
        self.arena.clear();
    }

    /// The keys, with their hashes, of the words of a text from `start` on that end at `ends`; 0 for a long word.
    /// Their slots are on the way when this returns.
    #[inline(always)]
    pub fn prepare(&self, text: &[u8], start: usize, ends: &[u32], keys: &mut [(u128, u64)]) {
        let mut start = start;
        for (&end, key) in ends.iter().zip(keys) {
            let packed = pack_word(text, start, end as usize);
            *key = (packed, hash(packed));
            self.short.prefetch(key.1);
            start = end as usize;
        }
    }

    /// The value of a packed word; None for the key 0.
    #[inline(always)]
    pub fn get(&self, key: u128, hash: u64) -> Option<&V> {
        self.short.get(key, hash)
    }

    /// The value of a packed word, made with its default where the word is new.
    #[inline(always)]
    pub fn short_entry(&mut self, key: u128, hash_of_key: u64) -> &mut V {
        self.short.make_room(hash);
        let at = self.short.find(hash_of_key, |k| k == key);
        let slot = &mut self.short.slots.slice_mut()[at];
        if slot.key == 0 {
            slot.key = key;
            self.short.used += 1;
        }
        &mut slot.value
    }

    fn find_long(&self, word: &[u8], hash: u64) -> usize {
        let tag = (hash >> 32) as u32;
        self.long.find(hash, |key| key as u32 == tag && self.arena[long_span(key)] == *word)
    }

    pub fn get_long(&self, word: &[u8]) -> Option<&V> {
        let slot = &self.long.slots.slice()[self.find_long(word, hash_long(word))];
        (slot.key != 0).then_some(&slot.value)
    }

    pub fn long_entry(&mut self, word: &[u8]) -> &mut V {
        let arena = &self.arena;
        self.long.make_room(|key| hash_long(&arena[long_span(key)]));
        let hash = hash_long(word);
        let at = self.find_long(word, hash);
        let slot = &mut self.long.slots.slice_mut()[at];
        if slot.key == 0 {
            slot.key = long_key(hash, self.arena.len(), word.len());
            self.arena.extend_from_slice(word);
            self.long.used += 1;
        }
        &mut slot.value
    }

    /// The value of any word; for places where speed does not matter.
    pub fn entry(&mut self, word: &[u8]) -> &mut V {
        if word.len() > SHORT {
            return self.long_entry(word);
        }
        let key = pack_tail(word);
        self.short_entry(key, hash(key))
    }

    /// The value of any word, if it has one.
    #[cfg(test)]
    pub fn find(&self, word: &[u8]) -> Option<&V> {
        if word.len() > SHORT {
            return self.get_long(word);
        }
        let key = pack_tail(word);
        self.get(key, hash(key))
    }

    /// Every word with its value, in no particular order.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], V)) {
        for slot in self.short.slots.slice().iter().filter(|slot| slot.key != 0) {
            let (bytes, len) = unpack(slot.key);
            visit(&bytes[..len], slot.value);
        }
        for slot in self.long.slots.slice().iter().filter(|slot| slot.key != 0) {
            visit(&self.arena[long_span(slot.key)], slot.value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use std::collections::HashMap;

    #[test]
    fn it_counts_as_the_standard_map_does() {
        let seed = 0x30D5;
        println!("seed {seed}");
        let mut random = Random(seed);
        let (mut map, mut standard) = (WordMap::<u64>::new(1), HashMap::<Vec<u8>, u64>::new());
        for _ in 0..50_000 {
            let len = 1 + random.below(20);
            let word: Vec<u8> = (0..len).map(|_| [0, b'a', b'b', 0xFF][random.below(4)]).collect();
            *map.entry(&word) += 1;
            *standard.entry(word).or_default() += 1;
        }
        assert_eq!(map.len(), standard.len());
        for (word, count) in &standard {
            assert_eq!(map.find(word), Some(count));
        }
        assert_eq!((map.find(b"c"), map.find(&[b'c'; 40])), (None, None));
        let mut seen = HashMap::new();
        map.for_each(|word, count| assert!(seen.insert(word.to_vec(), count).is_none()));
        assert_eq!(seen, standard);
    }

    #[test]
    fn keys_are_the_same_wherever_a_word_stands() {
        let text = b"abcdefghijklmnopqrstuvwxyz";
        for (start, len) in [(0, 1), (0, 15), (3, 7), (20, 6), (25, 1)] {
            let word = &text[start..start + len];
            assert_eq!(pack_word(text, start, start + len), pack_tail(word));
            let (bytes, unpacked) = unpack(pack_tail(word));
            assert_eq!(&bytes[..unpacked], word);
        }
        assert_eq!(pack_word(text, 0, 16), 0);
    }
}
