//! The Python module. Errors become exceptions with a sentence, and the GIL is released while the crate works.

mod train;

use crate::arrow::{ArrowArray, ArrowSchema, StringArray};
use crate::encode::{Encoder, Texts};
use crate::split::{Splitter, DEFAULT_PATTERN};
use crate::vocab::{Vocabulary, MAX_VOCAB};
use crate::Error;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyString, PyTuple};
use std::collections::{HashMap, HashSet};

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        match error {
            Error::Interrupted => PyKeyboardInterrupt::new_err(()),
            _ => PyValueError::new_err(error.to_string()),
        }
    }
}

/// Threads to use: all cores for 0, and never more than make sense.
fn thread_count(threads: i64) -> PyResult<usize> {
    /// More than any machine has; each costs memory.
    const MOST: usize = 256;
    match usize::try_from(threads) {
        Ok(0) => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
        Ok(threads) => Ok(threads.min(MOST)),
        Err(_) => Err(PyValueError::new_err(format!("threads is {threads}; it must be 0 (all cores) or more"))),
    }
}

/// An array of whole numbers from whatever holds some; `what` names it in the error.
fn whole_numbers<'py>(object: &Bound<'py, PyAny>, what: &str) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = object.py();
    let refuse = || PyTypeError::new_err(format!("{what} must be whole numbers of at most 63 bits"));
    let array = py.import("numpy")?.call_method1("asarray", (object,)).map_err(|_| refuse())?;
    let (kind, size): (String, usize) =
        (array.getattr("dtype")?.getattr("kind")?.extract()?, array.getattr("size")?.extract()?);
    if size > 0 && kind != "i" && kind != "u" {
        return Err(refuse());
    }
    Ok(array.call_method1("astype", ("int64",))?.cast_into()?)
}

/// UTF-8 of a str; `which` names it in the error.
fn utf8(text: &Bound<'_, PyString>, which: impl FnOnce() -> String) -> PyResult<PyBackedStr> {
    PyBackedStr::try_from(text.clone()).map_err(|_| {
        let which = which();
        PyValueError::new_err(format!(
            "{which} holds a lone surrogate (half of a character), which is not text; \
             repair it, e.g. text.encode('utf-8', 'replace').decode()"
        ))
    })
}

/// An Arrow array, kept alive by the capsules that own it.
struct Borrowed {
    strings: StringArray,
    _owners: (Py<PyAny>, Py<PyAny>),
}

/// The Arrow array behind an object, or None when it is none.
fn arrow_strings(object: &Bound<'_, PyAny>) -> PyResult<Option<Borrowed>> {
    if !object.hasattr("__arrow_c_array__")? {
        return Ok(None);
    }
    let pair = object.call_method0("__arrow_c_array__")?;
    let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) = pair.extract()?;
    let schema_at = schema.pointer_checked(Some(c"arrow_schema"))?.as_ptr() as *const ArrowSchema;
    let array_at = array.pointer_checked(Some(c"arrow_array"))?.as_ptr() as *const ArrowArray;
    // SAFETY: the protocol's capsules, checked by name; they are kept as long as the array is used.
    let strings = unsafe { StringArray::new(schema_at, array_at) }?;
    Ok(Some(Borrowed { strings, _owners: (schema.into_any().unbind(), array.into_any().unbind()) }))
}

#[pyclass(frozen, module = "rustbpe")]
struct Tokenizer {
    encoder: Encoder,
    pattern: String,
    merges: Option<Vec<(u32, u32)>>, // None: given by ranks
    specials: Vec<(String, u32)>,
    vocab_size: usize,
}

impl Tokenizer {
    fn build(
        vocabulary: Vocabulary,
        merges: Option<Vec<(u32, u32)>>,
        specials: Vec<(String, u32)>,
        pattern: String,
    ) -> PyResult<Self> {
        let tokens = vocabulary.len();
        let (mut names, mut ids) = (HashSet::new(), HashSet::new());
        for (name, id) in &specials {
            let problem = match (*id as usize) < tokens {
                _ if name.is_empty() => "has no name",
                true => "has the id of an ordinary token",
                false if *id as usize >= MAX_VOCAB => "has an id beyond the largest vocabulary",
                false if !names.insert(name) || !ids.insert(id) => "is given twice, or shares its id with another",
                false => continue,
            };
            return Err(PyValueError::new_err(format!("special token {name:?} (id {id}) {problem}")));
        }
        let vocab_size = specials.iter().map(|(_, id)| *id as usize + 1).max().unwrap_or(0).max(tokens);
        let encoder = Encoder::new(vocabulary, Splitter::new(&pattern)?);
        Ok(Tokenizer { encoder, pattern, merges, specials, vocab_size })
    }

    fn fits_u16(&self) -> bool {
        self.vocab_size <= 1 << 16
    }

    /// Bytes of a token; a special token's are those of its name.
    fn bytes_of(&self, id: i64) -> PyResult<&[u8]> {
        if (0..self.encoder.vocabulary.len() as i64).contains(&id) {
            return Ok(self.encoder.vocabulary.token(id as u32));
        }
        let special = self.specials.iter().find(|special| special.1 as i64 == id);
        special.map(|(name, _)| name.as_bytes()).ok_or_else(|| {
            PyValueError::new_err(format!("id {id} is not in the vocabulary of {} tokens", self.vocab_size))
        })
    }

    fn all_bytes(&self, ids: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
        let ids = whole_numbers(ids, "ids")?;
        let ids = ids.cast::<PyArray1<i64>>().map_err(|_| PyValueError::new_err("ids must be one row, not a table"))?;
        let mut bytes = Vec::new();
        for &id in ids.readonly().as_array() {
            bytes.extend_from_slice(self.bytes_of(id)?);
        }
        Ok(bytes)
    }

    fn encode_texts<'py>(
        &self,
        py: Python<'py>,
        texts: &dyn Texts,
        prepend: Option<u32>,
        threads: i64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        if let Some(id) = prepend {
            self.bytes_of(id.into())?;
        }
        let threads = thread_count(threads)?;
        if self.fits_u16() {
            let (ids, offsets) = py.detach(|| self.encoder.encode_batch::<u16>(texts, prepend, threads))?;
            (ids.into_pyarray(py), offsets.into_pyarray(py)).into_pyobject(py)
        } else {
            let (ids, offsets) = py.detach(|| self.encoder.encode_batch::<u32>(texts, prepend, threads))?;
            (ids.into_pyarray(py), offsets.into_pyarray(py)).into_pyobject(py)
        }
    }
}

#[pymethods]
impl Tokenizer {
    #[new]
    #[pyo3(signature = (merges, special_tokens=vec![], pattern=DEFAULT_PATTERN.to_string()))]
    fn new(merges: &Bound<'_, PyAny>, special_tokens: Vec<String>, pattern: String) -> PyResult<Self> {
        let table = whole_numbers(merges, "merges")?;
        if table.len() > 0 && (table.ndim() != 2 || table.shape()[1] != 2) {
            return Err(PyValueError::new_err(format!(
                "merges must be rows of two ids, not of shape {:?}",
                table.shape()
            )));
        }
        let table = table.call_method1("reshape", (-1, 2))?.cast_into::<PyArray2<i64>>()?;
        // An id out of range reads as one that is not known yet.
        let id = |id: i64| u32::try_from(id).unwrap_or(u32::MAX);
        let merges: Vec<_> =
            table.readonly().as_array().rows().into_iter().map(|row| (id(row[0]), id(row[1]))).collect();
        let vocabulary = Vocabulary::from_merges(&merges)?;
        let first = vocabulary.len() as u32;
        let specials = special_tokens.into_iter().zip(first..).collect();
        Self::build(vocabulary, Some(merges), specials, pattern)
    }

    #[staticmethod]
    #[pyo3(signature = (tokens, special_tokens=None, pattern=DEFAULT_PATTERN.to_string()))]
    fn from_ranks(
        tokens: Vec<PyBackedBytes>,
        special_tokens: Option<HashMap<String, u32>>,
        pattern: String,
    ) -> PyResult<Self> {
        let tokens: Vec<Vec<u8>> = tokens.iter().map(|token| token.to_vec()).collect();
        let mut specials: Vec<_> = special_tokens.unwrap_or_default().into_iter().collect();
        specials.sort_by_key(|special| special.1);
        Self::build(Vocabulary::from_ranks(&tokens)?, None, specials, pattern)
    }

    fn encode<'py>(&self, text: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        let py = text.py();
        let text = utf8(text, || "the text".into())?;
        Ok(match self.fits_u16() {
            true => py.detach(|| self.encoder.encode::<u16>(&text))?.into_pyarray(py).into_any(),
            false => py.detach(|| self.encoder.encode::<u32>(&text))?.into_pyarray(py).into_any(),
        })
    }

    #[pyo3(signature = (texts, prepend=None, threads=0))]
    fn encode_batch<'py>(
        &self,
        texts: &Bound<'py, PyAny>,
        prepend: Option<u32>,
        threads: i64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        if texts.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("texts is a single str; pass a list of texts, or call encode"));
        }
        let mut batch = Vec::new();
        for (i, text) in texts.try_iter()?.enumerate() {
            let text = text?;
            let Ok(text) = text.cast::<PyString>() else {
                return Err(PyTypeError::new_err(format!("text {i} is a {}, not a str", text.get_type().name()?)));
            };
            batch.push(utf8(text, || format!("text {i}"))?);
        }
        self.encode_texts(texts.py(), &batch, prepend, threads)
    }

    #[pyo3(signature = (array, prepend=None, threads=0))]
    fn encode_arrow<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        prepend: Option<u32>,
        threads: i64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let Some(borrowed) = arrow_strings(array)? else {
            let kind = array.get_type().name()?;
            let message = format!("a {kind} is not an Arrow array (it has no __arrow_c_array__); for a chunked one pass each of its chunks");
            return Err(PyTypeError::new_err(message));
        };
        self.encode_texts(array.py(), &borrowed.strings, prepend, threads)
    }

    fn decode(&self, ids: &Bound<'_, PyAny>) -> PyResult<String> {
        Ok(String::from_utf8_lossy(&self.all_bytes(ids)?).into_owned())
    }

    fn decode_bytes<'py>(&self, ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(ids.py(), &self.all_bytes(ids)?))
    }

    fn token_bytes<'py>(&self, py: Python<'py>, id: i64) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.bytes_of(id)?))
    }

    fn token_lengths<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        let vocabulary = &self.encoder.vocabulary;
        let mut lengths: Vec<u32> = (0..vocabulary.len() as u32).map(|id| vocabulary.token(id).len() as u32).collect();
        lengths.resize(self.vocab_size, 0);
        lengths.into_pyarray(py)
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    #[getter]
    fn pattern(&self) -> &str {
        &self.pattern
    }

    #[getter]
    fn merges<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u32>>> {
        let merges = self.merges.as_ref().ok_or_else(|| {
            PyValueError::new_err("this vocabulary was given by ranks: its ids are not 256 bytes and then merges")
        })?;
        let flat: Vec<u32> = merges.iter().flat_map(|&(left, right)| [left, right]).collect();
        flat.into_pyarray(py).reshape([merges.len(), 2])
    }

    #[getter]
    fn special_tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let specials = PyDict::new(py);
        for (name, id) in &self.specials {
            specials.set_item(name, id)?;
        }
        Ok(specials)
    }
}

/// Whether the processor announces AMX but no tile sizes, as some virtual machines do: its instructions do not work then.
#[pyfunction]
fn amx_is_broken() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const AMX_TILE: u32 = 1 << 24;
        // SAFETY: every x86-64 processor has this instruction; the first call asks which leaves there are.
        #[allow(unused_unsafe)] // safe functions in newer Rust
        unsafe {
            let has_amx = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & AMX_TILE != 0;
            has_amx && (__cpuid(0).eax < 0x1d || __cpuid_count(0x1d, 0).eax == 0)
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[pymodule]
fn rustbpe(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("DEFAULT_PATTERN", DEFAULT_PATTERN)?;
    module.add_function(wrap_pyfunction!(amx_is_broken, module)?)?;
    module.add_function(wrap_pyfunction!(train::train, module)?)?;
    module.add_class::<Tokenizer>()
}
