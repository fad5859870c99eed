//! CLIP's residual networks (RN50, RN101 and their wider kin): OpenAI's `ModifiedResNet`, for inference.
//!
//! Three convolutions instead of one begin it, pictures are halved by means instead of strides, and in the end the
//! mean of the grid attends to the grid. Activations are rows of channels, one per place of the grid, so that a
//! convolution is the product of `vit/product` on rows that are gathered strip by strip. Batch norms are folded into
//! the weights when they are read.

use std::cell::RefCell;

use rayon::prelude::*;

use crate::config::{ModelConfig, VisionPool};
use crate::vit::element::Activation;
use crate::vit::product::{Aligned, Finish, Packed, Rows, product, product_here};
use crate::vit::transformer::{Linear, attend};
use crate::weights::{Tensors, WeightsError};

/// What the batch norms add to variances.
const EPS: f32 = 1e-5;

/// Pictures worked on at a time; their widest activations then take a few MB.
const PICTURES_AT_A_TIME: usize = 4;

/// Rows of gathered neighbourhoods that a task makes at a time.
const STRIP_ROWS: usize = 120;

/// The widths of a bottleneck's result and of its inside.
const EXPANSION: usize = 4;

/// A convolution of 1 × 1 or 3 × 3 with its batch norm.
struct Conv {
    weight: Packed,
    bias: Vec<f32>,
    channels: usize,
    side: usize,
    stride: usize,
}

impl Conv {
    /// Reads `{conv}.weight` and the batch norm `{norm}.*`.
    fn load(
        tensors: &Tensors,
        (conv, norm): (&str, &str),
        (channels, outputs): (usize, usize),
        (side, stride): (usize, usize),
    ) -> Result<Self, WeightsError> {
        let taps = side * side;
        let weight = tensors.get(&format!("{conv}.weight"), &[outputs, channels * taps])?;
        let of = |what: &str| tensors.get(&format!("{norm}.{what}"), &[outputs]);
        let (gain, shift) = (of("weight")?, of("bias")?);
        let (mean, variance) = (of("running_mean")?, of("running_var")?);
        if let Some(value) = variance.iter().find(|&&v| v < 0.0) {
            return Err(WeightsError(format!("{norm}.running_var: expected no value below 0, got {value}")));
        }
        let scale: Vec<f32> = gain.iter().zip(&variance).map(|(g, v)| g / (v + EPS).sqrt()).collect();
        let bias = shift.iter().zip(&mean).zip(&scale).map(|((b, m), s)| b - m * s).collect();
        let mut packed = Packed::empty();
        // Files keep a kernel channel by channel; gathered rows have all channels of a place together.
        packed.pack(outputs, channels * taps, |output, input| {
            let (tap, channel) = (input / channels, input % channels);
            scale[output] * weight[(output * channels + channel) * taps + tap]
        });
        Ok(Self { weight: packed, bias, channels, side, stride })
    }

    fn outputs(&self) -> usize {
        self.weight.outputs()
    }

    /// The side of the grid that comes out.
    fn side_after(&self, side: usize) -> usize {
        side.div_ceil(self.stride)
    }

    /// Grids of `side × side` rows; the result goes through ReLU.
    fn forward(&self, x: &[f32], side: usize) -> Vec<f32> {
        let grids = x.len() / (side * side * self.channels);
        let after = self.side_after(side);
        let mut out = vec![0.0; grids * after * after * self.outputs()];
        self.run(x, side, Finish { activation: Some(Activation::Relu), ..self.finish() }, &mut out);
        out
    }

    /// The same without ReLU.
    fn forward_plain(&self, x: &[f32], side: usize) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / self.channels * self.outputs()];
        self.run(x, side, self.finish(), &mut out);
        out
    }

    /// Added to what `out` holds, then through ReLU.
    fn forward_added(&self, x: &[f32], side: usize, out: &mut [f32]) {
        self.run(x, side, Finish { add: true, activation: Some(Activation::Relu), ..self.finish() }, out);
    }

    fn finish(&self) -> Finish<'_> {
        Finish { bias: Some(&self.bias), activation: None, add: false }
    }

    fn run(&self, x: &[f32], side: usize, finish: Finish<'_>, out: &mut [f32]) {
        let outputs = self.outputs();
        if self.side == 1 {
            let rows = Rows { data: x, rows: x.len() / self.channels, stride: self.channels };
            return product(rows, &self.weight, finish, out, outputs);
        }
        let after = self.side_after(side);
        let inputs = self.weight.inputs();
        let rows = out.len() / outputs;
        if rows <= STRIP_ROWS * rayon::current_num_threads() {
            // Too few strips for all threads: the product shares out columns, too.
            let mut gathered = vec![0.0; rows * inputs];
            gathered
                .par_chunks_mut(after * inputs)
                .enumerate()
                .for_each(|(line, part)| self.gather(x, side, line, part));
            return product(
                Rows { data: &gathered, rows, stride: inputs },
                &self.weight,
                finish,
                out,
                outputs,
            );
        }
        let lines = (STRIP_ROWS / after).max(1);
        out.par_chunks_mut(lines * after * outputs).enumerate().for_each(|(strip, out)| {
            GATHERED.with_borrow_mut(|gathered| {
                let rows = out.len() / outputs;
                let gathered = gathered.grow(rows * inputs);
                for (line, part) in gathered.chunks_exact_mut(after * inputs).enumerate() {
                    self.gather(x, side, strip * lines + line, part);
                }
                let rows = Rows { data: gathered, rows, stride: inputs };
                product_here(rows, &self.weight, finish, out, outputs);
            });
        });
    }

    /// The neighbourhoods of one line of the result, lines counted through all grids; zeros outside of the grid.
    fn gather(&self, x: &[f32], side: usize, line: usize, out: &mut [f32]) {
        let (after, channels) = (self.side_after(side), self.channels);
        let (grid, line) = (line / after, line % after);
        let grid = &x[grid * side * side * channels..][..side * side * channels];
        for (column, row) in out.chunks_exact_mut(self.weight.inputs()).enumerate() {
            for (tap, target) in row.chunks_exact_mut(channels).enumerate() {
                let place = |at: usize, tap: usize| (at * self.stride + tap).checked_sub(1);
                match (place(line, tap / self.side), place(column, tap % self.side)) {
                    (Some(y), Some(x)) if y < side && x < side => {
                        target.copy_from_slice(&grid[(y * side + x) * channels..][..channels]);
                    }
                    _ => target.fill(0.0),
                }
            }
        }
    }
}

thread_local! {
    static GATHERED: RefCell<Aligned> = RefCell::new(Aligned::default());
}

/// Means of 2 × 2 places.
fn halve(x: &[f32], side: usize, channels: usize) -> Vec<f32> {
    let after = side / 2;
    let grids = x.len() / (side * side * channels);
    let mut out = vec![0.0; grids * after * after * channels];
    out.par_chunks_mut(after * channels).enumerate().for_each(|(line, out)| {
        let start = ((line / after) * side + 2 * (line % after)) * side * channels;
        let (upper, lower) = (&x[start..], &x[start + side * channels..]);
        for (column, out) in out.chunks_exact_mut(channels).enumerate() {
            let (left, right) = (2 * column * channels, (2 * column + 1) * channels);
            for (channel, out) in out.iter_mut().enumerate() {
                *out = 0.25
                    * (upper[left + channel]
                        + upper[right + channel]
                        + lower[left + channel]
                        + lower[right + channel]);
            }
        }
    });
    out
}

/// Narrow, look around, widen, and add what came in.
struct Bottleneck {
    narrow: Conv,
    around: Conv,
    widen: Conv,
    /// What comes in is brought to the width of what goes out.
    skip: Option<Conv>,
    halves: bool,
}

impl Bottleneck {
    fn load(
        tensors: &Tensors,
        name: &str,
        channels: usize,
        inside: usize,
        halves: bool,
    ) -> Result<Self, WeightsError> {
        let conv = |conv: &str, norm: &str, sizes, side| {
            let names = (format!("{name}.{conv}"), format!("{name}.{norm}"));
            Conv::load(tensors, (&names.0, &names.1), sizes, (side, 1))
        };
        let wide = EXPANSION * inside;
        let skip = if halves || channels != wide {
            Some(conv("downsample.0", "downsample.1", (channels, wide), 1)?)
        } else {
            None
        };
        Ok(Self {
            narrow: conv("conv1", "bn1", (channels, inside), 1)?,
            around: conv("conv2", "bn2", (inside, inside), 3)?,
            widen: conv("conv3", "bn3", (inside, wide), 1)?,
            skip,
            halves,
        })
    }

    fn forward(&self, mut x: Vec<f32>, side: usize) -> Vec<f32> {
        let mut inside = self.narrow.forward(&x, side);
        inside = self.around.forward(&inside, side);
        let mut after = side;
        if self.halves {
            inside = halve(&inside, side, self.around.outputs());
            x = halve(&x, side, self.narrow.channels);
            after /= 2;
        }
        if let Some(skip) = &self.skip {
            x = skip.forward_plain(&x, after);
        }
        self.widen.forward_added(&inside, after, &mut x);
        x
    }
}

/// The image tower.
pub(crate) struct ResNet {
    image_size: usize,
    stem: [Conv; 3],
    stages: Vec<Vec<Bottleneck>>,
    position: Vec<f32>,
    query: Linear,
    kv: Linear,
    out: Linear,
    heads: usize,
}

impl ResNet {
    pub fn load(tensors: &Tensors, model: &ModelConfig) -> Result<Self, WeightsError> {
        let vision = &model.vision;
        let VisionPool::MeanQuery(layers) = vision.pool else {
            return Err(WeightsError("expected a residual network, got a transformer".into()));
        };
        let (width, heads) = (vision.blocks.width, vision.blocks.heads);
        let base = width / 32;
        let stem = |n: usize, sizes, stride| {
            let names = (format!("vision.stem.conv{n}"), format!("vision.stem.bn{n}"));
            Conv::load(tensors, (&names.0, &names.1), sizes, (3, stride))
        };
        let stem =
            [stem(1, (3, base / 2), 2)?, stem(2, (base / 2, base / 2), 1)?, stem(3, (base / 2, base), 1)?];
        let mut channels = base;
        let mut stages = Vec::with_capacity(layers.len());
        for (stage, &count) in layers.iter().enumerate() {
            let inside = base << stage;
            let mut blocks = Vec::with_capacity(count);
            for block in 0..count {
                let name = format!("vision.stages.{stage}.{block}");
                blocks.push(Bottleneck::load(tensors, &name, channels, inside, block == 0 && stage > 0)?);
                channels = EXPANSION * inside;
            }
            stages.push(blocks);
        }
        let part = |which: &str| {
            let weight = tensors.get(&format!("vision.pool.{which}.weight"), &[width, width])?;
            let bias = tensors.get(&format!("vision.pool.{which}.bias"), &[width])?;
            Ok::<_, WeightsError>((weight, bias))
        };
        let (mut wq, mut bq) = part("q")?;
        let scale = 1.0 / ((width / heads) as f32).sqrt();
        wq.iter_mut().chain(&mut bq).for_each(|v| *v *= scale);
        let (mut wk, mut bk) = part("k")?;
        let (wv, bv) = part("v")?;
        wk.extend(wv);
        bk.extend(bv);
        Ok(Self {
            image_size: vision.image_size,
            stem,
            stages,
            position: tensors.get("vision.position", &[vision.tokens(), width])?,
            query: Linear::new(&wq, width, width, Some(bq)),
            kv: Linear::new(&wk, 2 * width, width, Some(bk)),
            out: Linear::load(tensors, "vision.pool.out", model.dim, width, true)?,
            heads,
        })
    }

    /// Floats of one input: three planes.
    pub fn input_len(&self) -> usize {
        3 * self.image_size * self.image_size
    }

    /// Features of normalised pictures, planes one after another; rows are not scaled to unit length.
    pub fn forward(&self, pixels: &[f32]) -> Vec<f32> {
        let part = PICTURES_AT_A_TIME * self.input_len();
        pixels.chunks(part).flat_map(|pixels| self.forward_part(pixels)).collect()
    }

    fn forward_part(&self, pixels: &[f32]) -> Vec<f32> {
        let mut side = self.image_size;
        let places = side * side;
        let mut x = vec![0.0; pixels.len()];
        x.par_chunks_mut(self.input_len()).zip(pixels.par_chunks(self.input_len())).for_each(
            |(x, planes)| {
                for (place, rgb) in x.chunks_exact_mut(3).enumerate() {
                    for (channel, value) in rgb.iter_mut().enumerate() {
                        *value = planes[channel * places + place];
                    }
                }
            },
        );
        for conv in &self.stem {
            x = conv.forward(&x, side);
            side = conv.side_after(side);
        }
        x = halve(&x, side, self.stem[2].outputs());
        side /= 2;
        for block in self.stages.iter().flatten() {
            x = block.forward(x, side);
            if block.halves {
                side /= 2;
            }
        }
        self.pool(&x, side * side)
    }

    /// The mean of a grid attends to the grid and to itself.
    fn pool(&self, grid: &[f32], places: usize) -> Vec<f32> {
        let width = self.query.outputs();
        let tokens = places + 1;
        let pictures = grid.len() / (places * width);
        let mut x = vec![0.0; pictures * tokens * width];
        x.par_chunks_mut(tokens * width).zip(grid.par_chunks(places * width)).for_each(|(x, grid)| {
            let (mean, rest) = x.split_at_mut(width);
            for row in grid.chunks_exact(width) {
                mean.iter_mut().zip(row).for_each(|(m, v)| *m += v);
            }
            mean.iter_mut().for_each(|m| *m /= places as f32);
            rest.copy_from_slice(grid);
            x.iter_mut().zip(&self.position).for_each(|(x, p)| *x += p);
        });
        let means: Vec<f32> = x.chunks_exact(tokens * width).flat_map(|x| &x[..width]).copied().collect();
        let mut queries = vec![0.0; means.len()];
        self.query.forward(&means, &mut queries);
        let mut kv = vec![0.0; 2 * x.len()];
        self.kv.forward(&x, &mut kv);
        let mut mixed = vec![0.0; means.len()];
        let each = mixed.par_chunks_mut(width).zip(queries.par_chunks(width));
        each.zip(kv.par_chunks(tokens * 2 * width)).for_each(|((out, query), kv)| {
            attend(query, kv, tokens, width / self.heads, out);
        });
        let mut features = vec![0.0; pictures * self.out.outputs()];
        self.out.forward(&mixed, &mut features);
        features
    }
}
