//! Settings of the service: where it listens, what it accepts, how it keeps what was learnt.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::api::MOST_ENTRIES;
pub use share::ShareSettings;

mod share;

/// When an answer may be given, relative to the log reaching the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The log is written before the answer and synced to the disk every `sync_interval_ms`. A killed process loses
    /// nothing; a machine that loses power loses at most the last interval.
    #[default]
    Interval,
    /// The log is synced before the answer: what was reported as learnt survives a loss of power.
    Sync,
}

/// The `[server]` table of a configuration file; flags of `ultta serve` win over it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address to listen on. Anything but a loopback address needs tokens.
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// Where streams, logs and snapshots are kept.
    pub data_dir: PathBuf,
    /// Durability of streams that do not choose.
    pub durability: Durability,
    /// Time between two syncs of a log, in milliseconds.
    pub sync_interval_ms: u64,
    /// A log longer than this, in bytes, is replaced by a snapshot of the state.
    pub compact_bytes: u64,
    /// Certificate chain (PEM); with `tls_key` it turns TLS on.
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM).
    pub tls_key: Option<PathBuf>,
    /// Origins that browsers may call from (`*` for any); none by default.
    pub cors_origins: Vec<String>,
    /// Host names, beside the loopback ones, that a server without tokens answers to.
    pub hosts: Vec<String>,
    /// Bounds on what is accepted.
    pub limits: Limits,
    /// Who may do what.
    pub tokens: Tokens,
    /// When and where alarms are told.
    pub alarms: AlarmSettings,
    /// How groups of streams share what they learn.
    pub share: ShareSettings,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            data_dir: PathBuf::new(),
            durability: Durability::Interval,
            sync_interval_ms: 1000,
            compact_bytes: 256 << 20,
            tls_cert: None,
            tls_key: None,
            cors_origins: Vec::new(),
            hosts: Vec::new(),
            limits: Limits::default(),
            tokens: Tokens::default(),
            alarms: AlarmSettings::default(),
            share: ShareSettings::default(),
        }
    }
}

impl ServerConfig {
    /// The address to listen on.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    /// Refuses settings that cannot work or would be unsafe.
    pub fn check(&self) -> Result<(), String> {
        if self.data_dir.as_os_str().is_empty() {
            return Err("server.data_dir: expected a folder to keep streams in".into());
        }
        if !self.host.is_loopback() && self.tokens.is_empty() {
            return Err(format!(
                "server.host: {} is reachable from elsewhere, so tokens are required; set ULTTA_TOKEN_ADMIN, or give \
                 --tokens FILE (server.tokens in a configuration file), {} characters at least",
                self.host,
                Tokens::MIN_LENGTH
            ));
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err("server.tls_cert and server.tls_key: expected both or none".into());
        }
        if self.tokens.all().any(|token| token.len() < Tokens::MIN_LENGTH) {
            return Err(format!("server.tokens: expected at least {} characters each", Tokens::MIN_LENGTH));
        }
        let limits = &self.limits;
        for (key, value) in [
            ("limits.body_bytes", limits.body_bytes),
            ("limits.picture_bytes", limits.picture_bytes),
            ("limits.picture_pixels", limits.picture_pixels),
            ("limits.request_pixels", limits.request_pixels),
            ("limits.picture_queue", limits.picture_queue),
            ("limits.batch_rows", limits.batch_rows),
            ("limits.streams", limits.streams),
            ("limits.queue", limits.queue),
            ("limits.connections", limits.connections),
            ("limits.request_seconds", limits.request_seconds as usize),
            ("limits.header_seconds", limits.header_seconds as usize),
            ("sync_interval_ms", self.sync_interval_ms as usize),
        ] {
            if value == 0 {
                return Err(format!("server.{key}: expected at least 1, got 0"));
            }
        }
        if limits.waiting_bytes < limits.body_bytes {
            return Err(format!(
                "server.limits.waiting_bytes: expected at least limits.body_bytes, {}, got {}",
                limits.body_bytes, limits.waiting_bytes
            ));
        }
        if limits.batch_rows > MOST_ENTRIES {
            return Err(format!(
                "server.limits.batch_rows: expected at most {MOST_ENTRIES}, got {}",
                limits.batch_rows
            ));
        }
        self.alarms.check()?;
        self.share.check()?;
        if self.compact_bytes < 1 << 16 {
            return Err(format!(
                "server.compact_bytes: expected at least {}, got {}",
                1 << 16,
                self.compact_bytes
            ));
        }
        Ok(())
    }
}

/// When and where alarms are told. `docs/alarms.md` has the messages.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlarmSettings {
    /// Seconds without a row after which a stream is told to be silent. Unless given, ten times the longest pause of
    /// its last requests, and a minute at least.
    pub silent_seconds: Option<f64>,
    /// Address that every alarm is posted to.
    pub webhook: Option<String>,
    /// Secret that posts are signed with.
    pub secret: Option<String>,
    /// Broker that alarms and verdicts are published to, as `mqtt://user:password@host:1883`. Needs the cargo feature `mqtt`.
    pub mqtt: Option<String>,
    /// The topic that all topics begin with.
    pub mqtt_topic: String,
}

impl Default for AlarmSettings {
    fn default() -> Self {
        Self { silent_seconds: None, webhook: None, secret: None, mqtt: None, mqtt_topic: "ultta".into() }
    }
}

impl AlarmSettings {
    fn check(&self) -> Result<(), String> {
        if self.silent_seconds.is_some_and(|s| !(s > 0.0 && s < 1e9)) {
            return Err("server.alarms.silent_seconds: expected a positive number of seconds".into());
        }
        let is_web = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if self.webhook.as_ref().is_some_and(|url| !is_web(url)) {
            return Err(
                "server.alarms.webhook: expected an address that begins with http:// or https://".into()
            );
        }
        if self.mqtt.is_some() && !cfg!(feature = "mqtt") {
            return Err("server.alarms.mqtt: this program was built without MQTT; build it with the cargo feature `mqtt`".into());
        }
        if self.mqtt_topic.is_empty() || self.mqtt_topic.contains(['#', '+', '\0']) {
            return Err("server.alarms.mqtt_topic: expected a topic without '#' and '+'".into());
        }
        Ok(())
    }
}

impl std::fmt::Debug for AlarmSettings {
    /// Shows neither secret nor password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlarmSettings")
            .field("silent_seconds", &self.silent_seconds)
            .field("webhook", &self.webhook.is_some())
            .field("secret", &self.secret.is_some())
            .field("mqtt", &self.mqtt.is_some())
            .field("mqtt_topic", &self.mqtt_topic)
            .finish()
    }
}

/// Bounds on what a request may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a request body.
    pub body_bytes: usize,
    /// Bytes of all request bodies being worked on, counted as they arrive, and of large answers until they are read; more
    /// are answered with 429.
    pub waiting_bytes: usize,
    /// Bytes of one picture.
    pub picture_bytes: usize,
    /// Pixels of one picture.
    pub picture_pixels: usize,
    /// Pixels of all pictures of one request.
    pub request_pixels: usize,
    /// Requests of pictures that may wait for the image model; more are answered with 429.
    pub picture_queue: usize,
    /// Rows of one request.
    pub batch_rows: usize,
    /// Streams that may exist.
    pub streams: usize,
    /// Requests that may wait for one stream; more are answered with 429.
    pub queue: usize,
    /// Open connections; more wait to be accepted. The process may open only as many files as `ulimit -n` says; what the streams
    /// need of them is not given to connections.
    pub connections: usize,
    /// Snapshots kept per stream.
    pub snapshots: usize,
    /// Seconds a request may take, its body included; also how long a line of a JSON-lines body may be awaited.
    pub request_seconds: u64,
    /// Seconds a client may take to send the head of a request.
    pub header_seconds: u64,
    /// Seconds that a shutdown waits for requests in progress.
    pub shutdown_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            waiting_bytes: 256 << 20,
            picture_bytes: 16 << 20,
            picture_pixels: 50_000_000,
            request_pixels: 400_000_000,
            picture_queue: 64,
            batch_rows: 16_384,
            streams: 64,
            queue: 1024,
            connections: 4096,
            snapshots: 32,
            request_seconds: 30,
            header_seconds: 10,
            shutdown_seconds: 30,
        }
    }
}

/// Bearer tokens. Admin tokens may do everything, write tokens may teach and read, read tokens may read.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tokens {
    /// May look: predict, inspect, metrics.
    pub read: Vec<String>,
    /// May also teach: classify, feedback.
    pub write: Vec<String>,
    /// May also create, reset, freeze, roll back, merge, delete.
    pub admin: Vec<String>,
}

impl Tokens {
    /// A shorter token could be guessed.
    pub const MIN_LENGTH: usize = 16;

    /// Whether there are no tokens: everything is open (loopback only).
    pub fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        self.read.iter().chain(&self.write).chain(&self.admin)
    }
}

impl std::fmt::Debug for Tokens {
    /// Shows how many tokens there are, not which.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (read, write, admin) = (self.read.len(), self.write.len(), self.admin.len());
        write!(f, "Tokens({read} read, {write} write, {admin} admin)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_or_impossible_settings_are_named() {
        let base = || ServerConfig { data_dir: "d".into(), ..Default::default() };
        assert_eq!(base().check(), Ok(()));
        assert!(ServerConfig::default().check().unwrap_err().contains("data_dir"));
        let open = ServerConfig { host: "0.0.0.0".parse().unwrap(), ..base() };
        for word in ["tokens are required", "ULTTA_TOKEN_ADMIN", "--tokens"] {
            assert!(open.check().unwrap_err().contains(word), "{word}");
        }
        let mut short = base();
        short.tokens.read.push("abc".into());
        assert!(short.check().unwrap_err().contains("16 characters"));
        let half = ServerConfig { tls_cert: Some("c".into()), ..base() };
        assert!(half.check().unwrap_err().contains("tls_key"));
        let mut alarms = base();
        alarms.alarms.webhook = Some("ftp://x".into());
        assert!(alarms.check().unwrap_err().contains("alarms.webhook"));
        let mut silent = base();
        silent.alarms.silent_seconds = Some(-1.0);
        assert!(silent.check().unwrap_err().contains("silent_seconds"));
        let mut zero = base();
        zero.limits.queue = 0;
        assert!(zero.check().unwrap_err().contains("limits.queue"));
        let mut narrow = ServerConfig { data_dir: "data".into(), ..Default::default() };
        narrow.limits.waiting_bytes = narrow.limits.body_bytes - 1;
        assert!(narrow.check().unwrap_err().contains("limits.waiting_bytes"));
    }

    #[test]
    fn tokens_never_reach_a_log() {
        let tokens = Tokens { read: vec!["a-secret-of-some-length".into()], ..Default::default() };
        assert!(!format!("{tokens:?}").contains("secret"));
        let alarms = AlarmSettings {
            secret: Some("hush".into()),
            mqtt: Some("mqtt://a:hush@b".into()),
            ..Default::default()
        };
        assert!(!format!("{alarms:?}").contains("hush"));
    }
}
