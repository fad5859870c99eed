//! The passes of the prior: experts are weighed against a row, and their beliefs blended.

use pulp::{Arch, Simd, WithSimd};

use super::{each, inlined, ln};

/// Counts of an expert, and the line that makes shares of them: slope · count + offset.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    pub counts: &'a [f32],
    pub slope: f32,
    pub offset: f32,
}

/// What experts are weighed against: a row's exp(frozen logit − best), the lift, the base (1 for every class without one) and
/// two further beliefs.
#[derive(Clone, Copy)]
pub(crate) struct Weighed<'a> {
    pub text: &'a [f32],
    pub lift: &'a [f32],
    pub base: Option<&'a [f32]>,
    pub beliefs: [&'a [f32]; 2],
    /// e^δ and e^−δ.
    pub zone: [f32; 2],
}

/// Experts that go through one pass: their sums fit the registers.
pub(crate) const TOGETHER: usize = 5;

impl Weighed<'_> {
    /// Writes the ratios x = `(slope · count + offset) · lift` of at most [`TOGETHER`] experts behind a dead zone: x/e^δ above
    /// e^δ, x·e^δ below e^−δ, and 1 between. In logarithms they shrink towards 0 by δ.
    ///
    /// With t = text · lift, returns Σ t, Σ base · t, and Σ base · belief · t of both beliefs; and writes Σ base · ratio and
    /// Σ base · ratio · t of each expert to `sums`.
    pub(crate) fn weigh(self, lines: &[Line<'_>], out: &mut [f32], sums: &mut [[f32; 2]]) -> [f32; 4] {
        match lines.len() {
            1 => self.weigh_some::<1>(lines, out, sums),
            2 => self.weigh_some::<2>(lines, out, sums),
            3 => self.weigh_some::<3>(lines, out, sums),
            4 => self.weigh_some::<4>(lines, out, sums),
            _ => self.weigh_some::<TOGETHER>(lines, out, sums),
        }
    }

    fn weigh_some<const N: usize>(
        self,
        lines: &[Line<'_>],
        out: &mut [f32],
        sums: &mut [[f32; 2]],
    ) -> [f32; 4] {
        let lines: [Line<'_>; N] = std::array::from_fn(|i| lines[i]);
        let (all, own) = match self.base {
            Some(_) => Arch::new().dispatch(Weigh::<N, false>(self, lines, out)),
            None => Arch::new().dispatch(Weigh::<N, true>(self, lines, out)),
        };
        sums[..N].copy_from_slice(&own);
        all
    }
}

struct Weigh<'a, const N: usize, const EVEN: bool>(Weighed<'a>, [Line<'a>; N], &'a mut [f32]);

impl<const N: usize, const EVEN: bool> WithSimd for Weigh<'_, N, EVEN> {
    type Output = ([f32; 4], [[f32; 2]; N]);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let Weigh(Weighed { text, lift, base, beliefs, zone }, lines, out) = self;
        let classes = text.len();
        // What stands for an even base is not looked at.
        let rows = each(
            [text, lift, base.unwrap_or(text), beliefs[0], beliefs[1]],
            #[inline(always)]
            |row: &[f32]| S::as_simd_f32s(row),
        );
        let counts = each(
            lines,
            #[inline(always)]
            |line: Line<'_>| S::as_simd_f32s(line.counts),
        );
        let steps = rows[0].0.len();
        let row_heads = each(
            rows,
            #[inline(always)]
            |row| &row.0[..steps],
        );
        let count_heads = each(
            counts,
            #[inline(always)]
            |counts| &counts.0[..steps],
        );
        let slopes = each(
            lines,
            #[inline(always)]
            |line: Line<'_>| simd.splat_f32s(line.slope),
        );
        let offsets = each(
            lines,
            #[inline(always)]
            |line: Line<'_>| simd.splat_f32s(line.offset),
        );
        let [up, down, one, zero] = each(
            [zone[0], zone[1], 1.0, 0.0],
            #[inline(always)]
            |v| simd.splat_f32s(v),
        );
        let (mut all, mut masses, mut hits) = ([zero; 4], [zero; N], [zero; N]);
        let mut add = inlined(
            #[inline(always)]
            |[t, l, b, first, second]: [S::f32s; 5], mut values: [S::f32s; N]| {
                let t = simd.mul_f32s(t, l);
                all[0] = simd.add_f32s(all[0], t);
                let seen = if EVEN { t } else { simd.mul_f32s(b, t) };
                if !EVEN {
                    all[1] = simd.add_f32s(all[1], seen);
                }
                all[2] = simd.mul_add_e_f32s(first, seen, all[2]);
                all[3] = simd.mul_add_e_f32s(second, seen, all[3]);
                for j in 0..N {
                    let x = simd.mul_f32s(simd.mul_add_e_f32s(slopes[j], values[j], offsets[j]), l);
                    let x = simd.min_f32s(simd.mul_f32s(x, up), simd.max_f32s(simd.mul_f32s(x, down), one));
                    masses[j] =
                        if EVEN { simd.add_f32s(masses[j], x) } else { simd.mul_add_e_f32s(x, b, masses[j]) };
                    hits[j] = simd.mul_add_e_f32s(x, seen, hits[j]);
                    values[j] = x;
                }
                values
            },
        );
        let mut outs = out.chunks_exact_mut(classes);
        let outs: [&mut [f32]; N] = std::array::from_fn(|_| outs.next().unwrap_or_default());
        let mut outs = outs.map(|out| S::as_mut_simd_f32s(out));
        {
            let out_heads = outs.each_mut().map(|out| &mut out.0[..steps]);
            for k in 0..steps {
                let row = each(
                    row_heads,
                    #[inline(always)]
                    |head| head[k],
                );
                let values = each(
                    count_heads,
                    #[inline(always)]
                    |head| head[k],
                );
                let values = add(row, values);
                for j in 0..N {
                    out_heads[j][k] = values[j];
                }
            }
        }
        if !rows[0].1.is_empty() {
            let row = each(
                rows,
                #[inline(always)]
                |row| simd.partial_load_f32s(row.1),
            );
            let values = each(
                counts,
                #[inline(always)]
                |counts| simd.partial_load_f32s(counts.1),
            );
            let values = add(row, values);
            for j in 0..N {
                simd.partial_store_f32s(outs[j].1, values[j]);
            }
        }
        let mut sums = [[0.0; 2]; N];
        for j in 0..N {
            sums[j] = [simd.reduce_sum_f32s(masses[j]), simd.reduce_sum_f32s(hits[j])];
        }
        let all = each(
            all,
            #[inline(always)]
            |sum| simd.reduce_sum_f32s(sum),
        );
        (all, sums)
    }
}

/// `mix = base · (own + Σ factor · row)` and `log = ln mix`.
pub(crate) fn blend(factors: &[(&[f32], f32)], own: f32, base: &[f32], mix: &mut [f32], log: &mut [f32]) {
    struct Blend<'a>(&'a [(&'a [f32], f32)], f32, &'a [f32], &'a mut [f32], &'a mut [f32]);
    impl WithSimd for Blend<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Blend(factors, own, base, mix, log) = self;
            let own = simd.splat_f32s(own);
            let (bases, base_tail) = S::as_simd_f32s(base);
            let (mixes, mix_tail) = S::as_mut_simd_f32s(mix);
            // A few vectors of the mixture stay in registers while all rows are added.
            let (bases, bases_left) = bases.as_chunks::<4>();
            let (mixes, mixes_left) = mixes.as_chunks_mut::<4>();
            for (k, (mixed, base)) in mixes.iter_mut().zip(bases).enumerate() {
                let mut sums = [own; 4];
                for &(row, factor) in factors {
                    let (factor, row) =
                        (simd.splat_f32s(factor), &S::as_simd_f32s(row).0.as_chunks::<4>().0[k]);
                    for i in 0..4 {
                        sums[i] = simd.mul_add_e_f32s(factor, row[i], sums[i]);
                    }
                }
                for i in 0..4 {
                    mixed[i] = simd.mul_f32s(sums[i], base[i]);
                }
            }
            for (k, (mixed, &base)) in mixes_left.iter_mut().zip(bases_left).enumerate() {
                let mut sum = own;
                for &(row, factor) in factors {
                    let row = S::as_simd_f32s(row).0.as_chunks::<4>().1[k];
                    sum = simd.mul_add_e_f32s(simd.splat_f32s(factor), row, sum);
                }
                *mixed = simd.mul_f32s(sum, base);
            }
            if !base_tail.is_empty() {
                let mut sum = own;
                for &(row, factor) in factors {
                    let row = simd.partial_load_f32s(S::as_simd_f32s(row).1);
                    sum = simd.mul_add_e_f32s(simd.splat_f32s(factor), row, sum);
                }
                simd.partial_store_f32s(mix_tail, simd.mul_f32s(sum, simd.partial_load_f32s(base_tail)));
            }
            for (m, o) in mix.iter().zip(log) {
                *o = ln(*m);
            }
        }
    }
    Arch::new().dispatch(Blend(factors, own, base, mix, log))
}
