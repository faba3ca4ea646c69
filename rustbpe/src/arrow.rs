//! String arrays through the Arrow C data interface: read where they lie, nothing copied.

use crate::encode::Texts;
use crate::{Error, Result};
use std::ffi::{c_char, c_void, CStr};

/// The interface's two structs (see the Arrow specification), with the fields behind those used here left out of name.
#[repr(C)]
pub struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    children: i64,
    child: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private: *mut c_void,
}

#[repr(C)]
pub struct ArrowArray {
    length: i64,
    null_count: i64, // -1: not counted
    offset: i64,
    buffer_count: i64,
    children: i64,
    buffers: *const *const c_void, // validity bits, offsets, bytes
    child: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private: *mut c_void,
}

enum Offsets {
    Small(*const i32),
    Large(*const i64),
}

/// A borrowed array of type `string` or `large_string` without nulls.
pub struct StringArray {
    len: usize,
    offsets: Offsets, // from the array's first string on
    bytes: *const u8,
}

// SAFETY: only reads, from buffers that Arrow keeps immutable.
unsafe impl Send for StringArray {}
unsafe impl Sync for StringArray {}

impl StringArray {
    /// # Safety
    /// Both pointers come from one producer of the interface, are not released, and outlive what is returned.
    pub unsafe fn new(schema: *const ArrowSchema, array: *const ArrowArray) -> Result<Self> {
        let (schema, array) = (&*schema, &*array);
        if schema.release.is_none() || array.release.is_none() {
            return Err(Error::Input("the Arrow array has already been released".into()));
        }
        let format = CStr::from_ptr(schema.format).to_string_lossy();
        if !matches!(&*format, "u" | "U") || !schema.dictionary.is_null() {
            return Err(Error::Input(format!(
                "the Arrow array has the type with format {format:?}, not string or large_string; \
                 cast it, e.g. array.cast('string')"
            )));
        }
        if array.length < 0 || array.offset < 0 || array.buffer_count != 3 || array.buffers.is_null() {
            return Err(Error::Input("the Arrow array is not laid out as a string array; validate it".into()));
        }
        let (len, first) = (array.length as usize, array.offset as usize);
        let buffer = |i| *array.buffers.add(i);
        let valid = buffer(0) as *const u8;
        if array.null_count != 0 && !valid.is_null() {
            let is_null = |i: &usize| *valid.add((first + i) / 8) >> ((first + i) % 8) & 1 == 0;
            if let Some(i) = (0..len).find(is_null) {
                let message =
                    format!("element {i} of the Arrow array is null; drop such rows first, e.g. array.drop_null()");
                return Err(Error::Input(message));
            }
        }
        let offsets = match &*format {
            "u" => Offsets::Small((buffer(1) as *const i32).wrapping_add(first)),
            _ => Offsets::Large((buffer(1) as *const i64).wrapping_add(first)),
        };
        Ok(StringArray { len, offsets, bytes: buffer(2) as *const u8 })
    }

    fn span(&self, i: usize) -> (i64, i64) {
        assert!(i < self.len);
        // SAFETY: there is one offset more than strings.
        unsafe {
            match self.offsets {
                Offsets::Small(at) => (*at.add(i) as i64, *at.add(i + 1) as i64),
                Offsets::Large(at) => (*at.add(i), *at.add(i + 1)),
            }
        }
    }
}

impl Texts for StringArray {
    fn len(&self) -> usize {
        self.len
    }

    fn size(&self, i: usize) -> usize {
        let (start, end) = self.span(i);
        end.saturating_sub(start).max(0) as usize
    }

    fn get(&self, i: usize) -> Result<&str> {
        let (start, end) = self.span(i);
        if start == end {
            return Ok("");
        }
        if start < 0 || end < start {
            return Err(Error::Input(format!("element {i} of the Arrow array has broken offsets; validate the array")));
        }
        // SAFETY: the offsets of a valid array lie within its bytes.
        let bytes = unsafe { std::slice::from_raw_parts(self.bytes.add(start as usize), (end - start) as usize) };
        simdutf8::compat::from_utf8(bytes).map_err(|e| {
            let at = e.valid_up_to();
            Error::Input(format!(
                "element {i} of the Arrow array is not valid UTF-8 at its byte {at}; repair or drop the row"
            ))
        })
    }
}
