//! Small made-up packs for tests.

use std::path::{Path, PathBuf};

use ultta::{Features, Head};
use ultta_formats::numbers::Number;
use ultta_formats::tensors::{NewTensor, to_bytes};

use crate::dataset::{Dataset, name_all};
use crate::random::Random;

pub(crate) const DIM: usize = 32;

/// What a made-up pack is.
pub(crate) struct Made<'a> {
    pub name: &'a str,
    /// None where it is empty.
    pub encoder: &'a str,
    /// First word of its class names.
    pub class: &'a str,
    pub classes: usize,
    pub rows: usize,
    pub labels: bool,
    /// Which rows may teach; the file says so where not all may.
    pub learn: fn(usize) -> bool,
}

impl<'a> Made<'a> {
    /// Five classes, 300 rows.
    pub fn named(name: &'a str) -> Self {
        Self { name, encoder: "toy", class: name, classes: 5, rows: 300, labels: true, learn: |_| true }
    }

    /// Writes features and head into a folder of this name.
    pub fn write(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let folder = folder.join(self.name);
        std::fs::create_dir_all(&folder).unwrap();
        let mut random = Random::new(self.name.bytes().map(u64::from).sum());
        let mut noise = |n: usize| -> Vec<f32> { (0..n).map(|_| random.normal() as f32).collect() };
        let (common, text) = (noise(DIM), noise(self.classes * DIM));
        let text = Features::normalized(text, DIM).unwrap().data().to_vec();
        let labels: Vec<i64> = (0..self.rows).map(|i| (i * self.classes / self.rows) as i64).collect();
        let spread = noise(self.rows * DIM);
        let row = |i: usize| {
            let class = labels[i / DIM] as usize;
            text[class * DIM + i % DIM] + 0.15 * (common[i % DIM] + spread[i])
        };
        let rows = Features::normalized((0..self.rows * DIM).map(row).collect::<Vec<f32>>(), DIM).unwrap();
        let (rows, marks) = (f32::encode(rows.data()), i64::encode(&labels));
        let shape = vec![self.rows, DIM];
        let mut tensors = vec![NewTensor { name: "features", dtype: f32::DTYPE, shape, bytes: &rows }];
        if self.labels {
            let shape = vec![self.rows];
            tensors.push(NewTensor { name: "labels", dtype: i64::DTYPE, shape, bytes: &marks });
        }
        let learn: Vec<u8> = (0..self.rows).map(|row| u8::from((self.learn)(row))).collect();
        if learn.contains(&0) {
            let shape = vec![self.rows];
            tensors.push(NewTensor { name: "learn", dtype: u8::DTYPE, shape, bytes: &learn });
        }
        let metadata =
            [("dataset", self.name), ("encoder", self.encoder)].into_iter().filter(|m| !m.1.is_empty());
        let metadata = metadata.map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let paths = (folder.join("features.safetensors"), folder.join("head.safetensors"));
        std::fs::write(&paths.0, to_bytes(tensors, &metadata)).unwrap();
        let names: Vec<String> = (0..self.classes).map(|c| format!("{} {c}", self.class)).collect();
        Head::new(text, DIM, names, 20.0).unwrap().save(&paths.1).unwrap();
        paths
    }
}

/// Writes packs and opens them.
pub(crate) fn datasets(folder: &Path, packs: &[Made<'_>]) -> Vec<Dataset> {
    let open = |made: &Made<'_>| {
        let (features, head) = made.write(folder);
        Dataset::open(&features, &head).unwrap()
    };
    let mut datasets: Vec<Dataset> = packs.iter().map(open).collect();
    name_all(&mut datasets).unwrap();
    datasets
}
