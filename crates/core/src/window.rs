//! Sliding windows that answer order statistics: exact quantiles in O(log W) per sample.

/// The last `capacity` values, with their order. A treap over the ring's slots; its shape depends on the slots
/// alone, so a window rebuilt from its values behaves the same.
#[derive(Clone, Debug)]
pub(crate) struct OrderedWindow {
    values: Vec<f32>,
    capacity: usize,
    /// The slot that the next value takes once the ring is full.
    next: usize,
    left: Vec<u32>,
    right: Vec<u32>,
    size: Vec<u32>,
    root: u32,
}

const NONE: u32 = u32::MAX;

impl OrderedWindow {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            values: Vec::with_capacity(capacity),
            capacity,
            next: 0,
            left: vec![NONE; capacity],
            right: vec![NONE; capacity],
            size: vec![0; capacity],
            root: NONE,
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
    pub(crate) fn from_values(capacity: usize, values: &[f32]) -> Self {
        let mut window = Self::new(capacity);
        for &value in values {
            window.push(value);
        }
        window
    }

    /// Takes in a value; the oldest leaves when the window is full.
    pub(crate) fn push(&mut self, value: f32) {
        let slot = if self.values.len() < self.capacity {
            self.values.push(value);
            self.values.len() - 1
        } else {
            let slot = self.next;
            self.next = (self.next + 1) % self.capacity;
            self.root = self.remove(self.root, (self.values[slot], slot as u32));
            self.values[slot] = value;
            slot
        } as u32;
        self.left[slot as usize] = NONE;
        self.right[slot as usize] = NONE;
        self.size[slot as usize] = 1;
        self.root = self.insert(self.root, slot);
    }

    /// The `q`-quantile with linear interpolation between neighbours (NumPy's default); `None` when empty.
    pub(crate) fn quantile(&self, q: f64) -> Option<f32> {
        let n = self.values.len();
        if n == 0 {
            return None;
        }
        let position = q.clamp(0.0, 1.0) * (n - 1) as f64;
        let below = position.floor() as usize;
        let low = self.kth(below);
        let fraction = position - below as f64;
        if fraction == 0.0 {
            return Some(low);
        }
        let high = self.kth(below + 1);
        Some((low as f64 + (high as f64 - low as f64) * fraction) as f32)
    }

    fn kth(&self, mut k: usize) -> f32 {
        let mut node = self.root;
        loop {
            let left = self.left[node as usize];
            let smaller = self.count(left) as usize;
            match k.cmp(&smaller) {
                std::cmp::Ordering::Less => node = left,
                std::cmp::Ordering::Equal => return self.values[node as usize],
                std::cmp::Ordering::Greater => {
                    k -= smaller + 1;
                    node = self.right[node as usize];
                }
            }
        }
    }

    fn count(&self, node: u32) -> u32 {
        if node == NONE { 0 } else { self.size[node as usize] }
    }

    fn resize(&mut self, node: u32) {
        let (l, r) = (self.left[node as usize], self.right[node as usize]);
        self.size[node as usize] = 1 + self.count(l) + self.count(r);
    }

    /// Heap order of the treap: a fixed scramble of the slot number.
    fn priority(node: u32) -> u32 {
        (node ^ 0x9e37_79b9).wrapping_mul(0x85eb_ca6b).rotate_left(13).wrapping_mul(0xc2b2_ae35)
    }

    fn before(&self, a: (f32, u32), b: (f32, u32)) -> bool {
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).is_lt()
    }

    fn key(&self, node: u32) -> (f32, u32) {
        (self.values[node as usize], node)
    }

    fn insert(&mut self, tree: u32, node: u32) -> u32 {
        if tree == NONE {
            return node;
        }
        if Self::priority(node) > Self::priority(tree) {
            let (l, r) = self.split(tree, self.key(node));
            self.left[node as usize] = l;
            self.right[node as usize] = r;
            self.resize(node);
            return node;
        }
        if self.before(self.key(node), self.key(tree)) {
            self.left[tree as usize] = self.insert(self.left[tree as usize], node);
        } else {
            self.right[tree as usize] = self.insert(self.right[tree as usize], node);
        }
        self.size[tree as usize] += 1;
        tree
    }

    fn split(&mut self, tree: u32, key: (f32, u32)) -> (u32, u32) {
        if tree == NONE {
            return (NONE, NONE);
        }
        let parts = if self.before(self.key(tree), key) {
            let (l, r) = self.split(self.right[tree as usize], key);
            self.right[tree as usize] = l;
            (tree, r)
        } else {
            let (l, r) = self.split(self.left[tree as usize], key);
            self.left[tree as usize] = r;
            (l, tree)
        };
        self.resize(tree);
        parts
    }

    fn merge(&mut self, l: u32, r: u32) -> u32 {
        if l == NONE {
            return r;
        }
        if r == NONE {
            return l;
        }
        if Self::priority(l) > Self::priority(r) {
            self.right[l as usize] = self.merge(self.right[l as usize], r);
            self.resize(l);
            l
        } else {
            self.left[r as usize] = self.merge(l, self.left[r as usize]);
            self.resize(r);
            r
        }
    }

    fn remove(&mut self, tree: u32, key: (f32, u32)) -> u32 {
        if tree == key.1 {
            return self.merge(self.left[tree as usize], self.right[tree as usize]);
        }
        if self.before(key, self.key(tree)) {
            self.left[tree as usize] = self.remove(self.left[tree as usize], key);
        } else {
            self.right[tree as usize] = self.remove(self.right[tree as usize], key);
        }
        self.size[tree as usize] -= 1;
        tree
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
            let mut window = OrderedWindow::new(capacity);
            let values: Vec<f32> = values.into_iter().map(|v| v as f32 / 3.0).collect();
            for (i, &v) in values.iter().enumerate() {
                window.push(v);
                let recent = &values[(i + 1).saturating_sub(capacity)..=i];
                prop_assert_eq!(window.values(), recent);
                prop_assert_eq!(window.quantile(q).unwrap(), plain_quantile(recent, q));
            }
            let rebuilt = OrderedWindow::from_values(capacity, &window.values());
            prop_assert_eq!(rebuilt.quantile(q), window.quantile(q));
        }
    }
}
