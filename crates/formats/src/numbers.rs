//! Numbers as bytes: little-endian, of every dtype that the project's files hold.

use half::{bf16, f16};
use safetensors::Dtype;

/// The dtypes that [`floats`] reads, in words.
pub const FLOATS: &str = "dtype F16, BF16, F32 or F64";

/// A plain number with a fixed number of bytes.
pub trait Number: Copy {
    /// The number's dtype.
    const DTYPE: Dtype;
    /// Reads numbers; bytes that are left over at the end are ignored.
    fn decode(bytes: &[u8]) -> Vec<Self>;
    /// Writes numbers.
    fn encode(numbers: &[Self]) -> Vec<u8>;
}

macro_rules! number {
    ($($ty:ty, $dtype:ident);* $(;)?) => {$(
        impl Number for $ty {
            const DTYPE: Dtype = Dtype::$dtype;
            fn decode(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().map(|&b| <$ty>::from_le_bytes(b)).collect()
            }
            fn encode(numbers: &[Self]) -> Vec<u8> {
                numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
            }
        }
    )*};
}
number!(f64, F64; f32, F32; u64, U64; u32, U32; u16, U16; u8, U8; i64, I64; i32, I32; i16, I16; i8, I8);

/// Floats in half precision (F16).
pub fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect()
}

/// Whether [`floats`] reads this dtype.
pub fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
}

/// Floats of any width as `f32`; `None` for another dtype.
pub fn floats(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let mut values = Vec::new();
    extend_floats(&mut values, bytes, dtype).then_some(values)
}

/// Appends floats of any width as `f32`; `false`, and nothing appended, for another dtype.
pub fn extend_floats(values: &mut Vec<f32>, bytes: &[u8], dtype: Dtype) -> bool {
    match dtype {
        Dtype::F16 => values.extend(bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32())),
        Dtype::BF16 => values.extend(bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32())),
        Dtype::F32 => values.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
        Dtype::F64 => values.extend(bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b) as f32)),
        _ => return false,
    }
    true
}

/// Whole numbers of any width; `None` for another dtype.
pub fn whole(bytes: &[u8], dtype: Dtype) -> Option<Vec<i128>> {
    fn widen<T: Number + Into<i128>>(bytes: &[u8]) -> Vec<i128> {
        T::decode(bytes).into_iter().map(Into::into).collect()
    }
    Some(match dtype {
        Dtype::I8 => widen::<i8>(bytes),
        Dtype::I16 => widen::<i16>(bytes),
        Dtype::I32 => widen::<i32>(bytes),
        Dtype::I64 => widen::<i64>(bytes),
        Dtype::U8 => widen::<u8>(bytes),
        Dtype::U16 => widen::<u16>(bytes),
        Dtype::U32 => widen::<u32>(bytes),
        Dtype::U64 => widen::<u64>(bytes),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_every_width_are_read() {
        let wanted = Some(vec![1.5f32, -0.25]);
        let half = [f16::from_f32(1.5).to_le_bytes(), f16::from_f32(-0.25).to_le_bytes()].concat();
        assert_eq!(floats(&half, Dtype::F16), wanted);
        let brain = [bf16::from_f32(1.5).to_le_bytes(), bf16::from_f32(-0.25).to_le_bytes()].concat();
        assert_eq!(floats(&brain, Dtype::BF16), wanted);
        assert_eq!(floats(&f32::encode(&[1.5, -0.25]), Dtype::F32), wanted);
        assert_eq!(floats(&f64::encode(&[1.5, -0.25]), Dtype::F64), wanted);
        assert_eq!(floats(&[0; 8], Dtype::I64), None);
    }

    #[test]
    fn whole_numbers_keep_their_sign() {
        assert_eq!(whole(&i8::encode(&[-1, 2]), Dtype::I8), Some(vec![-1, 2]));
        assert_eq!(whole(&u64::encode(&[u64::MAX]), Dtype::U64), Some(vec![i128::from(u64::MAX)]));
        assert_eq!(whole(&i64::encode(&[i64::MIN]), Dtype::I64), Some(vec![i128::from(i64::MIN)]));
        assert_eq!(whole(&[0; 4], Dtype::F32), None);
    }
}
