//! eˣ and ln x as polynomials without a branch: inside of a kernel the compiler makes vectors of them, which it cannot make of
//! calls to the standard library.

/// eˣ, relative error below 2e-7 on [-87, 88]; below that range it gives 0, above it the value at 88.
///
/// Range reduction by powers of two and a polynomial of degree five (the coefficients of Cephes `expf`).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5·2^23 rounds to an integer that can be read from the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > 88.0 { 88.0 } else { x };
    let clamped = if clamped < -87.0 { -87.0 } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_2e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let power = f32::from_bits((shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23);
    if x < -87.0 { 0.0 } else { p * power }
}

/// eˣ for x ≤ 0, to a few units in the last place; below -700 it gives 0.
///
/// Range reduction by powers of two and the Taylor polynomial of degree 13 on ±½ ln 2.
#[inline(always)]
pub(crate) fn exp_f64(x: f64) -> f64 {
    // Adding 1.5·2^52 rounds to an integer that can be read from the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let clamped = if x < -700.0 { -700.0 } else { x };
    let shifted = clamped * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * 0.693_147_180_369_123_8) - n * 1.908_214_929_270_587_7e-10;
    const INVERSE_FACTORIALS: [f64; 13] = [
        1.0 / 6_227_020_800.0,
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
    ];
    let mut p = INVERSE_FACTORIALS[0];
    for factor in &INVERSE_FACTORIALS[1..] {
        p = p * r + factor;
    }
    let p = p * r + 1.0;
    let power = f64::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(1023) << 52);
    if x < -700.0 { 0.0 } else { p * power }
}

/// ln x for finite x ≥ 1e-30 (smaller values are treated as 1e-30), absolute error below 3e-7 near 1.
///
/// The polynomial of Cephes `logf` on [√½, √2).
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    let x = if x > 1e-30 { x } else { 1e-30 };
    // Move the mantissa into [√½, √2): subtracting the bits of √½ makes the exponent round the right way.
    let bits = x.to_bits().wrapping_sub(0x3f35_04f3);
    let exponent = (bits as i32) >> 23;
    let m = f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let e = exponent as f32;
    let mut p = 7.037_683_6e-2;
    p = p * m - 1.151_461e-1;
    p = p * m + 1.167_699_9e-1;
    p = p * m - 1.242_014_1e-1;
    p = p * m + 1.424_932_3e-1;
    p = p * m - 1.666_805_7e-1;
    p = p * m + 2.000_071_5e-1;
    p = p * m - 2.499_999_4e-1;
    p = p * m + 0.333_333_3;
    let square = m * m;
    let y = p * m * square + e * -2.121_944_4e-4 - 0.5 * square;
    m + y + e * 0.693_359_4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_f64_agrees_with_std() {
        let mut x = -699.0f64;
        while x <= 0.0 {
            assert!((exp_f64(x) / x.exp() - 1.0).abs() < 1e-14, "exp({x})");
            x += 0.0173;
        }
        assert_eq!((exp_f64(0.0), exp_f64(-1000.0)), (1.0, 0.0));
    }

    #[test]
    fn exp_and_ln_agree_with_std() {
        let mut x = -86.9f32;
        while x < 87.9 {
            let (got, want) = (exp(x), (x as f64).exp());
            assert!(((got as f64 - want) / want).abs() < 3e-7, "exp({x}) = {got}, expected {want}");
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1000.0), 0.0);
        assert!(exp(1000.0).is_finite());
        let mut x = 1e-20f32;
        while x < 1e20 {
            let (got, want) = (ln(x), (x as f64).ln());
            assert!(
                (got as f64 - want).abs() <= 3e-7 * want.abs().max(1.0),
                "ln({x}) = {got}, expected {want}"
            );
            x *= 1.0137;
        }
        assert_eq!(ln(1.0), 0.0);
    }
}
