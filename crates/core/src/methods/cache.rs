//! A bounded cache of confident samples per class: what TDA, BoostAdapter, Tip-Adapter, DMN and T3A carry.

use crate::{Error, Result, State, kernels};

/// Up to `capacity` feature rows per class: those of lowest entropy.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    dim: usize,
    capacity: usize,
    /// One row per slot.
    keys: Vec<f32>,
    /// Entropy per slot.
    entropy: Vec<f32>,
    /// The slots of each class, most certain first, the older first among equals. Sums run in this order, so
    /// they do not depend on how slots are numbered.
    by_class: Vec<Vec<u32>>,
}

impl Cache {
    pub(crate) fn new(dim: usize, classes: usize, capacity: usize) -> Self {
        Self { dim, capacity, keys: Vec::new(), entropy: Vec::new(), by_class: vec![Vec::new(); classes] }
    }

    /// Adds a sample if its class has room, or if the sample is more certain than the least certain one of its class,
    /// which it then replaces. Returns the sample's slot.
    pub(crate) fn offer(&mut self, class: usize, entropy: f32, key: &[f32]) -> Option<usize> {
        let slots = &mut self.by_class[class];
        let slot = if slots.len() < self.capacity {
            self.entropy.push(entropy);
            self.keys.extend_from_slice(key);
            self.entropy.len() - 1
        } else {
            let worst = *slots.last()? as usize;
            if entropy >= self.entropy[worst] {
                return None;
            }
            slots.pop();
            self.entropy[worst] = entropy;
            self.keys[worst * self.dim..][..self.dim].copy_from_slice(key);
            worst
        };
        let at = slots.partition_point(|&s| self.entropy[s as usize] <= entropy);
        slots.insert(at, slot as u32);
        Some(slot)
    }

    /// Number of classes.
    pub(crate) fn classes(&self) -> usize {
        self.by_class.len()
    }

    /// Number of samples held.
    pub(crate) fn len(&self) -> usize {
        self.entropy.len()
    }

    /// The slots of a class, most certain first.
    pub(crate) fn slots(&self, class: usize) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.by_class[class].iter().map(|&s| s as usize)
    }

    /// The feature row in a slot.
    pub(crate) fn key(&self, slot: usize) -> &[f32] {
        &self.keys[slot * self.dim..][..self.dim]
    }

    /// The entropy of the sample in a slot.
    pub(crate) fn entropy(&self, slot: usize) -> f32 {
        self.entropy[slot]
    }

    /// ⟨z, key⟩ for every slot.
    pub(crate) fn products(&self, z: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.len()];
        if !out.is_empty() {
            kernels::products(z, &self.keys, self.dim, 1.0, &mut out);
        }
        out
    }

    /// Adds `alpha · Σ_i exp(−beta (1 − ⟨z, k_i⟩))` over the keys of each class to its score.
    pub(crate) fn add_affinities(&self, z: &[f32], alpha: f64, beta: f64, scores: &mut [f64]) {
        let products = self.products(z);
        for (score, slots) in scores.iter_mut().zip(&self.by_class) {
            for &slot in slots {
                *score += alpha * (-beta * (1.0 - products[slot as usize] as f64)).exp();
            }
        }
    }

    /// Drops the least certain sample of a class, if it has any.
    pub(crate) fn drop_worst(&mut self, class: usize) {
        let Some(slot) = self.by_class[class].pop() else { return };
        // The last slot moves into the gap.
        let (slot, last) = (slot as usize, self.len() - 1);
        self.entropy.swap_remove(slot);
        if slot != last {
            self.keys.copy_within(last * self.dim..(last + 1) * self.dim, slot * self.dim);
            let moved = self.by_class.iter_mut().flatten().find(|s| **s as usize == last);
            if let Some(moved) = moved {
                *moved = slot as u32;
            }
        }
        self.keys.truncate(last * self.dim);
    }

    /// Slots in the order they are saved in: class by class, most certain first.
    pub(crate) fn order(&self) -> Vec<usize> {
        self.by_class.iter().flatten().map(|&s| s as usize).collect()
    }

    pub(crate) fn save(&self, prefix: &str, state: &mut State) {
        let order = self.order();
        let class_of = |class: usize| std::iter::repeat_n(class as u32, self.by_class[class].len());
        let classes: Vec<u32> = (0..self.by_class.len()).flat_map(class_of).collect();
        let entropy: Vec<f32> = order.iter().map(|&s| self.entropy[s]).collect();
        let keys: Vec<f32> = order.iter().flat_map(|&s| self.key(s)).copied().collect();
        state.put(format!("{prefix}.class"), &classes);
        state.put(format!("{prefix}.entropy"), &entropy);
        state.put(format!("{prefix}.keys"), &keys);
    }

    /// The saved cache, of this one's shape. Slots are numbered in the saved order.
    pub(crate) fn loaded(&self, prefix: &str, state: &State) -> Result<Self> {
        let bad = |reason: &str| Error::state(format!("{prefix}: {reason}"));
        let classes = state.get::<u32>(&format!("{prefix}.class"))?;
        let entropy = state.get_n::<f32>(&format!("{prefix}.entropy"), classes.len())?;
        let keys = state.get_n::<f32>(&format!("{prefix}.keys"), classes.len() * self.dim)?;
        let mut cache = Self::new(self.dim, self.by_class.len(), self.capacity);
        for (slot, (&class, &e)) in classes.iter().zip(entropy).enumerate() {
            let slots = cache.by_class.get_mut(class as usize).ok_or_else(|| bad("class out of range"))?;
            if slots.last().is_some_and(|&s| entropy[s as usize] > e) {
                return Err(bad("entropies out of order"));
            }
            slots.push(slot as u32);
            if slots.len() > self.capacity {
                return Err(bad("more samples of a class than it may hold"));
            }
        }
        cache.entropy = entropy.to_vec();
        cache.keys = keys.to_vec();
        Ok(cache)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.keys.len() * 4 + self.entropy.len() * 8 + self.by_class.len() * size_of::<Vec<u32>>()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.dim, self.by_class.len(), self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certain(cache: &Cache, class: usize) -> Vec<f32> {
        cache.slots(class).map(|s| cache.entropy(s)).collect()
    }

    #[test]
    fn keeps_the_most_certain_and_the_older_among_equals() {
        let mut cache = Cache::new(1, 2, 2);
        for (entropy, key, slot) in [
            (0.5, 1.0, Some(0)),
            (0.2, 2.0, Some(1)),
            (0.5, 3.0, None),
            (0.3, 4.0, Some(0)),
            (0.2, 5.0, Some(0)),
        ] {
            assert_eq!(cache.offer(1, entropy, &[key]), slot);
        }
        assert_eq!(certain(&cache, 1), [0.2, 0.2]);
        assert_eq!(cache.slots(1).map(|s| cache.key(s)[0]).collect::<Vec<_>>(), [2.0, 5.0]);
        assert_eq!(cache.offer(0, 9.0, &[9.0]), Some(2));
        cache.drop_worst(1);
        assert_eq!((certain(&cache, 1), certain(&cache, 0), cache.len()), (vec![0.2], vec![9.0], 2));
        assert_eq!(Cache::new(1, 1, 0).offer(0, 0.0, &[1.0]), None);
    }

    #[test]
    fn a_saved_cache_is_checked() {
        let mut cache = Cache::new(1, 2, 1);
        cache.offer(1, 0.5, &[1.0]);
        let mut state = State::default();
        cache.save("c", &mut state);
        assert_eq!(cache.loaded("c", &state).unwrap().order(), [0]);
        for (class, entropy) in
            [(vec![7u32], vec![0.5f32]), (vec![1, 1], vec![0.1, 0.2]), (vec![1, 1], vec![0.2, 0.1])]
        {
            let mut bad = State::default();
            bad.put("c.class", &class);
            bad.put("c.entropy", &entropy);
            bad.put("c.keys", &vec![1.0f32; class.len()]);
            assert!(cache.loaded("c", &bad).is_err());
        }
    }
}
