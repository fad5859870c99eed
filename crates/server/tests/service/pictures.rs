use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use base64::Engine;
use serde_json::json;
use ultta_server::PictureEncoder;

use crate::common::*;

/// A model for the tests: the first byte of a picture chooses one of the simulated rows.
struct ByFirstByte(Vec<f32>);

impl PictureEncoder for ByFirstByte {
    fn dim(&self) -> usize {
        DIM
    }

    /// The length of the file stands for its pixels.
    fn pixels(&self, picture: &[u8]) -> Result<u64, String> {
        Ok(picture.len() as u64)
    }

    fn encode(&self, picture: &[u8]) -> Result<Vec<f32>, String> {
        let row = usize::from(*picture.first().ok_or("not a picture")?);
        Ok(self.0.get(row * DIM..(row + 1) * DIM).ok_or("not a picture")?.to_vec())
    }
}

const PATH: &str = "/v1/streams/default/pictures";

#[test]
fn pictures_come_raw_as_a_form_and_as_base64() {
    let folder = tempfile::tempdir().unwrap();
    let features = rows(6);
    let encoder = ByFirstByte(features.data().to_vec());
    let mut limits = config(folder.path());
    limits.limits.picture_bytes = 100;
    let service = Service::with_encoder(limits, Some(Arc::new(encoder)));
    service.ensure("default", "ul-tta");
    let mut session = session("ul-tta");
    let (_, answer) = service.send(PATH, "image/png", &[0, 1, 2]);
    assert_same(&answer, &session.step(&features.slice(0..1)).unwrap());
    let form = b"--x\r\ncontent-disposition: form-data; name=\"a\"; filename=\"a.png\"\r\n\r\n\x01\r\n--x\r\ncontent-disposition: form-data; name=\"note\"\r\n\r\nhello\r\n--x\r\ncontent-disposition: form-data; name=\"b\"; filename=\"b.png\"\r\n\r\n\x02\r\n--x--\r\n";
    let (_, answer) = service.send(PATH, "multipart/form-data; boundary=x", form);
    assert_same(&answer, &session.step(&features.slice(1..3)).unwrap());
    let text = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let (_, answer) = service.post(PATH, &json!({"pictures": [text(&[3]), text(&[4])], "refs": ["x", "y"]}));
    assert_same(&answer, &session.step(&features.slice(3..5)).unwrap());
    assert_eq!(answer["rows"][1]["ref"], "y");
    assert_eq!(service.state("default"), session.state().to_bytes().unwrap());
    let (_, answer) = service.send(&format!("{PATH}/predict"), "image/jpeg", &[5]);
    assert_eq!(answer["learnt"], false);

    let (status, problem) = service.send(PATH, "image/png", &[]);
    let empty = "picture 0: the file is empty (did curl find the file?)";
    assert_eq!((status, problem["detail"].as_str()), (422, Some(empty)));
    let (status, problem) = service.send(PATH, "image/png", &[77]);
    assert_eq!((status, problem["detail"].as_str()), (422, Some("picture 0: not a picture")));
    assert_eq!(service.post(PATH, &json!({"pictures": ["***"]})).0, 400);
    assert_eq!(service.send(PATH, "image/png", &[0; 200]).0, 413);
    assert_eq!(service.send(PATH, "text/plain", &[0]).0, 415);
    assert_eq!(service.send(PATH, "multipart/form-data; boundary=x", b"--y").0, 400);
    assert_eq!(service.get("/v1/config").1["pictures"], true);
    service.stop();
}

/// A model that works while its gate is open, and counts how many it works for at once.
struct Gated {
    rows: ByFirstByte,
    gate: RwLock<()>,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl PictureEncoder for Gated {
    fn dim(&self) -> usize {
        DIM
    }

    fn pixels(&self, picture: &[u8]) -> Result<u64, String> {
        self.rows.pixels(picture)
    }

    fn encode(&self, picture: &[u8]) -> Result<Vec<f32>, String> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        drop(self.gate.read().unwrap());
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.rows.encode(picture)
    }
}

#[test]
fn as_many_requests_are_encoded_at_once_as_there_are_cores_and_few_wait() {
    let folder = tempfile::tempdir().unwrap();
    let rows = ByFirstByte(rows(6).data().to_vec());
    let gated = Gated { rows, gate: RwLock::new(()), now: AtomicUsize::new(0), most: AtomicUsize::new(0) };
    let (gated, cores) = (Arc::new(gated), std::thread::available_parallelism().unwrap().get());
    let mut limits = config(folder.path());
    limits.limits.picture_queue = 2;
    let service = Service::with_encoder(limits, Some(gated.clone()));
    service.ensure("default", "ul-tta");
    let closed = gated.gate.write().unwrap();
    std::thread::scope(|scope| {
        let send = || scope.spawn(|| service.send(PATH, "image/png", &[0]).0);
        let requests: Vec<_> = (0..cores + 7).map(|_| send()).collect();
        eventually("some are refused", || requests.iter().filter(|r| r.is_finished()).count() == 5);
        eventually("every core has a picture", || gated.now.load(Ordering::SeqCst) == cores);
        drop(closed);
        let answers: Vec<u16> = requests.into_iter().map(|r| r.join().unwrap()).collect();
        assert_eq!(answers.iter().filter(|&&status| status == 200).count(), cores + 2, "{answers:?}");
        assert_eq!(answers.iter().filter(|&&status| status == 429).count(), 5, "{answers:?}");
    });
    assert_eq!(gated.most.load(Ordering::SeqCst), cores);
    service.stop();
}

#[test]
fn without_a_model_the_answer_says_how_to_load_one() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (status, problem) = service.send(PATH, "image/png", &[0]);
    assert_eq!(
        (status, problem["detail"].as_str()),
        (
            501,
            Some(
                "this server has no image model; its operator can start it with one (`ultta serve --model`)"
            )
        )
    );
    service.stop();
}

/// A model that takes its time, and counts the pictures it was given.
struct Slow {
    rows: ByFirstByte,
    begun: AtomicUsize,
}

impl PictureEncoder for Slow {
    fn dim(&self) -> usize {
        DIM
    }

    fn pixels(&self, picture: &[u8]) -> Result<u64, String> {
        self.rows.pixels(picture)
    }

    fn encode(&self, picture: &[u8]) -> Result<Vec<f32>, String> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(20));
        self.rows.encode(picture)
    }
}

fn many(pictures: usize) -> Vec<u8> {
    serde_json::to_vec(&json!({"pictures": vec!["AA=="; pictures]})).unwrap()
}

/// A request of many pictures takes turns with others, ends when its client goes, and may have a limited number of pixels.
#[test]
fn many_pictures_neither_keep_others_waiting_nor_outlive_their_client() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let slow = Arc::new(Slow { rows: ByFirstByte(rows(6).data().to_vec()), begun: AtomicUsize::new(0) });
    let mut limits = config(folder.path());
    limits.limits.request_pixels = 2000;
    let service = Service::with_encoder(limits, Some(slow.clone()));
    service.ensure("default", "ul-tta");
    let cores = std::thread::available_parallelism().unwrap().get();
    // 1,000 pictures of 20 ms for every core, twice over.
    let body = many(1000);
    let greedy: Vec<_> = (0..2 * cores)
        .map(|_| {
            let mut socket = std::net::TcpStream::connect(service.address).unwrap();
            let head = format!(
                "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            socket.write_all(head.as_bytes()).unwrap();
            socket.write_all(&body).unwrap();
            socket
        })
        .collect();
    eventually("the model is at work", || slow.begun.load(Ordering::SeqCst) > 2 * cores);
    assert_eq!(service.send(PATH, "image/png", &[0]).0, 200);
    assert!(slow.begun.load(Ordering::SeqCst) < 1000, "the others are still at it");
    drop(greedy);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let begun = slow.begun.load(Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(slow.begun.load(Ordering::SeqCst), begun, "nobody waits for it any more");
    let (status, problem) = service.send(PATH, "application/json", &many(2001));
    assert_eq!(status, 413, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("limits.request_pixels"), "{problem}");
    assert_eq!(slow.begun.load(Ordering::SeqCst), begun, "refused before any work");
    service.stop();
}

/// A model that notes the priority of the thread it works on.
#[cfg(target_os = "linux")]
struct Noting {
    rows: ByFirstByte,
    seen: std::sync::Mutex<Vec<i32>>,
}

/// The niceness of the calling thread.
#[cfg(target_os = "linux")]
fn niceness() -> i32 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
impl PictureEncoder for Noting {
    fn dim(&self) -> usize {
        DIM
    }

    fn pixels(&self, picture: &[u8]) -> Result<u64, String> {
        self.seen.lock().unwrap().push(niceness());
        self.rows.pixels(picture)
    }

    fn encode(&self, picture: &[u8]) -> Result<Vec<f32>, String> {
        self.seen.lock().unwrap().push(niceness());
        if picture == [5] {
            panic!("the model fails, as the test wants");
        }
        self.rows.encode(picture)
    }
}

/// Pictures take long: what is done with them stands behind all other requests, and a model that fails costs its picture only.
#[cfg(target_os = "linux")]
#[test]
fn pictures_stand_behind_other_requests() {
    let folder = tempfile::tempdir().unwrap();
    let noting = Arc::new(Noting { rows: ByFirstByte(rows(6).data().to_vec()), seen: Default::default() });
    let service = Service::with_encoder(config(folder.path()), Some(noting.clone()));
    service.ensure("default", "ul-tta");
    let cores = std::thread::available_parallelism().unwrap().get();
    for _ in 0..2 * cores {
        let (status, problem) = service.send(PATH, "image/png", &[5]);
        assert_eq!(status, 422, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("the image model failed"), "{problem}");
        assert_eq!(service.send(PATH, "image/png", &[0]).0, 200);
    }
    let expected = (niceness() + 10).min(19);
    let seen = noting.seen.lock().unwrap();
    assert!(seen.len() == 8 * cores && seen.iter().all(|&own| own == expected), "{expected}: {seen:?}");
    service.stop();
}
