use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use base64::Engine;
use serde_json::json;
use ultta_server::{PictureEncoder, PictureError};

use crate::common::*;

/// A model for the tests: the first byte of a picture chooses one of the simulated rows.
struct ByFirstByte(Vec<f32>);

impl PictureEncoder for ByFirstByte {
    fn dim(&self) -> usize {
        DIM
    }

    fn encode(&self, pictures: &[&[u8]]) -> Result<Vec<f32>, PictureError> {
        let mut out = Vec::new();
        for (index, picture) in pictures.iter().enumerate() {
            let reason = || PictureError { index, reason: "not a picture".into() };
            let row = usize::from(*picture.first().ok_or_else(reason)?);
            out.extend(self.0.get(row * DIM..(row + 1) * DIM).ok_or_else(reason)?);
        }
        Ok(out)
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

    fn encode(&self, pictures: &[&[u8]]) -> Result<Vec<f32>, PictureError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        drop(self.gate.read().unwrap());
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.rows.encode(pictures)
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
