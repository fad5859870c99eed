//! ONNX models through ONNX Runtime, which is loaded at run time: `ORT_DYLIB_PATH` names its library, such as the
//! `libonnxruntime.so` inside PyPI's onnxruntime wheel.
//!
//! A model is a folder with `image.onnx`, `text.onnx` and `model.json`:
//!
//! ```json
//! {"size": 224, "context": 77, "logit_scale": 100.0, "mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28],
//!  "resize": "shortest", "tokens": "clip"}
//! ```
//!
//! The image model takes normalised planes `[n, 3, size, size]`, the text model ids `[n, context]` (64 or 32 bit); the
//! output is `[n, dim]`, fp32, of any length. fp32 or int8 inside is the runtime's affair.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ort::environment::Environment;
use ort::session::{Session, SessionInputValue};
use ort::value::{Tensor, TensorElementType, ValueType};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use ultta::Features;

use crate::config::{Preprocess, Resize};
use crate::encoder::Encoder;
use crate::tokens::Tokenizer;
use crate::{Error, Result};

const IMAGE: &str = "image.onnx";
const TEXT: &str = "text.onnx";
const DESCRIPTION: &str = "model.json";

/// Pictures or texts run together at most.
const AT_A_TIME: usize = 32;

/// Whether a folder holds an ONNX model.
pub fn is_onnx(folder: &Path) -> bool {
    folder.join(IMAGE).exists()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    size: usize,
    #[serde(default = "context")]
    context: usize,
    #[serde(default = "logit_scale")]
    logit_scale: f32,
    #[serde(default)]
    logit_bias: f32,
    mean: Option<[f32; 3]>,
    std: Option<[f32; 3]>,
    resize: Option<String>,
    tokens: Option<String>,
    /// Only for people.
    #[serde(default, rename = "dim")]
    _dim: Option<usize>,
}

fn context() -> usize {
    77
}

fn logit_scale() -> f32 {
    100.0
}

/// A dual encoder that ONNX Runtime runs.
pub struct OnnxModel {
    name: String,
    image: Mutex<Session>,
    text: Option<Mutex<Session>>,
    tokenizer: Tokenizer,
    preprocess: Preprocess,
    context: usize,
    dim: usize,
    logit_scale: f32,
    logit_bias: f32,
    digest: String,
    _environment: Environment,
}

fn onnx(error: impl std::fmt::Display) -> Error {
    Error::Onnx { reason: error.to_string() }
}

impl OnnxModel {
    /// Opens a folder.
    pub fn open(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(DESCRIPTION);
        let text = std::fs::read_to_string(&path).map_err(|e| Error::io("opening", &path, e))?;
        let description: Description =
            serde_json::from_str(&text).map_err(|e| Error::model(&path, format!("not as expected: {e}")))?;
        let environment = environment()?;
        let threads = std::env::var("ULTTA_ONNX_THREADS").ok().and_then(|n| n.parse().ok());
        let threads = threads.unwrap_or_else(rayon::current_num_threads);
        let session = |path: PathBuf| -> Result<Session> {
            Session::builder(&environment)
                .and_then(|builder| Ok(builder.with_intra_threads(threads)?))
                .and_then(|mut builder| builder.commit_from_file(&path))
                .map_err(|e| Error::model(&path, e.to_string()))
        };
        let image = session(folder.join(IMAGE))?;
        let text_path = folder.join(TEXT);
        let text = if text_path.exists() { Some(Mutex::new(session(text_path)?)) } else { None };
        let mut preprocess = Preprocess::openai(description.size);
        preprocess.mean = description.mean.unwrap_or(preprocess.mean);
        preprocess.std = description.std.unwrap_or(preprocess.std);
        match description.resize.as_deref() {
            None | Some("shortest") => {}
            Some("squash") => preprocess.resize = Resize::Squash,
            Some(other) => {
                let reason = format!("resize: expected shortest or squash, got {other:?}");
                return Err(Error::model(&path, reason));
            }
        }
        let tokenizer = match description.tokens.as_deref() {
            None | Some("clip") => Tokenizer::clip(description.context),
            Some("unigram") => Tokenizer::unigram(folder, description.context)?,
            Some(other) => {
                let reason = format!("tokens: expected clip or unigram, got {other:?}");
                return Err(Error::model(&path, reason));
            }
        };
        let mut model = Self {
            name: name.to_string(),
            image: Mutex::new(image),
            text,
            tokenizer,
            context: description.context,
            dim: 0,
            logit_scale: description.logit_scale,
            logit_bias: description.logit_bias,
            digest: digest(folder, &description.size.to_le_bytes())?,
            preprocess,
            _environment: environment,
        };
        // The dimension is what comes out.
        let size = description.size;
        model.dim = model.run_images(&vec![0.0; 3 * size * size])?.len();
        if model.dim == 0 {
            return Err(Error::model(folder.join(IMAGE), "its output is empty"));
        }
        Ok(model)
    }

    fn run_images(&self, pixels: &[f32]) -> Result<Vec<f32>> {
        let size = self.preprocess.size;
        let one = 3 * size * size;
        let mut features = Vec::new();
        for part in pixels.chunks(AT_A_TIME * one) {
            let shape = [(part.len() / one) as i64, 3, size as i64, size as i64];
            let input = Tensor::from_array((shape, part.to_vec())).map_err(onnx)?;
            features.extend(run(&self.image, input.into())?);
        }
        Ok(features)
    }
}

/// Runs a model on its first input; the output that has two dimensions is the answer.
fn run(session: &Mutex<Session>, input: SessionInputValue<'_>) -> Result<Vec<f32>> {
    let mut session = session.lock().map_err(|_| onnx("a run before this one failed"))?;
    let name = session.inputs().first().map(|i| i.name().to_string()).ok_or_else(|| onnx("no inputs"))?;
    let outputs = session.run(vec![(name, input)]).map_err(onnx)?;
    for (_, value) in outputs.iter() {
        if let Ok((shape, data)) = value.try_extract_tensor::<f32>()
            && shape.len() == 2
        {
            return Ok(data.to_vec());
        }
    }
    Err(onnx("expected an output of shape [n, dim] in fp32"))
}

/// Loads the runtime's library once.
fn environment() -> Result<Environment> {
    static ONE: Mutex<Option<Environment>> = Mutex::new(None);
    let mut one = ONE.lock().map_err(|_| onnx("the library could not be loaded before"))?;
    if let Some(environment) = &*one {
        return Ok(environment.clone());
    }
    let path = std::env::var_os("ORT_DYLIB_PATH").filter(|p| !p.is_empty()).ok_or_else(|| {
        onnx("set ORT_DYLIB_PATH to the library of ONNX Runtime, such as onnxruntime/capi/libonnxruntime.so.* of \
              `pip install onnxruntime`")
    })?;
    let environment = ort::init_from(&path)
        .map_err(|e| onnx(format!("{}: {e}", path.to_string_lossy())))?
        .build()
        .map_err(onnx)?;
    Ok(one.insert(environment).clone())
}

/// SHA-256 over the beginning and the size of the files.
fn digest(folder: &Path, extra: &[u8]) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(extra);
    for name in [DESCRIPTION, IMAGE, TEXT] {
        let path = folder.join(name);
        if let Ok(file) = std::fs::File::open(&path) {
            use std::io::{Read, Seek, SeekFrom};
            let len = file.metadata().map_err(|e| Error::io("reading", &path, e))?.len();
            hash.update(len.to_le_bytes());
            // Weights are everywhere in the file: some of each stretch.
            let mut file = file;
            for place in 0..64 {
                file.seek(SeekFrom::Start(len * place / 64)).map_err(|e| Error::io("reading", &path, e))?;
                let mut bytes = Vec::new();
                let read = file.by_ref().take(4096).read_to_end(&mut bytes);
                read.map_err(|e| Error::io("reading", &path, e))?;
                hash.update(&bytes);
            }
        }
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

impl Encoder for OnnxModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }

    fn images(&self, pixels: &[f32]) -> Result<Features<'static>> {
        Ok(Features::normalized(self.run_images(pixels)?, self.dim)?)
    }

    fn texts(&self, texts: &[String]) -> Result<Features<'static>> {
        let Some(session) = &self.text else {
            return Err(Error::Text { reason: format!("{} has no {TEXT}", self.name) });
        };
        let narrow = {
            let session = session.lock().map_err(|_| onnx("a run before this one failed"))?;
            let kind = session.inputs().first().map(|input| input.dtype().clone());
            matches!(kind, Some(ValueType::Tensor { ty: TensorElementType::Int32, .. }))
        };
        let mut features = Vec::with_capacity(texts.len() * self.dim);
        for part in texts.chunks(AT_A_TIME) {
            let ids = part.iter().map(|t| self.tokenizer.encode(t)).collect::<Result<Vec<_>>>()?.concat();
            let shape = [part.len() as i64, self.context as i64];
            let input: SessionInputValue<'_> = if narrow {
                let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
                Tensor::from_array((shape, ids)).map_err(onnx)?.into()
            } else {
                let ids: Vec<i64> = ids.iter().map(|&id| id as i64).collect();
                Tensor::from_array((shape, ids)).map_err(onnx)?.into()
            };
            features.extend(run(session, input)?);
        }
        Ok(Features::normalized(features, self.dim)?)
    }

    fn logit_scale(&self) -> f32 {
        self.logit_scale
    }

    fn logit_bias(&self) -> f32 {
        self.logit_bias
    }

    fn digest(&self) -> &str {
        &self.digest
    }
}
