//! A few rows of numbers times a matrix of whole numbers: the layers of a quantized model, on a CPU.
//!
//! Such a product reads the whole matrix and computes little with it, so a weight stays one byte until it is in a
//! register.

use std::thread;

/// Rows for which a weight is read and converted once.
const BLOCK: usize = 4;

/// Weights that are worth a thread, which takes 20 microseconds to start.
const SHARE: usize = 1 << 20;

/// A matrix in whole numbers, with a scale for each of its rows, which are the outputs.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub weights: &'a [i8],
    pub scales: &'a [f32],
    pub columns: usize,
}

/// Multiply `x`, rows of as many numbers as the matrix has columns: `out` gets the results for all rows of `x` of the
/// first output, then of the second, and so on.
pub fn product(x: &[f32], matrix: Matrix, out: &mut [f32], threads: usize) {
    let Matrix { weights, scales, columns } = matrix;
    let rows = x.len() / columns;
    assert_eq!((x.len(), weights.len(), out.len()), (rows * columns, scales.len() * columns, scales.len() * rows));
    if out.is_empty() {
        return;
    }
    let share = scales.len().div_ceil((weights.len() / SHARE).clamp(1, threads.max(1)));
    thread::scope(|scope| {
        let mut parts = weights.chunks(share * columns).zip(scales.chunks(share)).zip(out.chunks_mut(share * rows));
        let own = parts.next();
        for ((weights, scales), out) in parts {
            scope.spawn(move || outputs(x, Matrix { weights, scales, columns }, out));
        }
        if let Some(((weights, scales), out)) = own {
            outputs(x, Matrix { weights, scales, columns }, out);
        }
    });
}

/// Fill the outputs of one thread. An output's additions have the same order whatever the number of rows, so a row has
/// the same bits alone and beside others.
fn outputs(x: &[f32], matrix: Matrix, out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both.
        return unsafe { avx2::outputs(x, matrix, out) };
    }
    plain_outputs(x, matrix, out);
}

fn plain_outputs(x: &[f32], matrix: Matrix, out: &mut [f32]) {
    let Matrix { weights, scales, columns } = matrix;
    let rows = x.len() / columns;
    for ((weights, scale), out) in weights.chunks_exact(columns).zip(scales).zip(out.chunks_exact_mut(rows)) {
        for (out, x) in out.iter_mut().zip(x.chunks_exact(columns)) {
            *out = weights.iter().zip(x).map(|(weight, x)| f32::from(*weight) * x).sum::<f32>() * scale;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Matrix, BLOCK};
    use std::arch::x86_64::*;

    /// Columns that are multiplied at once: two registers.
    const WIDTH: usize = 16;

    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn outputs(x: &[f32], matrix: Matrix, out: &mut [f32]) {
        let Matrix { weights, scales, columns } = matrix;
        let rows = x.len() / columns;
        for ((weights, scale), out) in weights.chunks_exact(columns).zip(scales).zip(out.chunks_exact_mut(rows)) {
            for (x, out) in x.chunks(BLOCK * columns).zip(out.chunks_mut(BLOCK)) {
                match out.len() {
                    1 => dots::<1>(weights, x, out),
                    2 => dots::<2>(weights, x, out),
                    3 => dots::<3>(weights, x, out),
                    _ => dots::<BLOCK>(weights, x, out),
                }
                out.iter_mut().for_each(|dot| *dot *= scale);
            }
        }
    }

    /// Write the products of one row of weights with ROWS rows of `x`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn dots<const ROWS: usize>(weights: &[i8], x: &[f32], out: &mut [f32]) {
        let columns = weights.len();
        assert!(x.len() == ROWS * columns && out.len() == ROWS);
        let whole = columns - columns % WIDTH;
        let (mut low, mut high) = ([_mm256_setzero_ps(); ROWS], [_mm256_setzero_ps(); ROWS]);
        for start in (0..whole).step_by(WIDTH) {
            // SAFETY: WIDTH numbers from `start` are within each row.
            let bytes = _mm_loadu_si128(weights.as_ptr().add(start).cast());
            let first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
            let second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes)));
            for row in 0..ROWS {
                let x = x.as_ptr().add(row * columns + start);
                low[row] = _mm256_fmadd_ps(first, _mm256_loadu_ps(x), low[row]);
                high[row] = _mm256_fmadd_ps(second, _mm256_loadu_ps(x.add(8)), high[row]);
            }
        }
        for row in 0..ROWS {
            let mut lanes = [0.0f32; 8];
            // SAFETY: a register has eight numbers.
            _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_add_ps(low[row], high[row]));
            let rest = (whole..columns).map(|column| f32::from(weights[column]) * x[row * columns + column]);
            out[row] = lanes.iter().sum::<f32>() + rest.sum::<f32>();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from a generator, between -1 and 1.
    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    fn found(rows: usize, columns: usize, outputs: usize, threads: usize) -> (Vec<f32>, Vec<f64>) {
        let weights: Vec<i8> = numbers(outputs * columns, 1).iter().map(|number| (number * 127.0) as i8).collect();
        let (scales, x) = (numbers(outputs, 2), numbers(rows * columns, 3));
        let mut out = vec![f32::NAN; outputs * rows];
        product(&x, Matrix { weights: &weights, scales: &scales, columns }, &mut out, threads);
        let exact = |output: usize, row: usize| {
            let dot: f64 = (0..columns)
                .map(|column| f64::from(weights[output * columns + column]) * f64::from(x[row * columns + column]))
                .sum();
            dot * f64::from(scales[output])
        };
        let expected = (0..outputs).flat_map(|output| (0..rows).map(move |row| (output, row)));
        (out, expected.map(|(output, row)| exact(output, row)).collect())
    }

    #[test]
    fn products_are_exact_but_for_rounding() {
        for rows in [1, 2, 3, 4, 5, 9] {
            for columns in [1, 15, 16, 17, 96, 131] {
                let (ours, exact) = found(rows, columns, 7, 2);
                let bound = f64::from(f32::EPSILON) * 127.0 * columns as f64;
                for (ours, exact) in ours.iter().zip(&exact) {
                    assert!((f64::from(*ours) - exact).abs() <= bound, "{rows} by {columns}: {ours}, {exact}");
                }
            }
        }
    }

    #[test]
    fn bits_depend_neither_on_threads_nor_on_other_rows() {
        let (columns, outputs) = (1030, 2050);
        let alone = found(1, columns, outputs, 1).0;
        for threads in [2, 3, 64] {
            assert_eq!(found(1, columns, outputs, threads).0, alone);
        }
        let beside = found(6, columns, outputs, 2).0;
        assert!(beside.chunks(6).zip(&alone).all(|(six, one)| six[0] == *one));
    }

    #[test]
    fn nothing_times_nothing() {
        assert_eq!(found(0, 5, 3, 2).0, []);
        assert_eq!(found(2, 5, 0, 2).0, []);
    }

    #[test]
    fn plain_and_chosen_instructions_agree() {
        let (columns, rows) = (77, 5);
        let weights: Vec<i8> = (0..77 * 3).map(|number| (number % 251) as u8 as i8).collect();
        let (scales, x) = ([0.5, -2.0, 1.0], numbers(rows * columns, 4));
        let matrix = Matrix { weights: &weights, scales: &scales, columns };
        let (mut plain, mut chosen) = ([0.0; 15], [0.0; 15]);
        plain_outputs(&x, matrix, &mut plain);
        outputs(&x, matrix, &mut chosen);
        assert!(plain.iter().zip(chosen).all(|(plain, chosen)| (plain - chosen).abs() < 1e-2), "{plain:?} {chosen:?}");
    }
}
