//! Matrix products with weights that are packed once: `C = A · Wᵀ`, bias, activation and residual in the same pass.
//!
//! A weight matrix `[outputs, inputs]` is cut along its inputs into blocks that fit the first-level cache together
//! with a strip of rows, and along its outputs into panels two vectors wide. Up to [`TILE_ROWS`] rows meet a panel
//! in registers. The vector width is found at run time (`pulp`): AVX-512, AVX2 and FMA, NEON, or plain code.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::element::{Activation, vectorised};

/// Inputs per block: a panel of 16 columns then takes 24 KiB.
const BLOCK_INPUTS: usize = 384;

/// Rows that share one pass over the panels; with [`BLOCK_INPUTS`] columns they take 180 KiB.
const BLOCK_ROWS: usize = 120;

/// The most rows in a register tile; CPUs with 16 registers use half of them.
const TILE_ROWS: usize = 12;

/// The widest panel: two vectors of 16.
const MAX_PANEL: usize = 32;

/// Floats that begin on a cache line.
#[derive(Clone, Default)]
pub(crate) struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl Aligned {
    /// At least `len` floats; what they hold is left over from before.
    pub fn grow(&mut self, len: usize) -> &mut [f32] {
        if self.lines.len() * 16 < len {
            self.lines.resize(len.div_ceil(16), Line([0.0; 16]));
        }
        self.len = self.len.max(len);
        &mut self.as_mut()[..len]
    }
}

impl AsRef<[f32]> for Aligned {
    fn as_ref(&self) -> &[f32] {
        // SAFETY: a line is sixteen floats without padding, and `len` is at most 16 · lines.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl AsMut<[f32]> for Aligned {
    fn as_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

/// A weight matrix packed for products.
pub(crate) struct Packed {
    data: Aligned,
    outputs: usize,
    inputs: usize,
    /// Columns of a panel.
    panel: usize,
    /// Inputs of a block.
    block: usize,
}

impl Packed {
    /// Packs `[outputs, inputs]`, the layout of a linear layer.
    pub fn new(weights: &[f32], outputs: usize, inputs: usize) -> Self {
        assert_eq!(weights.len(), outputs * inputs, "a weight for every input of every output");
        let mut packed = Self::empty();
        packed.pack(outputs, inputs, |output, input| weights[output * inputs + input]);
        packed
    }

    /// Nothing yet; for a matrix that is packed anew for each use.
    pub fn empty() -> Self {
        Self { data: Aligned::default(), outputs: 0, inputs: 0, panel: panel_width(), block: 0 }
    }

    /// Packs a matrix given by its values, keeping the memory.
    #[inline]
    pub fn pack(&mut self, outputs: usize, inputs: usize, value: impl Fn(usize, usize) -> f32) {
        let blocks = inputs.div_ceil(BLOCK_INPUTS).max(1);
        (self.outputs, self.inputs, self.block) = (outputs, inputs, inputs.div_ceil(blocks).max(1));
        let panel = self.panel;
        let columns = outputs.div_ceil(panel) * panel;
        let data = self.data.grow(columns * inputs);
        for first in (0..inputs).step_by(self.block) {
            let width = self.block.min(inputs - first);
            for start in (0..columns).step_by(panel) {
                let part = &mut data[columns * first + start * width..][..panel * width];
                for (k, line) in part.chunks_exact_mut(panel).enumerate() {
                    for (j, slot) in line.iter_mut().enumerate() {
                        *slot = if start + j < outputs { value(start + j, first + k) } else { 0.0 };
                    }
                }
            }
        }
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Panels `start..end` of the block of inputs that begins at `first`.
    fn part(&self, first: usize, width: usize, start: usize, end: usize) -> &[f32] {
        let columns = self.outputs.div_ceil(self.panel) * self.panel;
        let panel = self.panel;
        &self.data.as_ref()[columns * first + start * panel * width..columns * first + end * panel * width]
    }
}

/// Columns of a panel on this CPU.
fn panel_width() -> usize {
    struct Width;
    impl WithSimd for Width {
        type Output = usize;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _simd: S) -> usize {
            2 * S::F32_LANES
        }
    }
    Arch::new().dispatch(Width)
}

/// What happens to a product on its way out.
#[derive(Clone, Copy, Default)]
pub(crate) struct Finish<'a> {
    /// Added to every row.
    pub bias: Option<&'a [f32]>,
    /// Applied after the bias.
    pub activation: Option<Activation>,
    /// Whether the product is added to what the output holds: a residual connection.
    pub add: bool,
}

/// Rows of a matrix that may be part of a wider one.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub data: &'a [f32],
    /// Number of rows.
    pub rows: usize,
    /// Distance between two rows.
    pub stride: usize,
}

/// An output shared by tasks that write to different places of it.
#[derive(Clone, Copy)]
struct Shared {
    data: *mut f32,
    stride: usize,
}
// SAFETY: every task writes only the rows and columns that are its own.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

/// `out = a · weightsᵀ`, finished; spread over the threads of the current pool.
pub(crate) fn product(a: Rows<'_>, weights: &Packed, finish: Finish<'_>, out: &mut [f32], out_stride: usize) {
    if a.rows == 0 {
        return;
    }
    assert!((a.rows - 1) * a.stride + weights.inputs <= a.data.len());
    assert!((a.rows - 1) * out_stride + weights.outputs <= out.len());
    let panels = weights.outputs.div_ceil(weights.panel);
    let threads = rayon::current_num_threads();
    // Blocks of about equal height; with few of them the panels are shared out, too.
    let blocks = a.rows.div_ceil(BLOCK_ROWS);
    let height = a.rows.div_ceil(blocks).next_multiple_of(tile_rows()).min(BLOCK_ROWS);
    let blocks = a.rows.div_ceil(height);
    let groups = if threads == 1 { 1 } else { (4 * threads).div_ceil(blocks).min(panels.div_ceil(4)).max(1) };
    let shared = Shared { data: out.as_mut_ptr(), stride: out_stride };
    let task = |index: usize| {
        let (block, group) = (index / groups, index % groups);
        let rows = block * height..a.rows.min((block + 1) * height);
        let share = group * panels / groups..(group + 1) * panels / groups;
        SCRATCH.with_borrow_mut(|scratch| {
            Arch::new().dispatch(Part { a, weights, finish, shared: &shared, rows, panels: share, scratch })
        });
    };
    match blocks * groups {
        1 => task(0),
        n if threads == 1 => (0..n).for_each(task),
        n => (0..n).into_par_iter().with_max_len(1).for_each(task),
    }
}

/// The product on this thread alone, for small products inside a task.
pub(crate) fn product_here(
    a: Rows<'_>,
    weights: &Packed,
    finish: Finish<'_>,
    out: &mut [f32],
    out_stride: usize,
) {
    if a.rows > 0 {
        assert!((a.rows - 1) * out_stride + weights.outputs <= out.len());
        // SAFETY: the output holds every row and is ours alone.
        unsafe { product_at(a, weights, finish, out.as_mut_ptr(), out_stride) }
    }
}

/// The product on this thread alone, into a place that is part of a larger matrix.
///
/// # Safety
/// `out` must point to as many rows of `weights.outputs()` floats as `a` has, `out_stride` apart, and nothing else
/// may read or write them meanwhile.
pub(crate) unsafe fn product_at(
    a: Rows<'_>,
    weights: &Packed,
    finish: Finish<'_>,
    out: *mut f32,
    out_stride: usize,
) {
    if a.rows == 0 {
        return;
    }
    assert!((a.rows - 1) * a.stride + weights.inputs <= a.data.len());
    let shared = &Shared { data: out, stride: out_stride };
    let panels = weights.outputs.div_ceil(weights.panel);
    for first in (0..a.rows).step_by(BLOCK_ROWS) {
        let rows = first..a.rows.min(first + BLOCK_ROWS);
        SCRATCH.with_borrow_mut(|scratch| {
            Arch::new().dispatch(Part { a, weights, finish, shared, rows, panels: 0..panels, scratch })
        });
    }
}

thread_local! {
    /// The rows of a block, cut to the inputs of a block.
    static SCRATCH: std::cell::RefCell<Aligned> = const { std::cell::RefCell::new(Aligned { lines: Vec::new(), len: 0 }) };
}

/// Rows of a tile on this CPU.
fn tile_rows() -> usize {
    struct Height;
    impl WithSimd for Height {
        type Output = usize;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _simd: S) -> usize {
            tile_rows_of::<S>()
        }
    }
    Arch::new().dispatch(Height)
}

/// Two vectors per row are accumulators; two more hold the panel, one a value of the row.
#[inline(always)]
const fn tile_rows_of<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { TILE_ROWS } else { TILE_ROWS / 2 }
}

/// A block of rows with a group of panels: what one task computes.
struct Part<'a> {
    a: Rows<'a>,
    weights: &'a Packed,
    finish: Finish<'a>,
    shared: &'a Shared,
    rows: std::ops::Range<usize>,
    panels: std::ops::Range<usize>,
    scratch: &'a mut Aligned,
}

impl WithSimd for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Part { a, weights, finish, shared, rows, panels, scratch } = self;
        let (inputs, panel) = (weights.inputs, weights.panel);
        // The reads of a tile stay inside its panel because the panel is as wide as this.
        assert_eq!(panel, 2 * S::F32_LANES, "the width of a panel");
        let mut first = 0;
        loop {
            let width = weights.block.min(inputs - first);
            let last = first + width == inputs;
            // The rows lie close together, so that none of them evicts another.
            let strip = scratch.grow(rows.len() * width);
            for (row, target) in rows.clone().zip(strip.chunks_exact_mut(width)) {
                target.copy_from_slice(&a.data[row * a.stride + first..][..width]);
            }
            let part = weights.part(first, width, panels.start, panels.end);
            for (p, columns) in panels.clone().zip(part.chunks_exact(panel * width)) {
                let column = p * panel;
                let used = panel.min(weights.outputs - column);
                let mut row = 0;
                while row < rows.len() {
                    let height = tile_height::<S>(rows.len() - row);
                    let strip = &strip[row * width..][..height * width];
                    // SAFETY: the asserts of the callers hold every row and column of this tile inside the output.
                    unsafe {
                        let out = shared.data.add((rows.start + row) * shared.stride + column);
                        let add = finish.add || first > 0;
                        let stride = shared.stride;
                        let tile = Tile { strip, columns, width, out, stride, used, add };
                        tile_of_height(simd, height, tile);
                        if last && (finish.bias.is_some() || finish.activation.is_some()) {
                            finish_tile(out, shared.stride, height, used, column, &finish);
                        }
                    }
                    row += height;
                }
            }
            first += width;
            if last {
                break;
            }
        }
    }
}

/// Bias and activation on a tile that is still in the first-level cache. Not inlined: the constants of the
/// activations would take registers away from the product, which needs all but one.
///
/// # Safety
/// `out` must point to `height` rows of `width` floats, `stride` apart.
#[inline(never)]
unsafe fn finish_tile(
    out: *mut f32,
    stride: usize,
    height: usize,
    width: usize,
    column: usize,
    finish: &Finish<'_>,
) {
    vectorised(
        #[inline(always)]
        || {
            for row in 0..height {
                // SAFETY: promised by the caller.
                let out = unsafe { std::slice::from_raw_parts_mut(out.add(row * stride), width) };
                if let Some(bias) = finish.bias {
                    for (value, b) in out.iter_mut().zip(&bias[column..]) {
                        *value += b;
                    }
                }
                if let Some(activation) = finish.activation {
                    activation.apply(out);
                }
            }
        },
    );
}

/// Some rows with one panel.
struct Tile<'a> {
    /// The rows, `width` floats each.
    strip: &'a [f32],
    /// The panel: `width` lines of two vectors.
    columns: &'a [f32],
    width: usize,
    /// Where the tile goes: rows of `used` floats, `stride` apart.
    out: *mut f32,
    stride: usize,
    used: usize,
    /// Whether it is added to what is there.
    add: bool,
}

/// Heights of tiles, from high to low. Each is compiled for each kind of CPU; what is left of a block is cut into a few of them.
const HEIGHTS: [usize; 5] = [12, 6, 3, 2, 1];

/// The highest tile for this CPU that `left` rows fill.
#[inline(always)]
fn tile_height<S: Simd>(left: usize) -> usize {
    let most = tile_rows_of::<S>().min(left);
    HEIGHTS.into_iter().find(|&height| height <= most).unwrap_or(1)
}

/// # Safety
/// `out` must point to `height` rows of `used` floats, `stride` apart; `strip` must hold `height * width` floats, `columns`
/// `width` lines of two vectors.
#[inline(always)]
unsafe fn tile_of_height<S: Simd>(simd: S, height: usize, tile: Tile<'_>) {
    macro_rules! heights {
        ($($height:literal)*) => {
            match height {
                // SAFETY: passed on from the caller.
                $($height => unsafe { tile_of::<S, $height>(simd, tile) },)*
                _ => unreachable!("a tile has one of the heights {HEIGHTS:?}"),
            }
        };
    }
    if S::REGISTER_COUNT >= 32 { heights!(12 6 3 2 1) } else { heights!(6 3 2 1) }
}

/// `R` rows with one panel.
///
/// # Safety
/// As for [`tile_of_height`].
#[inline(always)]
unsafe fn tile_of<S: Simd, const R: usize>(simd: S, tile: Tile<'_>) {
    let Tile { strip, columns, width, out, stride, used, add } = tile;
    let lanes = S::F32_LANES;
    assert!(strip.len() >= R * width && columns.len() >= width * 2 * lanes, "a tile's rows and panel");
    let mut acc = [[simd.splat_f32s(0.0); 2]; R];
    let rows: [*const f32; R] = std::array::from_fn(|i| strip.as_ptr().wrapping_add(i * width));
    let mut panel = columns.as_ptr().cast::<S::f32s>();
    for k in 0..width {
        // SAFETY: `k` stays below `width`; the strip and the panel hold as much.
        unsafe {
            let (left, right) = (panel.read_unaligned(), panel.add(1).read_unaligned());
            panel = panel.add(2);
            for i in 0..R {
                let value = simd.splat_f32s(*rows[i].add(k));
                acc[i][0] = simd.mul_add_e_f32s(value, left, acc[i][0]);
                acc[i][1] = simd.mul_add_e_f32s(value, right, acc[i][1]);
            }
        }
    }
    if used == 2 * lanes {
        for i in 0..R {
            for j in 0..2 {
                // SAFETY: promised by the caller.
                unsafe {
                    let place = out.add(i * stride + j * lanes).cast::<S::f32s>();
                    let value =
                        if add { simd.add_f32s(place.read_unaligned(), acc[i][j]) } else { acc[i][j] };
                    place.write_unaligned(value);
                }
            }
        }
        return;
    }
    for i in 0..R {
        let mut line = [0.0f32; MAX_PANEL];
        for j in 0..2 {
            // SAFETY: a panel is at most `MAX_PANEL` wide.
            unsafe { line.as_mut_ptr().add(j * lanes).cast::<S::f32s>().write_unaligned(acc[i][j]) };
        }
        for (j, value) in line[..used].iter().enumerate() {
            // SAFETY: promised by the caller.
            unsafe {
                let place = out.add(i * stride + j);
                *place = if add { *place + value } else { *value };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed.wrapping_mul(2_654_435_769) | 1;
        (0..n)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                x as f32 / u32::MAX as f32 - 0.5
            })
            .collect()
    }

    #[test]
    fn products_agree_with_the_plain_sum() {
        for (rows, inputs, outputs) in
            [(1, 1, 1), (7, 5, 3), (50, 64, 16), (197, 401, 49), (13, 800, 33), (250, 768, 100)]
        {
            let (a, w, bias) = (noise(rows * inputs, 1), noise(outputs * inputs, 2), noise(outputs, 3));
            let packed = Packed::new(&w, outputs, inputs);
            for add in [false, true] {
                let before = noise(rows * outputs, 4);
                let mut out = before.clone();
                let rows_of = Rows { data: &a, rows, stride: inputs };
                let finish = Finish { bias: Some(&bias), activation: None, add };
                product(rows_of, &packed, finish, &mut out, outputs);
                let mut here = before.clone();
                product_here(rows_of, &packed, finish, &mut here, outputs);
                for i in 0..rows {
                    for j in 0..outputs {
                        let sum: f64 = (0..inputs)
                            .map(|k| a[i * inputs + k] as f64 * w[j * inputs + k] as f64)
                            .sum::<f64>()
                            + bias[j] as f64
                            + if add { before[i * outputs + j] as f64 } else { 0.0 };
                        let got = out[i * outputs + j] as f64;
                        assert!(
                            (got - sum).abs() < 1e-4,
                            "{rows}×{inputs}×{outputs} at {i},{j}: {got} {sum}"
                        );
                        assert!((here[i * outputs + j] as f64 - sum).abs() < 1e-4);
                    }
                }
            }
        }
    }
}
