//! The Python module. Errors become exceptions with a sentence, and the GIL is released while the crate works.

use crate::arrow::{ArrowArray, ArrowSchema, StringArray};
use crate::encode::{Encoder, Texts};
use crate::split::{Splitter, DEFAULT_PATTERN};
use crate::train::{learn_merges, WordCounter};
use crate::vocab::Vocabulary;
use crate::Error;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyString, PyTuple};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        match error {
            Error::Interrupted => PyKeyboardInterrupt::new_err(()),
            _ => PyValueError::new_err(error.to_string()),
        }
    }
}

fn threads_or_all(threads: usize) -> usize {
    match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        _ => threads,
    }
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

/// Reports to a Python callback at most ten times a second, and looks for Ctrl-C as often.
struct Reporter {
    callback: Option<Py<PyAny>>,
    last: Instant,
    raised: Option<PyErr>,
}

impl Reporter {
    const EVERY: Duration = Duration::from_millis(100);

    /// False when the work should stop; `raised` then holds why.
    fn tell(&mut self, phase: &str, done: u64, total: u64) -> bool {
        self.last.elapsed() < Self::EVERY || self.tell_now(phase, done, total)
    }

    fn tell_now(&mut self, phase: &str, done: u64, total: u64) -> bool {
        self.last = Instant::now();
        let told = Python::attach(|py| {
            py.check_signals()?;
            match &self.callback {
                Some(callback) => callback.call1(py, (phase, done, total)).map(|_| ()),
                None => Ok(()),
            }
        });
        self.raised = told.err();
        self.raised.is_none()
    }
}

/// Feeds a source to the counter: one Arrow array, or an iterable of str or of Arrow arrays.
fn count_source(
    source: &Bound<'_, PyAny>,
    counter: &mut WordCounter,
    reporter: &mut Reporter,
    total: u64,
) -> PyResult<()> {
    /// Bytes of str collected before the GIL is released to count them.
    const BATCH: usize = 32 << 20;
    let py = source.py();
    if let Some(array) = arrow_strings(source)? {
        py.detach(|| counter.add(&array.strings))?;
        return Ok(());
    }
    if source.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("source is a single str; pass an iterable of texts, e.g. [text]"));
    }
    let (mut batch, mut size) = (Vec::new(), 0);
    let count_batch = |counter: &mut WordCounter, batch: &mut Vec<PyBackedStr>| {
        let wanted = py.detach(|| counter.add(batch));
        batch.clear();
        wanted
    };
    for (i, item) in source.try_iter()?.enumerate() {
        let item = item?;
        let wanted = if let Ok(text) = item.cast::<PyString>() {
            let text = utf8(text, || format!("text {i}"))?;
            size += text.len();
            batch.push(text);
            if size < BATCH {
                continue;
            }
            size = 0;
            count_batch(counter, &mut batch)?
        } else if let Some(array) = arrow_strings(&item)? {
            count_batch(counter, &mut batch)? && py.detach(|| counter.add(&array.strings))?
        } else {
            let kind = item.get_type().name()?;
            let message =
                format!("item {i} of source is a {kind}; texts are str, or Arrow string arrays (e.g. column.chunks)");
            return Err(PyTypeError::new_err(message));
        };
        if !wanted || !py.detach(|| reporter.tell("count", counter.chars, total)) {
            return Ok(());
        }
    }
    count_batch(counter, &mut batch)?;
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (source, vocab_size, *, pattern=DEFAULT_PATTERN, max_chars=None, doc_cap=None, threads=0, progress=None))]
#[allow(clippy::too_many_arguments)]
fn train<'py>(
    source: &Bound<'py, PyAny>,
    vocab_size: usize,
    pattern: &str,
    max_chars: Option<u64>,
    doc_cap: Option<usize>,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyArray2<u32>>> {
    let py = source.py();
    if vocab_size < 256 {
        let message = format!("vocab_size is {vocab_size}; it must be at least 256, for every byte is a token");
        return Err(PyValueError::new_err(message));
    }
    let mut reporter = Reporter { callback: progress, last: Instant::now(), raised: None };
    let mut counter = WordCounter::new(Splitter::new(pattern)?, threads_or_all(threads), max_chars, doc_cap);
    count_source(source, &mut counter, &mut reporter, max_chars.unwrap_or(u64::MAX))?;
    let wanted = vocab_size - 256;
    let learned = py.detach(|| {
        if reporter.raised.is_some() || !reporter.tell_now("count", counter.chars, counter.chars) {
            return Err(Error::Interrupted);
        }
        let learned =
            learn_merges(counter.finish(), wanted, |done| reporter.tell("merge", done as u64, wanted as u64))?;
        reporter.tell_now("merge", learned.len() as u64, learned.len() as u64);
        Ok(learned)
    });
    if let Some(error) = reporter.raised {
        return Err(error);
    }
    let learned = learned?;
    let flat: Vec<u32> = learned.iter().flat_map(|&(left, right)| [left, right]).collect();
    flat.into_pyarray(py).reshape([learned.len(), 2])
}

#[pyclass(frozen, module = "rustbpe")]
struct Tokenizer {
    encoder: Encoder,
    pattern: String,
    merges: Vec<(u32, u32)>,
    specials: Vec<(String, u32)>,
    vocab_size: usize,
}

impl Tokenizer {
    fn build(
        vocabulary: Vocabulary,
        merges: Vec<(u32, u32)>,
        specials: Vec<(String, u32)>,
        pattern: String,
    ) -> PyResult<Self> {
        let tokens = vocabulary.len();
        let (mut names, mut ids) = (HashSet::new(), HashSet::new());
        for (name, id) in &specials {
            let problem = match (*id as usize) < tokens {
                _ if name.is_empty() => "has no name",
                true => "has the id of an ordinary token",
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
        let mut bytes = Vec::new();
        let mut add = |id: i64| self.bytes_of(id).map(|token| bytes.extend_from_slice(token));
        if let Ok(ids) = ids.extract::<PyReadonlyArray1<u16>>() {
            ids.as_array().iter().try_for_each(|&id| add(id.into()))?;
        } else if let Ok(ids) = ids.extract::<PyReadonlyArray1<u32>>() {
            ids.as_array().iter().try_for_each(|&id| add(id.into()))?;
        } else {
            ids.extract::<Vec<i64>>()?.into_iter().try_for_each(add)?;
        }
        Ok(bytes)
    }

    fn encode_texts<'py>(
        &self,
        py: Python<'py>,
        texts: &dyn Texts,
        prepend: Option<u32>,
        threads: usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        if let Some(id) = prepend {
            self.bytes_of(id.into())?;
        }
        let threads = threads_or_all(threads);
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
        let merges: Vec<(u32, u32)> = match merges.extract::<PyReadonlyArray2<u32>>() {
            Ok(array) if array.as_array().ncols() == 2 => {
                array.as_array().rows().into_iter().map(|row| (row[0], row[1])).collect()
            }
            _ => merges.extract()?,
        };
        let vocabulary = Vocabulary::from_merges(&merges)?;
        let first = vocabulary.len() as u32;
        let specials = special_tokens.into_iter().zip(first..).collect();
        Self::build(vocabulary, merges, specials, pattern)
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
        Self::build(Vocabulary::from_ranks(&tokens)?, Vec::new(), specials, pattern)
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
        threads: usize,
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
        threads: usize,
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
        let flat: Vec<u32> = self.merges.iter().flat_map(|&(left, right)| [left, right]).collect();
        flat.into_pyarray(py).reshape([self.merges.len(), 2])
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

#[pymodule]
fn rustbpe(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("DEFAULT_PATTERN", DEFAULT_PATTERN)?;
    module.add_function(wrap_pyfunction!(train, module)?)?;
    module.add_class::<Tokenizer>()
}
