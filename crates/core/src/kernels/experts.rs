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

impl Line<'_> {
    /// Stands for no expert.
    pub(crate) const NOTHING: Self = Self { counts: &[], slope: 0.0, offset: 0.0 };
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

/// Vectors of each row that a pass takes at once: one check of its bounds is for all of them.
const AT_ONCE: usize = 4;

/// A row as vectors: whole groups of them, those that are left, and the values that fill no vector.
#[inline(always)]
fn grouped<S: Simd>(row: &[f32]) -> (&[[S::f32s; AT_ONCE]], &[S::f32s], &[f32]) {
    let (vectors, tail) = S::as_simd_f32s(row);
    let (groups, left) = vectors.as_chunks::<AT_ONCE>();
    (groups, left, tail)
}

/// The numbers of a [`Line`] and of the dead zone, each in all lanes of a vector.
#[derive(Clone, Copy)]
struct Ratio<S: Simd> {
    slope: S::f32s,
    offset: S::f32s,
    up: S::f32s,
    down: S::f32s,
    one: S::f32s,
}

impl<S: Simd> Ratio<S> {
    #[inline(always)]
    fn new(simd: S, line: Line<'_>, zone: [f32; 2]) -> Self {
        Self {
            slope: simd.splat_f32s(line.slope),
            offset: simd.splat_f32s(line.offset),
            up: simd.splat_f32s(zone[0]),
            down: simd.splat_f32s(zone[1]),
            one: simd.splat_f32s(1.0),
        }
    }

    /// x = `(slope · count + offset) · lift` behind the dead zone: x/e^δ above e^δ, x·e^δ below e^−δ, and 1 between. In
    /// logarithms x shrinks towards 0 by δ.
    #[inline(always)]
    fn of(self, simd: S, count: S::f32s, lift: S::f32s) -> S::f32s {
        let x = simd.mul_f32s(simd.mul_add_e_f32s(self.slope, count, self.offset), lift);
        simd.min_f32s(simd.mul_f32s(x, self.up), simd.max_f32s(simd.mul_f32s(x, self.down), self.one))
    }
}

impl Weighed<'_> {
    /// With t = text · lift, returns Σ t, Σ base · t, and Σ base · belief · t of both beliefs; and writes Σ base · ratio and
    /// Σ base · ratio · t of each of at most [`TOGETHER`] experts to `sums`. The ratios themselves are not kept: [`blend`] computes
    /// them again faster than it would read them.
    pub(crate) fn weigh(self, lines: &[Line<'_>], sums: &mut [[f32; 2]]) -> [f32; 4] {
        match lines.len() {
            1 => self.weigh_some::<1>(lines, sums),
            2 => self.weigh_some::<2>(lines, sums),
            3 => self.weigh_some::<3>(lines, sums),
            4 => self.weigh_some::<4>(lines, sums),
            _ => self.weigh_some::<TOGETHER>(lines, sums),
        }
    }

    fn weigh_some<const N: usize>(self, lines: &[Line<'_>], sums: &mut [[f32; 2]]) -> [f32; 4] {
        let lines: [Line<'_>; N] = std::array::from_fn(|i| lines[i]);
        let (all, own) = match self.base {
            Some(_) => Arch::new().dispatch(Weigh::<N, false>(self, lines)),
            None => Arch::new().dispatch(Weigh::<N, true>(self, lines)),
        };
        sums[..N].copy_from_slice(&own);
        all
    }
}

struct Weigh<'a, const N: usize, const EVEN: bool>(Weighed<'a>, [Line<'a>; N]);

impl<const N: usize, const EVEN: bool> WithSimd for Weigh<'_, N, EVEN> {
    type Output = ([f32; 4], [[f32; 2]; N]);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let Weigh(Weighed { text, lift, base, beliefs, zone }, lines) = self;
        // What stands for an even base is not looked at.
        let rows = each(
            [text, lift, base.unwrap_or(text), beliefs[0], beliefs[1]],
            #[inline(always)]
            |row: &[f32]| grouped::<S>(row),
        );
        let counts = each(
            lines,
            #[inline(always)]
            |line: Line<'_>| grouped::<S>(line.counts),
        );
        let ratios = each(
            lines,
            #[inline(always)]
            |line: Line<'_>| Ratio::new(simd, line, zone),
        );
        let zero = simd.splat_f32s(0.0);
        let (mut all, mut masses, mut hits) = ([zero; 4], [zero; N], [zero; N]);
        let mut add = inlined(
            #[inline(always)]
            |[t, l, b, first, second]: [S::f32s; 5], values: [S::f32s; N]| {
                let t = simd.mul_f32s(t, l);
                all[0] = simd.add_f32s(all[0], t);
                let seen = if EVEN { t } else { simd.mul_f32s(b, t) };
                if !EVEN {
                    all[1] = simd.add_f32s(all[1], seen);
                }
                all[2] = simd.mul_add_e_f32s(first, seen, all[2]);
                all[3] = simd.mul_add_e_f32s(second, seen, all[3]);
                for j in 0..N {
                    let x = ratios[j].of(simd, values[j], l);
                    masses[j] =
                        if EVEN { simd.add_f32s(masses[j], x) } else { simd.mul_add_e_f32s(x, b, masses[j]) };
                    hits[j] = simd.mul_add_e_f32s(x, seen, hits[j]);
                }
            },
        );
        for k in 0..rows[0].0.len() {
            let row = each(
                rows,
                #[inline(always)]
                |row| &row.0[k],
            );
            let values = each(
                counts,
                #[inline(always)]
                |counts| &counts.0[k],
            );
            for i in 0..AT_ONCE {
                let row = each(
                    row,
                    #[inline(always)]
                    |row| row[i],
                );
                let values = each(
                    values,
                    #[inline(always)]
                    |values| values[i],
                );
                add(row, values);
            }
        }
        for k in 0..rows[0].1.len() {
            let row = each(
                rows,
                #[inline(always)]
                |row| row.1[k],
            );
            let values = each(
                counts,
                #[inline(always)]
                |counts| counts.1[k],
            );
            add(row, values);
        }
        if !rows[0].2.is_empty() {
            let row = each(
                rows,
                #[inline(always)]
                |row| simd.partial_load_f32s(row.2),
            );
            let values = each(
                counts,
                #[inline(always)]
                |counts| simd.partial_load_f32s(counts.2),
            );
            add(row, values);
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

/// The voices of a mixture, each with its factor: beliefs as they stand, and experts behind the dead zone.
pub(crate) struct Voices<'a> {
    pub beliefs: &'a [(&'a [f32], f32)],
    pub experts: &'a [(Line<'a>, f32)],
    pub lift: &'a [f32],
    /// e^δ and e^−δ.
    pub zone: [f32; 2],
}

impl Voices<'_> {
    /// own + Σ factor · voice of one vector, which `nth` takes out of each row.
    #[inline(always)]
    fn sum<S: Simd>(&self, simd: S, own: S::f32s, lift: S::f32s, nth: impl Fn(&[f32]) -> S::f32s) -> S::f32s {
        let mut sum = own;
        for &(row, factor) in self.beliefs {
            sum = simd.mul_add_e_f32s(simd.splat_f32s(factor), nth(row), sum);
        }
        for &(line, factor) in self.experts {
            let x = Ratio::new(simd, line, self.zone).of(simd, nth(line.counts), lift);
            sum = simd.mul_add_e_f32s(simd.splat_f32s(factor), x, sum);
        }
        sum
    }
}

/// `mix = base · (own + Σ factor · voice)` and `log = ln mix`.
pub(crate) fn blend(voices: &Voices<'_>, own: f32, base: &[f32], mix: &mut [f32], log: &mut [f32]) {
    struct Blend<'a>(&'a Voices<'a>, f32, &'a [f32], &'a mut [f32], &'a mut [f32]);
    impl WithSimd for Blend<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Blend(voices, own, base, mix, log) = self;
            let own = simd.splat_f32s(own);
            let (bases, base_left, base_tail) = grouped::<S>(base);
            let (lifts, lift_left, lift_tail) = grouped::<S>(voices.lift);
            let (mixes, mix_tail) = S::as_mut_simd_f32s(mix);
            let (mixes, mix_left) = mixes.as_chunks_mut::<AT_ONCE>();
            // A few vectors of the mixture stay in registers while all voices are added.
            for (k, ((mixed, base), lift)) in mixes.iter_mut().zip(bases).zip(lifts).enumerate() {
                let mut sums = [own; AT_ONCE];
                for &(row, factor) in voices.beliefs {
                    let (factor, row) = (simd.splat_f32s(factor), &grouped::<S>(row).0[k]);
                    for i in 0..AT_ONCE {
                        sums[i] = simd.mul_add_e_f32s(factor, row[i], sums[i]);
                    }
                }
                for &(line, factor) in voices.experts {
                    let ratio = Ratio::new(simd, line, voices.zone);
                    let (factor, counts) = (simd.splat_f32s(factor), &grouped::<S>(line.counts).0[k]);
                    for i in 0..AT_ONCE {
                        sums[i] = simd.mul_add_e_f32s(factor, ratio.of(simd, counts[i], lift[i]), sums[i]);
                    }
                }
                for i in 0..AT_ONCE {
                    mixed[i] = simd.mul_f32s(sums[i], base[i]);
                }
            }
            let left = mix_left.iter_mut().zip(base_left).zip(lift_left);
            for (k, ((mixed, &base), &lift)) in left.enumerate() {
                let sum = voices.sum(
                    simd,
                    own,
                    lift,
                    #[inline(always)]
                    |row| grouped::<S>(row).1[k],
                );
                *mixed = simd.mul_f32s(sum, base);
            }
            if !base_tail.is_empty() {
                let sum = voices.sum(
                    simd,
                    own,
                    simd.partial_load_f32s(lift_tail),
                    #[inline(always)]
                    |row| simd.partial_load_f32s(grouped::<S>(row).2),
                );
                simd.partial_store_f32s(mix_tail, simd.mul_f32s(sum, simd.partial_load_f32s(base_tail)));
            }
            for (m, o) in mix.iter().zip(log) {
                *o = ln(*m);
            }
        }
    }
    Arch::new().dispatch(Blend(voices, own, base, mix, log))
}

/// Whether all ratios of an expert are at most 1. `zone` is e^δ and e^−δ.
pub(crate) fn none_above_one(line: Line<'_>, lift: &[f32], zone: [f32; 2]) -> bool {
    struct NoneAbove<'a>(Line<'a>, &'a [f32], [f32; 2]);
    impl WithSimd for NoneAbove<'_> {
        type Output = bool;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> bool {
            let NoneAbove(line, lift, zone) = self;
            let ratio = Ratio::new(simd, line, zone);
            let (counts, counts_tail) = S::as_simd_f32s(line.counts);
            let (lifts, lift_tail) = S::as_simd_f32s(lift);
            let mut most = simd.splat_f32s(0.0);
            for (&count, &lift) in counts.iter().zip(lifts) {
                most = simd.max_f32s(most, ratio.of(simd, count, lift));
            }
            let (count, lift) = (simd.partial_load_f32s(counts_tail), simd.partial_load_f32s(lift_tail));
            most = simd.max_f32s(most, ratio.of(simd, count, lift));
            simd.reduce_max_f32s(most) <= 1.0
        }
    }
    Arch::new().dispatch(NoneAbove(line, lift, zone))
}
