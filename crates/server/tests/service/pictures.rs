use std::sync::Arc;

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
    let form = b"--x\r\ncontent-disposition: form-data; name=\"a\"; filename=\"a.png\"\r\n\r\n\x01\r\n--x\r\ncontent-disposition: form-data; name=\"b\"\r\n\r\n\x02\r\n--x--\r\n";
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

#[test]
fn without_a_model_the_answer_says_how_to_load_one() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (status, problem) = service.send(PATH, "image/png", &[0]);
    assert_eq!(
        (status, problem["detail"].as_str()),
        (501, Some("no image model loaded: start with --model"))
    );
    service.stop();
}
