//! `rustbpe.train`: sources, limits, progress, Ctrl-C.

use super::{arrow_strings, thread_count, utf8};
use crate::split::{Splitter, DEFAULT_PATTERN};
use crate::train::{learn_merges, WordCounter};
use crate::vocab::MAX_VOCAB;
use crate::Error;
use numpy::{IntoPyArray, PyArray2, PyArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyString;
use std::time::{Duration, Instant};

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
    /// Bytes of str, and number of them, collected before the GIL is released to count them.
    const BATCH: (usize, usize) = (32 << 20, 1 << 16);
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
            if size < BATCH.0 && batch.len() < BATCH.1 {
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
pub fn train<'py>(
    source: &Bound<'py, PyAny>,
    vocab_size: usize,
    pattern: &str,
    max_chars: Option<i64>,
    doc_cap: Option<i64>,
    threads: i64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyArray2<u32>>> {
    let py = source.py();
    if !(256..=MAX_VOCAB).contains(&vocab_size) {
        let message = format!("vocab_size is {vocab_size}; it must be from 256 (every byte is a token) to {MAX_VOCAB}");
        return Err(PyValueError::new_err(message));
    }
    let limit = |name: &str, value: Option<i64>| match value {
        Some(value) if value < 0 => Err(PyValueError::new_err(format!("{name} is {value}; it must not be negative"))),
        _ => Ok(value.map(|value| value as u64)),
    };
    let (max_chars, doc_cap) = (limit("max_chars", max_chars)?, limit("doc_cap", doc_cap)?.map(|cap| cap as usize));
    let mut reporter = Reporter { callback: progress, last: Instant::now(), raised: None };
    let mut counter = WordCounter::new(Splitter::new(pattern)?, thread_count(threads)?, max_chars, doc_cap);
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
