//! Rows of numbers in JSON, read straight into one flat list.

use std::fmt;

use serde::de::{DeserializeSeed, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Rows of equal length, one after another.
#[derive(Debug, Default)]
pub struct Matrix {
    pub data: Vec<f32>,
    pub rows: usize,
    pub dim: usize,
}

impl<'de> Deserialize<'de> for Matrix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(MatrixVisitor)
    }
}

struct MatrixVisitor;

impl<'de> Visitor<'de> for MatrixVisitor {
    type Value = Matrix;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows, each a list of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<Matrix, A::Error> {
        let mut matrix = Matrix::default();
        while let Some(length) = rows.next_element_seed(RowReader(&mut matrix.data))? {
            if matrix.rows == 0 {
                matrix.dim = length;
            }
            if length != matrix.dim {
                let (row, dim) = (matrix.rows, matrix.dim);
                return Err(A::Error::custom(format!("row {row}: expected {dim} numbers, got {length}")));
            }
            matrix.rows += 1;
        }
        Ok(matrix)
    }
}

/// Appends the numbers of one row to a list. Returns how many numbers the row has.
struct RowReader<'a>(&'a mut Vec<f32>);

impl<'de> DeserializeSeed<'de> for RowReader<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for RowReader<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row: a list of numbers, as in [[…], …]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<usize, A::Error> {
        let start = self.0.len();
        while let Some(number) = numbers.next_element::<f32>()? {
            self.0.push(number);
        }
        Ok(self.0.len() - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_flat_and_of_one_length() {
        let matrix: Matrix = serde_json::from_str("[[1, 2.5], [3, 4]]").unwrap();
        assert_eq!((matrix.data, matrix.rows, matrix.dim), (vec![1.0, 2.5, 3.0, 4.0], 2, 2));
        assert_eq!(serde_json::from_str::<Matrix>("[]").unwrap().rows, 0);
        for (text, word) in [
            ("[[1, 2], [3]]", "row 1: expected 2 numbers, got 1"),
            ("[1, 2]", "a row: a list of numbers"),
            ("3", "a list of rows"),
        ] {
            let error = serde_json::from_str::<Matrix>(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
