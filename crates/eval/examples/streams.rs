//! Every pack under a folder, in several orders and shuffles: top-1 and ECE of a method beside zero-shot.
use std::path::{Path, PathBuf};
use ultta::*;

fn labels(path: &Path) -> Vec<usize> {
    let bytes = std::fs::read(path).unwrap();
    let t = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    t.tensor("labels")
        .unwrap()
        .data()
        .as_chunks::<8>()
        .0
        .iter()
        .map(|b| i64::from_le_bytes(*b) as usize)
        .collect()
}
struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    }
    fn shuffle<T>(&mut self, v: &mut [T]) {
        for i in (1..v.len()).rev() {
            let j = (self.next() % (i as u64 + 1)) as usize;
            v.swap(i, j);
        }
    }
}
fn order(y: &[usize], c: usize, kind: &str, seed: u64) -> Vec<usize> {
    let mut rng = Rng(seed * 1000 + 17);
    let mut ix: Vec<usize> = (0..y.len()).collect();
    match kind {
        "iid" => rng.shuffle(&mut ix),
        "partial" => {
            let mut cs: Vec<usize> = (0..c).collect();
            rng.shuffle(&mut cs);
            let keep = ((0.2 * c as f64).round() as usize).max(2);
            let k: Vec<bool> = {
                let mut k = vec![false; c];
                for &x in &cs[..keep] {
                    k[x] = true;
                }
                k
            };
            ix.retain(|&i| k[y[i]]);
            rng.shuffle(&mut ix);
        }
        "sorted" => {
            rng.shuffle(&mut ix);
            let mut cs: Vec<usize> = (0..c).collect();
            rng.shuffle(&mut cs);
            let mut rank = vec![0; c];
            for (r, &x) in cs.iter().enumerate() {
                rank[x] = r;
            }
            ix.sort_by_key(|&i| rank[y[i]]);
        }
        _ => {}
    }
    ix
}
fn ece(v: &[(f32, bool)]) -> f64 {
    let mut b = [(0.0f64, 0.0f64, 0.0f64); 15];
    for &(p, ok) in v {
        let k = ((p as f64 * 15.0) as usize).min(14);
        b[k].0 += 1.0;
        b[k].1 += p as f64;
        b[k].2 += f64::from(u8::from(ok));
    }
    b.iter().map(|b| (b.1 - b.2).abs()).sum::<f64>() / v.len() as f64
}
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let get = |k: &str| args.iter().position(|a| a == k).map(|i| args[i + 1].clone());
    let data = PathBuf::from(get("--data").unwrap_or("../shared/data".into()));
    let method = get("--method").unwrap_or("ul-tta".into());
    let orders = get("--orders").unwrap_or("iid,sorted,partial".into());
    let seeds: u64 = get("--seeds").map_or(5, |s| s.parse().unwrap());
    let only = get("--only").unwrap_or_default();
    let sets: Vec<(String, String)> = args
        .windows(2)
        .filter(|w| w[0] == "--set")
        .map(|w| {
            let (k, v) = w[1].split_once('=').unwrap();
            (k.into(), v.into())
        })
        .collect();
    let sets: Vec<(&str, &str)> = sets.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let (m, p) = match method.split_once(':') {
        Some((m, p)) => (m, Some(p)),
        None => (method.as_str(), None),
    };
    let config = Config::resolve(None, Some(m), p, &sets).unwrap();
    let mut packs: Vec<PathBuf> = std::fs::read_dir(&data)
        .unwrap()
        .filter_map(|d| d.ok())
        .filter(|d| d.path().is_dir())
        .flat_map(|d| std::fs::read_dir(d.path()).unwrap().map(|x| x.unwrap().path()))
        .filter(|p| p.join("head.safetensors").exists())
        .collect();
    packs.sort();
    for kind in orders.split(',') {
        let mut all = vec![];
        for pack in &packs {
            if !pack.to_str().unwrap().contains(&only) {
                continue;
            }
            let f = FeatureFile::open(pack.join("features.safetensors")).unwrap().read_all(false).unwrap();
            let y = labels(&pack.join("features.safetensors"));
            let head = std::sync::Arc::new(Head::load(pack.join("head.safetensors")).unwrap());
            let rows: Vec<[f64; 6]> = std::thread::scope(|s| {
                let hs: Vec<_> = (0..2u64)
                    .map(|t| {
                        let (f, y, head, config) = (&f, &y, &head, &config);
                        s.spawn(move || {
                            (0..seeds)
                                .filter(|x| x % 2 == t)
                                .map(|seed| {
                                    let ix = order(y, head.n_classes(), kind, seed);
                                    let x = f.select(&ix);
                                    let mut session = Session::new(head.clone(), config).unwrap();
                                    let t0 = std::time::Instant::now();
                                    let step = session
                                        .step_with(&Input { keep_scores: false, ..Input::new(&x) })
                                        .unwrap();
                                    let us = t0.elapsed().as_secs_f64() * 1e6 / ix.len() as f64;
                                    let a: Vec<_> = step
                                        .rows
                                        .iter()
                                        .zip(&ix)
                                        .map(|(r, &i)| (r.prob, r.label == y[i]))
                                        .collect();
                                    let z: Vec<_> = step
                                        .rows
                                        .iter()
                                        .zip(&ix)
                                        .map(|(r, &i)| (r.zero_shot.prob, r.zero_shot.label == y[i]))
                                        .collect();
                                    let acc = |v: &[(f32, bool)]| {
                                        v.iter().filter(|x| x.1).count() as f64 / v.len() as f64
                                    };
                                    [acc(&z), acc(&a), ece(&z), ece(&a), us, step.health.guard_fired as f64]
                                })
                                .collect::<Vec<_>>()
                        })
                    })
                    .collect();
                hs.into_iter().flat_map(|h| h.join().unwrap()).collect()
            });
            let n = rows.len() as f64;
            let mean: Vec<f64> = (0..6).map(|k| rows.iter().map(|r| r[k]).sum::<f64>() / n).collect();
            println!(
                "{kind:8} {:24} {:6.2} -> {:6.2} ({:+.2})  ece {:6.2} -> {:6.2}   {:.1} us  fired {}",
                pack.parent().unwrap().file_name().unwrap().to_str().unwrap(),
                100.0 * mean[0],
                100.0 * mean[1],
                100.0 * (mean[1] - mean[0]),
                100.0 * mean[2],
                100.0 * mean[3],
                mean[4],
                mean[5]
            );
            all.push(mean);
        }
        let n = all.len() as f64;
        let m: Vec<f64> = (0..6).map(|k| all.iter().map(|r| r[k]).sum::<f64>() / n).collect();
        println!(
            "{kind:8} MEAN                     {:6.2} -> {:6.2} ({:+.2})  ece {:6.2} -> {:6.2} ({:.3}x)",
            100.0 * m[0],
            100.0 * m[1],
            100.0 * (m[1] - m[0]),
            100.0 * m[2],
            100.0 * m[3],
            m[3] / m[2]
        );
    }
}
