//! [`OrderedWindow`]: exact quantiles of the most recent values.

use std::collections::VecDeque;

/// The last `capacity` values, twice: in order of arrival and in order of size.
///
/// A new value costs two binary searches and the move of at most `capacity` neighbours. With a few hundred floats
/// that is one short `memmove`, so nothing cleverer pays.
#[derive(Clone, Debug)]
pub(crate) struct OrderedWindow {
    /// Oldest first.
    arrived: VecDeque<f32>,
    /// In the order of `f32::total_cmp`.
    sorted: Vec<f32>,
    capacity: usize,
    quantile: f64,
}

impl OrderedWindow {
    pub(crate) fn new(capacity: usize, quantile: f64) -> Self {
        Self {
            arrived: VecDeque::with_capacity(capacity),
            sorted: Vec::with_capacity(capacity),
            capacity,
            quantile: quantile.clamp(0.0, 1.0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The values, oldest first.
    pub(crate) fn values(&self) -> Vec<f32> {
        self.arrived.iter().copied().collect()
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
        if self.capacity == 0 {
            return;
        }
        let new = self.sorted.partition_point(|other| other.total_cmp(&value).is_lt());
        if self.sorted.len() < self.capacity {
            self.arrived.push_back(value);
            self.sorted.insert(new, value);
            return;
        }
        let oldest = self.arrived.pop_front().unwrap_or(value);
        self.arrived.push_back(value);
        let old = self.sorted.partition_point(|other| other.total_cmp(&oldest).is_lt());
        // Only the values between the two places move, by one.
        if old < new {
            self.sorted.copy_within(old + 1..new, old);
            self.sorted[new - 1] = value;
        } else {
            self.sorted.copy_within(new..old, new + 1);
            self.sorted[new] = value;
        }
    }

    /// Holds another quantile from now on.
    pub(crate) fn aim(&mut self, quantile: f64) {
        self.quantile = quantile.clamp(0.0, 1.0);
    }

    /// The quantile with linear interpolation between neighbours (NumPy's default); `None` when empty.
    pub(crate) fn quantile(&self) -> Option<f32> {
        let position = self.quantile * (self.sorted.len().checked_sub(1)?) as f64;
        let (index, fraction) = (position as usize, position.fract());
        let low = self.sorted[index];
        match self.sorted.get(index + 1) {
            Some(&high) if fraction > 0.0 => {
                Some((low as f64 + (high as f64 - low as f64) * fraction) as f32)
            }
            _ => Some(low),
        }
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
