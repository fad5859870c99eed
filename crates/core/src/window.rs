//! Sliding windows that hold a quantile: exact, O(log W) per sample.

/// The last `capacity` values, split at the rank of a quantile: the smaller ones in a heap with the largest of them
/// on top, the others in a heap with the smallest on top. The quantile lies between the two tops.
#[derive(Clone, Debug)]
pub(crate) struct OrderedWindow {
    values: Vec<f32>,
    capacity: usize,
    /// The slot that the next value takes once the ring is full.
    next: usize,
    quantile: f64,
    /// Keys are inverted in `low`, so that both heaps have the smallest key on top.
    low: Heap,
    high: Heap,
    /// Where each slot is: its index in `low`, or in `high` behind [`HIGH`].
    places: Vec<u32>,
}

const HIGH: u32 = 1 << 31;

/// Slots by key, the smallest on top. `mark` is what its indices carry in `places`.
#[derive(Clone, Debug)]
struct Heap {
    entries: Vec<(i32, u32)>,
    mark: u32,
}

impl OrderedWindow {
    pub(crate) fn new(capacity: usize, quantile: f64) -> Self {
        Self {
            values: Vec::with_capacity(capacity),
            capacity,
            next: 0,
            quantile: quantile.clamp(0.0, 1.0),
            low: Heap { entries: Vec::with_capacity(capacity), mark: 0 },
            high: Heap { entries: Vec::with_capacity(capacity), mark: HIGH },
            places: vec![0; capacity],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// The values, oldest first.
    pub(crate) fn values(&self) -> Vec<f32> {
        let split = if self.values.len() < self.capacity { 0 } else { self.next };
        self.values[split..].iter().chain(&self.values[..split]).copied().collect()
    }

    /// A window holding these values, oldest first.
    pub(crate) fn from_values(capacity: usize, quantile: f64, values: &[f32]) -> Self {
        let mut window = Self::new(capacity, quantile);
        for &value in values {
            window.push(value);
        }
        window
    }

    /// Takes in a value; the oldest leaves when the window is full.
    pub(crate) fn push(&mut self, value: f32) {
        let key = order(value);
        if self.values.len() < self.capacity {
            let slot = self.values.len() as u32;
            self.values.push(value);
            self.high.push((key, slot), &mut self.places);
        } else {
            let slot = self.next;
            self.next = (self.next + 1) % self.capacity;
            self.values[slot] = value;
            let place = self.places[slot];
            if place & HIGH == 0 {
                self.low.replace(place as usize, (!key, slot as u32), &mut self.places);
            } else {
                self.high.replace((place & !HIGH) as usize, (key, slot as u32), &mut self.places);
            }
        }
        // At most the new value is on the wrong side, and then it is on top.
        if let (Some(&(low, a)), Some(&(high, b))) = (self.low.entries.first(), self.high.entries.first())
            && !low > high
        {
            self.low.replace(0, (!high, b), &mut self.places);
            self.high.replace(0, (!low, a), &mut self.places);
        }
        self.balance();
    }

    /// Holds another quantile from now on.
    pub(crate) fn aim(&mut self, quantile: f64) {
        let quantile = quantile.clamp(0.0, 1.0);
        if quantile != self.quantile {
            self.quantile = quantile;
            self.balance();
        }
    }

    /// The quantile with linear interpolation between neighbours (NumPy's default); `None` when empty.
    pub(crate) fn quantile(&self) -> Option<f32> {
        let low = self.slot_value(&self.low)?;
        let fraction = self.position().fract();
        match self.slot_value(&self.high) {
            Some(high) if fraction > 0.0 => Some((low as f64 + (high as f64 - low as f64) * fraction) as f32),
            _ => Some(low),
        }
    }

    fn slot_value(&self, heap: &Heap) -> Option<f32> {
        heap.entries.first().map(|&(_, slot)| self.values[slot as usize])
    }

    /// The quantile's place among the sorted values.
    fn position(&self) -> f64 {
        self.quantile * (self.values.len().max(1) - 1) as f64
    }

    /// Moves values across until the split is at the quantile's rank.
    fn balance(&mut self) {
        let wanted = (self.position() as usize + 1).min(self.values.len());
        while self.low.entries.len() < wanted {
            let (key, slot) = self.high.pop(&mut self.places);
            self.low.push((!key, slot), &mut self.places);
        }
        while self.low.entries.len() > wanted {
            let (key, slot) = self.low.pop(&mut self.places);
            self.high.push((!key, slot), &mut self.places);
        }
    }
}

/// An integer in the order of the values (that of `f32::total_cmp`).
fn order(value: f32) -> i32 {
    let bits = value.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

impl Heap {
    fn push(&mut self, entry: (i32, u32), places: &mut [u32]) {
        self.entries.push(entry);
        self.rise(self.entries.len() - 1, entry, places);
    }

    /// Takes the top off a heap that is not empty.
    fn pop(&mut self, places: &mut [u32]) -> (i32, u32) {
        let last = self.entries.len() - 1;
        let top = self.entries[0];
        let entry = self.entries[last];
        self.entries.truncate(last);
        if last > 0 {
            self.sink(0, entry, places);
        }
        top
    }

    fn replace(&mut self, index: usize, entry: (i32, u32), places: &mut [u32]) {
        if index > 0 && entry.0 < self.entries[(index - 1) / 2].0 {
            self.rise(index, entry, places);
        } else {
            self.sink(index, entry, places);
        }
    }

    fn rise(&mut self, mut index: usize, entry: (i32, u32), places: &mut [u32]) {
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.entries[parent].0 <= entry.0 {
                break;
            }
            self.put(index, self.entries[parent], places);
            index = parent;
        }
        self.put(index, entry, places);
    }

    fn sink(&mut self, mut index: usize, entry: (i32, u32), places: &mut [u32]) {
        loop {
            let left = 2 * index + 1;
            let Some(pair) = self.entries.get(left..) else { break };
            let child = match pair {
                [] => break,
                [l, r, ..] if r.0 < l.0 => left + 1,
                _ => left,
            };
            if self.entries[child].0 >= entry.0 {
                break;
            }
            self.put(index, self.entries[child], places);
            index = child;
        }
        self.put(index, entry, places);
    }

    fn put(&mut self, index: usize, entry: (i32, u32), places: &mut [u32]) {
        self.entries[index] = entry;
        places[entry.1 as usize] = index as u32 | self.mark;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain_quantile(values: &[f32], q: f64) -> f32 {
        let mut sorted = values.to_vec();
        sorted.sort_by(f32::total_cmp);
        let position = q * (sorted.len() - 1) as f64;
        let (i, f) = (position.floor() as usize, position.fract());
        let high = sorted[(i + 1).min(sorted.len() - 1)] as f64;
        (sorted[i] as f64 + (high - sorted[i] as f64) * f) as f32
    }

    proptest! {
        #[test]
        fn quantiles_equal_a_sort(values in prop::collection::vec(-5i32..5, 1..200), capacity in 1usize..40, q in 0.0f64..1.0) {
            let mut window = OrderedWindow::new(capacity, 0.5);
            let values: Vec<f32> = values.into_iter().map(|v| v as f32 / 3.0).collect();
            for (i, &v) in values.iter().enumerate() {
                window.push(v);
                let q = if i % 3 == 0 { q } else { 1.0 - q };
                window.aim(q);
                let recent = &values[(i + 1).saturating_sub(capacity)..=i];
                prop_assert_eq!(window.values(), recent);
                prop_assert_eq!(window.quantile().unwrap(), plain_quantile(recent, q));
            }
            let rebuilt = OrderedWindow::from_values(capacity, window.quantile, &window.values());
            prop_assert_eq!(rebuilt.quantile(), window.quantile());
        }
    }
}
