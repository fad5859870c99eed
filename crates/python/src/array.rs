//! Arrays on their way in, borrowed where they are C-contiguous float32, and on their way out.

use numpy::ndarray::ArrayView2;
use numpy::{
    Element, PyArray1, PyArray2, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Rows of float32 values, one after another.
pub struct Matrix<'py> {
    array: PyReadonlyArrayDyn<'py, f32>,
}

impl<'py> Matrix<'py> {
    /// Takes in one row (1-D) or many (2-D). C-contiguous float32 NumPy arrays are borrowed; `ultta._arrays`
    /// converts whatever else can be converted.
    pub fn of(what: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let matrix = Self::any(what, object)?;
        match matrix.shape().len() {
            1 | 2 => Ok(matrix),
            n => Err(PyValueError::new_err(format!(
                "{what}: expected one row (1 dimension) or many (2 dimensions), got {n} dimensions"
            ))),
        }
    }

    /// The same with any number of dimensions.
    pub fn any(what: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = object.cast_exact::<PyArrayDyn<f32>>()
            && array.is_c_contiguous()
            && array.is_aligned()
        {
            return Ok(Self { array: array.try_readonly()? });
        }
        static CONVERT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let convert = CONVERT.import(object.py(), "ultta._arrays", "float32")?;
        Ok(Self { array: convert.call1((what, object))?.extract()? })
    }

    /// The sizes of the array.
    pub fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    /// Length of a row.
    pub fn dim(&self) -> usize {
        self.shape().last().copied().unwrap_or(0)
    }

    /// All values, row after row.
    pub fn data(&self) -> &[f32] {
        self.array.as_slice().expect("checked to be contiguous")
    }
}

/// A read-only array over memory that `owner` keeps.
///
/// # Safety
/// `data` must stay where and as it is for as long as `owner` lives.
pub unsafe fn view<'py>(owner: Bound<'py, PyAny>, data: &[f32], columns: usize) -> Bound<'py, PyArray2<f32>> {
    let rows = data.len() / columns.max(1);
    let matrix = ArrayView2::from_shape((rows, columns), data).expect("whole rows");
    // SAFETY: passed on to the caller.
    let array = unsafe { PyArray2::borrow_from_array(&matrix, owner) };
    frozen(array)
}

/// A read-only vector.
pub fn vector<T: Element>(py: Python<'_>, values: Vec<T>) -> Bound<'_, PyArray1<T>> {
    frozen(PyArray1::from_vec(py, values))
}

/// A read-only matrix.
pub fn matrix<T: Element>(
    py: Python<'_>,
    values: Vec<T>,
    columns: usize,
) -> PyResult<Bound<'_, PyArray2<T>>> {
    let rows = values.len() / columns.max(1);
    Ok(frozen(PyArray1::from_vec(py, values).reshape([rows, columns])?))
}

/// Answers are facts: an array that several places may hold is not to be written.
fn frozen<T: Element, D: numpy::ndarray::Dimension>(
    array: Bound<'_, numpy::PyArray<T, D>>,
) -> Bound<'_, numpy::PyArray<T, D>> {
    let reader = array.readwrite().make_nonwriteable();
    drop(reader);
    array
}

/// One-dimensional values given as an array, a list or a single one.
pub fn list<'py, T>(what: &str, dtype: &str, object: &Bound<'py, PyAny>) -> PyResult<Vec<T>>
where
    T: Element + Copy,
{
    static CONVERT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let convert = CONVERT.import(object.py(), "ultta._arrays", "vector")?;
    let array = convert.call1((what, dtype, object))?;
    let array: numpy::PyReadonlyArray1<'py, T> = array.extract()?;
    Ok(array.as_slice()?.to_vec())
}
