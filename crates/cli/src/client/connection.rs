//! The connection of `ultta client` to a service.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use ultta_formats::shown;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use super::Service;
use crate::failure::usage;

/// A refusal of the service, with what helps at the command line.
fn advised(status: u16, detail: &str, token: bool) -> String {
    let nameless = || detail.split(';').next()?.strip_prefix("there is no stream ").filter(|_| status == 404);
    match (status, nameless()) {
        (401, _) if token => format!("{detail}: that of --token or ULTTA_TOKEN is none of the server's"),
        (401, _) => format!("{detail}; give a token with --token or in ULTTA_TOKEN"),
        (409, _) if detail.contains("send `generation`") => format!("{detail} (--generation N)"),
        (_, Some(name)) => format!(
            "there is no stream {name}; create it with `ultta client create --head FILE --stream {}`, or choose another (`ultta client list`)",
            name.trim_matches('"')
        ),
        _ => detail.to_string(),
    }
}

/// An address as one types it: `localhost:8080` is meant as `http://localhost:8080`.
fn with_scheme(url: &str) -> String {
    if url.contains("://") { url.to_string() } else { format!("http://{url}") }
}

/// The authorities of a file; a server's certificate must be signed by one of them.
fn authorities(file: &Path) -> anyhow::Result<RootCerts> {
    let read = |source| ultta::Error::Io { doing: "opening", source, path: file.to_owned() };
    let pem = std::fs::read(file).map_err(read)?;
    let found = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<_> = found.collect();
    if found.is_empty() {
        return usage(format!("{}: expected certificates (PEM), got none", shown(&file)));
    }
    Ok(RootCerts::new_with_certs(&found))
}

/// What helps where no answer came.
fn unanswered(url: &str, error: &ureq::Error) -> String {
    let error = error.to_string();
    if error.contains("certificate") {
        format!("the certificate of {url} is not known; --cacert FILE names the authority that signed it")
    } else if error.contains("http parse fail") && url.starts_with("http://") {
        format!("no answer from {url}; does it speak TLS (https://)?")
    } else {
        format!(
            "no answer from {url}; is `ultta serve` running there? (--url and ULTTA_URL name another address)"
        )
    }
}

/// A connection to a service.
pub struct Client {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
}

impl Client {
    pub fn of(service: &Service) -> anyhow::Result<Self> {
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(10)));
        if let Some(file) = &service.cacert {
            config = config.tls_config(TlsConfig::builder().root_certs(authorities(file)?).build());
        }
        let url = with_scheme(service.url.trim_end_matches('/'));
        Ok(Self { agent: config.build().into(), url, token: service.token.clone() })
    }

    /// Where the service is.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.answer(self.with_token(self.agent.get(format!("{}{path}", self.url))).call())
    }

    /// What is no text.
    pub fn bytes(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        self.read(self.with_token(self.agent.get(format!("{}{path}", self.url))).call())
    }

    pub fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.read(self.with_token(self.agent.delete(format!("{}{path}", self.url))).call())?;
        Ok(())
    }

    pub fn with_token<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(path, "application/json", &serde_json::to_vec(body)?)
    }

    pub fn send(&self, path: &str, kind: &str, body: &[u8]) -> anyhow::Result<Value> {
        self.answer(self.request(path, kind).send(body))
    }

    pub fn request(&self, path: &str, kind: &str) -> ureq::RequestBuilder<ureq::typestate::WithBody> {
        self.with_token(self.agent.post(format!("{}{path}", self.url)).header("content-type", kind))
    }

    /// The answer as it was sent.
    pub fn text(&self, path: &str, kind: &str, body: &[u8]) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&self.read(self.request(path, kind).send(body))?).into_owned())
    }

    fn answer(&self, result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.read(result)?).unwrap_or(Value::Null))
    }

    pub fn read(
        &self,
        result: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> anyhow::Result<Vec<u8>> {
        let mut response = result.map_err(|error| {
            let told = unanswered(&self.url, &error);
            anyhow::Error::from(error).context(told)
        })?;
        let status = response.status();
        let bytes = response.body_mut().with_config().limit(1 << 30).read_to_vec()?;
        if status.is_success() {
            return Ok(bytes);
        }
        let value: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let detail = advised(
            status.as_u16(),
            value["detail"].as_str().unwrap_or("no reason given"),
            self.token.is_some(),
        );
        match status.as_u16() {
            400..=499 => usage(format!("{status}: {detail}")),
            _ => anyhow::bail!("{status}: {detail}"),
        }
    }
}
