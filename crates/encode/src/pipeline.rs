//! Pictures to features on all cores: files are read and decoded by several threads while the encoder works on what
//! they finished before. The order is kept, and so few pictures are under way that memory stays flat.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, mpsc};

use ultta::Features;

use crate::decode::{Limits, Picture, decode};
use crate::encoder::Encoder;
use crate::preprocess::preprocess;
use crate::resize::{Frame, resized};
use crate::source::Item;
use crate::{Error, Result};

/// How a pipeline runs.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that read and decode.
    pub workers: usize,
    /// Pictures encoded together.
    pub batch: usize,
    /// What a picture may cost.
    pub limits: Limits,
    /// Whether pictures are kept beside their features, for views of them.
    pub keep_pictures: bool,
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self { workers: cores, batch: 8, limits: Limits::default(), keep_pictures: false }
    }
}

/// Some pictures that follow one another, in order.
pub struct Block<'a> {
    /// Index of the first.
    pub start: usize,
    /// The items.
    pub items: &'a [Item],
    /// Per item, its row in the features, or why it has none.
    pub rows: Vec<Result<usize>>,
    /// One row per picture that could be read.
    pub features: Features<'static>,
    /// The pictures of the rows, reduced in size, if they were asked for.
    pub pictures: Vec<Picture>,
}

/// Pictures under way per worker.
const AHEAD: usize = 4;

/// A picture kept for views is at most this many times as large as the encoder's input.
const KEEP: usize = 2;

struct Ready {
    pixels: Vec<f32>,
    picture: Option<Picture>,
}

/// Which item is next, and how many have been taken out at the other end.
struct Window {
    next: usize,
    done: usize,
    stopped: bool,
}

/// Encodes all items; `take` gets block after block and may stop the run.
pub fn run(
    items: &[Item],
    encoder: &dyn Encoder,
    options: &Options,
    mut take: impl FnMut(Block<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let workers = options.workers.clamp(1, 256);
    let batch = options.batch.max(1);
    let width = batch + workers * AHEAD;
    let window = Mutex::new(Window { next: 0, done: 0, stopped: false });
    let moved = Condvar::new();
    let (sender, receiver) = mpsc::channel::<(usize, Result<Ready>)>();
    let lock = || window.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let sender = sender.clone();
            let (lock, moved) = (&lock, &moved);
            scope.spawn(move || {
                loop {
                    let index = {
                        let mut window = lock();
                        while !window.stopped
                            && window.next < items.len()
                            && window.next >= window.done + width
                        {
                            window = moved.wait(window).unwrap_or_else(|poisoned| poisoned.into_inner());
                        }
                        if window.stopped || window.next >= items.len() {
                            return;
                        }
                        window.next += 1;
                        window.next - 1
                    };
                    let ready = prepare(&items[index], encoder, options);
                    if sender.send((index, ready)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut waiting: BTreeMap<usize, Result<Ready>> = BTreeMap::new();
        let mut start = 0;
        let mut outcome = Ok(());
        while start < items.len() {
            let end = items.len().min(start + batch);
            // The next block is complete when all of its items are here.
            while waiting.range(start..end).count() < end - start {
                let Ok((index, ready)) = receiver.recv() else { break };
                waiting.insert(index, ready);
            }
            let block: Vec<Result<Ready>> = (start..end).filter_map(|i| waiting.remove(&i)).collect();
            {
                let mut window = lock();
                window.done = end;
                moved.notify_all();
            }
            match encode(block, encoder, start, &items[start..end]).and_then(&mut take) {
                Ok(ControlFlow::Continue(())) => start = end,
                Ok(ControlFlow::Break(())) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        lock().stopped = true;
        moved.notify_all();
        outcome
    })
}

fn encode<'a>(
    block: Vec<Result<Ready>>,
    encoder: &dyn Encoder,
    start: usize,
    items: &'a [Item],
) -> Result<Block<'a>> {
    let mut pixels = Vec::new();
    let mut pictures = Vec::new();
    let mut rows = Vec::with_capacity(block.len());
    let mut n = 0;
    for ready in block {
        rows.push(ready.map(|ready| {
            pixels.extend(ready.pixels);
            pictures.extend(ready.picture);
            n += 1;
            n - 1
        }));
    }
    let features = match n {
        0 => Features::empty(encoder.dim()),
        _ => encoder.images(&pixels)?,
    };
    Ok(Block { start, items, rows, features, pictures })
}

/// Reads, decodes and preprocesses one picture. A decoder that panics on a broken file costs that file alone.
fn prepare(item: &Item, encoder: &dyn Encoder, options: &Options) -> Result<Ready> {
    let work = || {
        let picture = decode(&item.read(options.limits.bytes)?, &options.limits)?;
        let pixels = preprocess(&picture, encoder.preprocess())?;
        let picture = if options.keep_pictures { Some(for_views(picture, encoder)?) } else { None };
        Ok(Ready { pixels, picture })
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(ready) => ready,
        Err(_) => Err(Error::picture("the decoder gave up on it")),
    }
}

/// A picture as views are made of it: reduced to a size that is still larger than the encoder's input.
pub fn for_views(picture: Picture, encoder: &dyn Encoder) -> Result<Picture> {
    reduced(picture, KEEP * encoder.preprocess().size)
}

/// A picture whose shorter side is at most this long.
fn reduced(picture: Picture, side: usize) -> Result<Picture> {
    let shorter = picture.width.min(picture.height);
    if shorter <= side {
        return Ok(picture);
    }
    let scaled = |length: usize| (length * side / shorter).max(1);
    let frame = Frame { left: 0.0, top: 0.0, width: picture.width as f64, height: picture.height as f64 };
    let (width, height) = (scaled(picture.width), scaled(picture.height));
    resized(&picture, frame, width, height, crate::config::Filter::Bilinear)
}
