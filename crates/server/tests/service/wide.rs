//! Memory where features are wide. Alone in its process: `cargo test --test service wide -- --ignored --nocapture`.

use ultta::{Features, Head};

use crate::common::*;

const DIM: usize = 4096;
const CLASSES: usize = 100;

/// Numbers that look random and are the same every time, about normal.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..4 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            sum += (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        }
        sum
    }
}

fn megabytes(what: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(what)).expect("Linux");
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// Bytes of all files in a folder and below it.
fn bytes_in(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let size = |entry: std::fs::DirEntry| {
        let meta = entry.metadata().unwrap();
        if meta.is_dir() { bytes_in(&entry.path()) } else { meta.len() }
    };
    entries.map(size).sum()
}

/// A stream of 4,096 features and 100 classes, with readers and with a copy of the guard: at most 400 MB, and 150 MB on disk.
#[test]
#[ignore = "measures the memory of its process, so it runs alone: bash crates/server/tests/further.sh wide"]
fn wide_features_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut noise = Noise(1);
    let prototypes: Vec<f32> = (0..CLASSES * DIM).map(|_| noise.next()).collect();
    let prototypes = Features::normalized(prototypes, DIM).unwrap().data().to_vec();
    let names = (0..CLASSES).map(|class| format!("class {class}"));
    let head = Head::new(prototypes, DIM, names, 100.0).unwrap();
    let service = Service::start(config(folder.path()));
    service.ensure_with("default", "ul-tta", head.clone());
    for block in 0..20 {
        let rows: Vec<f32> = (0..128 * DIM)
            .map(|i| {
                head.prototypes()[(block * 128 + i / DIM) % CLASSES * DIM + i % DIM] + 0.01 * noise.next()
            })
            .collect();
        let features = Features::normalized(rows, DIM).unwrap();
        let body = safetensors(&features);
        let octets = "application/octet-stream";
        assert_eq!(service.send("/v1/streams/default/classify", octets, &body).0, 200);
        let one = safetensors(&features.slice(0..1));
        assert_eq!(service.send("/v1/streams/default/predict", octets, &one).0, 200);
    }
    std::thread::sleep(std::time::Duration::from_secs(3));
    let held = service.get("/v1/streams/default").1["status"]["health"]["state_bytes"].as_u64().unwrap();
    println!("serving: {:.0} MB resident, {held} bytes of state", megabytes("VmRSS"));
    assert!(megabytes("VmRSS") < 400.0);
    service.stop();
    println!(
        "stopped, a state written: {:.0} MB resident, at most {:.0} MB",
        megabytes("VmRSS"),
        megabytes("VmHWM")
    );
    let on_disk = bytes_in(folder.path());
    println!("on disk, head and log included: {:.1} MB", on_disk as f64 / 1e6);
    assert!(on_disk < 150_000_000);
    let service = Service::start(config(folder.path()));
    println!("opened again: {:.0} MB resident, at most {:.0} MB", megabytes("VmRSS"), megabytes("VmHWM"));
    assert!(megabytes("VmHWM") < 400.0, "at any moment");
    service.stop();
}
