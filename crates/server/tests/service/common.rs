use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ultta::simulate::{Simulator, SimulatorConfig};
use ultta::{Config, Features, Head, Session};
use ultta_server::{PictureEncoder, Server, ServerConfig, StreamSpec};

pub const CLASSES: usize = 12;
pub const DIM: usize = 16;

pub fn simulator() -> Simulator {
    let config = SimulatorConfig { classes: CLASSES, dim: DIM, ..Default::default() };
    Simulator::new(&config).expect("a simulator")
}

pub fn head() -> Head {
    simulator().head().clone()
}

pub fn rows(n: usize) -> Features<'static> {
    simulator().next_block(n).0
}

pub fn session(name: &str) -> Session {
    Session::new(head(), &Config::named(name).unwrap()).unwrap()
}

/// A running server with its own runtime; stops when told to.
pub struct Service {
    pub address: SocketAddr,
    server: Option<Server>,
    runtime: tokio::runtime::Runtime,
    pub agent: ureq::Agent,
    pub token: Option<String>,
    scheme: &'static str,
}

pub fn config(folder: &Path) -> ServerConfig {
    ServerConfig { data_dir: folder.to_owned(), port: 0, ..Default::default() }
}

impl Service {
    pub fn start(config: ServerConfig) -> Self {
        Self::with_encoder(config, None)
    }

    pub fn with_encoder(config: ServerConfig, encoder: Option<Arc<dyn PictureEncoder>>) -> Self {
        Self::try_start(config, encoder).expect("the server starts")
    }

    pub fn try_start(
        config: ServerConfig,
        encoder: Option<Arc<dyn PictureEncoder>>,
    ) -> Result<Self, ultta_server::ServerError> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let scheme = if config.tls_cert.is_some() { "https" } else { "http" };
        let server = runtime.block_on(Server::start(config, encoder))?;
        let tls = ureq::tls::TlsConfig::builder().disable_verification(true).build();
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(tls)
            .timeout_global(Some(Duration::from_secs(60)))
            .build()
            .into();
        Ok(Self { address: server.address(), server: Some(server), runtime, agent, token: None, scheme })
    }

    /// A server with a stream named `default`.
    pub fn with_default(folder: &Path, method: &str) -> Self {
        let service = Self::start(config(folder));
        service.ensure("default", method);
        service
    }

    pub fn ensure(&self, name: &str, method: &str) {
        self.ensure_with(name, method, head());
    }

    pub fn ensure_with(&self, name: &str, method: &str, head: Head) {
        let spec = StreamSpec { head, config: Config::named(method).unwrap(), durability: None, group: None };
        let server = self.server.as_ref().unwrap();
        self.runtime.block_on(server.streams().ensure(name, spec)).unwrap();
    }

    pub fn stop(mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        let (status, bytes) = self.get_bytes(path);
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub fn get_bytes(&self, path: &str) -> (u16, Vec<u8>) {
        let mut request = self.agent.get(self.url(path));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = request.call().unwrap();
        (response.status().as_u16(), response.body_mut().with_config().limit(1 << 30).read_to_vec().unwrap())
    }

    pub fn delete(&self, path: &str) -> u16 {
        self.agent.delete(self.url(path)).call().unwrap().status().as_u16()
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send(path, "application/json", &serde_json::to_vec(body).unwrap())
    }

    pub fn send(&self, path: &str, kind: &str, body: &[u8]) -> (u16, Value) {
        let (status, bytes, _) = self.send_raw(path, &[("content-type", kind)], body);
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub fn send_raw(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> (u16, Vec<u8>, ureq::http::HeaderMap) {
        let mut request = self.agent.post(self.url(path));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (key, value) in headers {
            request = request.header(*key, *value);
        }
        let mut response = request.send(body).unwrap();
        let headers = response.headers().clone();
        let bytes = response.body_mut().with_config().limit(1 << 30).read_to_vec().unwrap();
        (response.status().as_u16(), bytes, headers)
    }

    pub fn classify(&self, features: &Features<'_>) -> Value {
        let (status, answer) = self.post("/v1/streams/default/classify", &request(features));
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub fn state(&self, stream: &str) -> Vec<u8> {
        let (status, bytes) = self.get_bytes(&format!("/v1/streams/{stream}/state"));
        assert_eq!(status, 200);
        bytes
    }

    /// Bytes over a plain socket, and all that comes back until the server hangs up.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

pub fn request(features: &Features<'_>) -> Value {
    let rows: Vec<&[f32]> = (0..features.rows()).map(|r| features.row(r)).collect();
    json!({"features": rows})
}

/// The same answers: label, probabilities to the bit, admission.
pub fn assert_same(answer: &Value, step: &ultta::Step) {
    let rows = answer["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), step.rows.len());
    for (got, expected) in rows.iter().zip(&step.rows) {
        assert_eq!(got["label"].as_u64(), Some(expected.label as u64));
        assert_eq!(got["prob"].as_f64().map(|p| p as f32), Some(expected.prob));
        assert_eq!(got["zero_shot"]["label"].as_u64(), Some(expected.zero_shot.label as u64));
        assert_eq!(got["zero_shot"]["prob"].as_f64().map(|p| p as f32), Some(expected.zero_shot.prob));
        assert_eq!(got["unknown"].as_bool(), Some(expected.unknown));
        assert_eq!(got["garbage"].as_bool(), Some(expected.garbage));
    }
}

/// Waits until something holds; fails after a minute, so that a busy machine makes no test fail.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A `.npy` file of f32 rows.
pub fn npy(features: &Features<'_>) -> Vec<u8> {
    let header = format!(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}\n",
        features.rows(),
        features.dim()
    );
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(features.data().iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

/// A safetensors file of rows.
pub fn safetensors(features: &Features<'_>) -> Vec<u8> {
    let data: Vec<u8> = features.data().iter().flat_map(|v| v.to_le_bytes()).collect();
    let shape = vec![features.rows(), features.dim()];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &data).unwrap();
    safetensors::serialize([("features", view)], None).unwrap()
}
