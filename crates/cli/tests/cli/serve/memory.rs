//! Memory of a server: what it takes, and that it is given back.

use super::*;
use ultta::Head;

/// Memory of a server, as Linux tells it.
fn megabytes(server: &Server, what: &str) -> f64 {
    held(server, what).expect("Linux, and a server that runs")
}

/// None once it has ended.
fn held(server: &Server, what: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).ok()?;
    let line = status.lines().find(|line| line.starts_with(what))?;
    Some(line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0)
}

/// Stops a server. Its memory at most, the writing of its last state included.
fn stopped(mut server: Server) -> f64 {
    let mut most = megabytes(&server, "VmHWM");
    Command::new("kill").arg(server.pid()).status().unwrap();
    while let Some(now) = held(&server, "VmHWM") {
        most = now;
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(server.child.wait().unwrap().success());
    most
}

/// What large bodies of numbers take is given back when they are answered.
#[test]
fn memory_of_large_bodies_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    // Rows as long as a request may have, each number with many digits: 25 MB.
    let row = format!("[1{}]", format!(",0.{}", "0".repeat(98)).repeat(15));
    let body = format!(r#"{{"features": [{}]}}"#, vec![row; 16_384].join(","));
    let predict = || {
        let request = server.agent.post(format!("http://{}/v1/streams/default/predict", server.address));
        request.header("content-type", "application/json").send(&body).unwrap().status().as_u16()
    };
    assert_eq!(server.post(CLASSIFY, &request(&simulator().next_block(1).0)).unwrap()["learnt"], true);
    let before = megabytes(&server, "VmRSS");
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..6).map(|_| scope.spawn(predict)).collect();
            assert!(asked.into_iter().all(|asked| asked.join().unwrap() == 200));
        });
    }
    let kept = megabytes(&server, "VmRSS");
    let started = Instant::now();
    let mut after = kept;
    while after > before + 40.0 && started.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(200));
        after = megabytes(&server, "VmRSS");
    }
    let most = megabytes(&server, "VmHWM");
    println!(
        "{before:.0} MB before, {most:.0} MB at most, {kept:.0} MB then, {after:.0} MB after {:?}",
        started.elapsed()
    );
    assert!(after <= before + 40.0, "{before:.0} MB before, {most:.0} MB at most, {after:.0} MB after");
    server.terminate();
}

/// So is what many smaller bodies take, whose clients pause and then hang up.
#[test]
fn memory_of_many_smaller_bodies_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let before = megabytes(&server, "VmRSS");
    let wait_for = |what: &str, enough: &dyn Fn(f64) -> bool| {
        let started = Instant::now();
        while !enough(megabytes(&server, "VmRSS")) {
            let now = megabytes(&server, "VmRSS");
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{what}: {before:.0} MB before, {now:.0} MB now"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let head = "POST /v1/streams/default/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1048100\r\n\r\n";
    let pausing = || {
        let mut client = std::net::TcpStream::connect(&server.address).unwrap();
        client.write_all(head.as_bytes()).unwrap();
        client.write_all(&[b' '; 1_048_000]).unwrap();
        client
    };
    let paused: Vec<_> = (0..150).map(|_| pausing()).collect();
    wait_for("while they pause", &|now| now > before + 100.0);
    drop(paused);
    wait_for("when they have hung up", &|now| now < before + 40.0);
    server.terminate();
}

/// Requests whose bodies are small and whose work is not, and whose clients hang up meanwhile: as many are worked on as there are
/// cores, and those that wait for their turn are given up.
#[test]
fn work_for_clients_that_hang_up_takes_memory_in_turns() {
    const CLASSES: usize = 4000;
    const ROWS: usize = 16_000;
    let folder = tempfile::tempdir().unwrap();
    let mut noise = Noise(2);
    let mut rows = |count: usize| -> Features<'static> {
        Features::normalized((0..count * 16).map(|_| noise.next()).collect::<Vec<f32>>(), 16).unwrap()
    };
    let names = (0..CLASSES).map(|class| format!("class {class}"));
    let head = Head::new(rows(CLASSES).data().to_vec(), 16, names, 100.0).unwrap();
    head.save(folder.path().join("head.safetensors")).unwrap();
    let server = Server::start(folder.path(), &[]);
    let body = to_npy(&rows(ROWS));
    assert!(body.len() < 1 << 20);
    let request = format!(
        "POST /v1/streams/default/predict?top=1 HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let before = megabytes(&server, "VmRSS");
    let asking = || {
        let mut client = std::net::TcpStream::connect(&server.address).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        client.write_all(&body).unwrap();
        client
    };
    for _ in 0..3 {
        let asked: Vec<_> = (0..60).map(|_| asking()).collect();
        std::thread::sleep(Duration::from_secs(1));
        drop(asked);
    }
    // One more is answered when its turn comes.
    let last = server.agent.post(format!("http://{}/v1/streams/default/predict", server.address));
    let last = last.header("content-type", "application/octet-stream").send(&body).unwrap();
    assert_eq!(last.status(), 200);
    let most = megabytes(&server, "VmHWM") - before;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    println!("{most:.0} MB more at most, {cores} cores");
    assert!(most < 200.0 + 100.0 * cores, "{most:.0} MB more at most, {cores} cores");
    server.terminate();
}

/// Where numbers belong only numbers are read: 28 MB of other things, with which a reader once took gigabytes.
#[test]
fn a_body_of_other_things_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let megabytes = |what: &str| megabytes(&server, what);
    let before = megabytes("VmRSS");
    let objects = r#"{"":0},"#.repeat(4_000_000);
    let body = format!(
        r#"{{"inputs": [{{"name": "features", "shape": [1, 16], "datatype": "FP32", "data": [{objects}0]}}]}}"#
    );
    let infer = server.agent.post(format!("http://{}/v2/models/default/infer", server.address));
    let refused = infer.header("content-type", "application/json").send(&body).unwrap();
    assert_eq!(refused.status(), 422);
    let most = megabytes("VmHWM");
    assert!(most < before + 80.0, "{before:.0} MB before, {most:.0} MB at most");
    std::thread::sleep(Duration::from_secs(2));
    let after = megabytes("VmRSS");
    assert!(after < before + 40.0, "{before:.0} MB before, {after:.0} MB after");
    server.terminate();
}

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
fn wide_features_take_little_memory() {
    const DIM: usize = 4096;
    const CLASSES: usize = 100;
    let folder = tempfile::tempdir().unwrap();
    let mut noise = Noise(1);
    let prototypes: Vec<f32> = (0..CLASSES * DIM).map(|_| noise.next()).collect();
    let prototypes = Features::normalized(prototypes, DIM).unwrap().data().to_vec();
    let names = (0..CLASSES).map(|class| format!("class {class}"));
    let head = Head::new(prototypes, DIM, names, 100.0).unwrap();
    head.save(folder.path().join("head.safetensors")).unwrap();
    let server = Server::start(folder.path(), &[]);
    let send = |call: &str, features: &Features<'_>| {
        let request = server.agent.post(format!("http://{}/v1/streams/default/{call}", server.address));
        let answer =
            request.header("content-type", "application/octet-stream").send(&to_npy(features)).unwrap();
        assert_eq!(answer.status(), 200);
    };
    for block in 0..20 {
        let rows: Vec<f32> = (0..128 * DIM)
            .map(|i| {
                head.prototypes()[(block * 128 + i / DIM) % CLASSES * DIM + i % DIM] + 0.01 * noise.next()
            })
            .collect();
        let features = Features::normalized(rows, DIM).unwrap();
        send("classify", &features);
        send("predict", &features.slice(0..1));
    }
    std::thread::sleep(Duration::from_secs(3));
    let held = server.get("/v1/streams/default")["status"]["health"]["state_bytes"].as_u64().unwrap();
    println!("serving: {:.0} MB resident, {held} bytes of state", megabytes(&server, "VmRSS"));
    let most = stopped(server);
    println!("a state written: at most {most:.0} MB");
    assert!(most < 400.0, "{most:.0} MB at most");
    let on_disk = bytes_in(&folder.path().join("data"));
    println!("on disk, head and log included: {:.1} MB", on_disk as f64 / 1e6);
    assert!(on_disk < 150_000_000);
    let server = Server::start(folder.path(), &[]);
    assert_eq!(server.seen(), 20 * 128);
    let most = megabytes(&server, "VmHWM");
    println!("opened again: at most {most:.0} MB");
    assert!(most < 400.0, "{most:.0} MB to open it again");
    server.terminate();
}
