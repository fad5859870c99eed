//! `ultta serve`: the HTTP service.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde::Deserialize;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use ultta::{Config, Error};
use ultta_formats::shown;
use ultta_server::{Durability, PictureEncoder, Server, ServerConfig, ServerError, StreamSpec, Tokens};

use crate::failure::usage;
use crate::settings::Settings;

/// Serve streams over HTTP: answers that adapt, a live dashboard, nothing learnt is lost
///
/// One stream is one camera: give each of several cameras a stream of its own.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Head of the stream that is served at once; without it, streams are created over the API
    #[arg(long, value_name = "FILE", help_heading = "Stream")]
    head: Option<PathBuf>,

    /// Name of that stream
    #[arg(long, value_name = "NAME", default_value = "default", help_heading = "Stream")]
    stream: String,

    #[command(flatten)]
    settings: Settings,

    /// Image model for streams of pictures: a folder, or a name on the hub (see `ultta models`). Without one, the
    /// service takes features only
    #[arg(long, value_name = "MODEL", help_heading = "Service")]
    model: Option<String>,

    /// Where streams, logs and snapshots are kept
    #[arg(long, value_name = "DIR", help_heading = "Service")]
    data_dir: Option<PathBuf>,

    /// Address to listen on; anything but a loopback address needs tokens [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", help_heading = "Service")]
    host: Option<IpAddr>,

    /// Port to listen on; 0 takes a free one [default: 8080]
    #[arg(long, value_name = "N", help_heading = "Service")]
    port: Option<u16>,

    /// interval: the log reaches the disk every second; sync: before every answer [default: interval]
    #[arg(long, value_name = "WHEN", value_parser = durability, help_heading = "Service")]
    durability: Option<Durability>,

    /// Bearer tokens: TOML with lists read, write and admin. Also taken from the environment: ULTTA_TOKEN_READ,
    /// ULTTA_TOKEN_WRITE, ULTTA_TOKEN_ADMIN
    #[arg(long, value_name = "FILE", help_heading = "Protection")]
    tokens: Option<PathBuf>,

    /// Certificate chain (PEM); with --tls-key it turns TLS on
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Protection")]
    tls_cert: Option<PathBuf>,

    /// Private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Protection")]
    tls_key: Option<PathBuf>,

    /// Let pages of this origin call the server; several times for several, * for any
    #[arg(long = "cors", value_name = "ORIGIN", help_heading = "Protection")]
    cors: Vec<String>,

    /// Post every alarm to this address as JSON; signed with the secret in the environment variable ULTTA_WEBHOOK_SECRET
    #[arg(long, value_name = "URL", help_heading = "Alarms")]
    webhook: Option<String>,

    /// Publish alarms and verdicts to this MQTT broker: mqtt://user:password@host:1883 (cargo feature `mqtt`)
    #[arg(long, value_name = "URL", help_heading = "Alarms")]
    mqtt: Option<String>,

    /// Share what the stream of --head learns with the streams of this group
    #[arg(long, value_name = "NAME", help_heading = "Sharing")]
    group: Option<String>,

    /// Share groups over this broker: nats://host:4222 (cargo feature `nats`). Who asks is told in the environment: ULTTA_NATS_USER
    /// and ULTTA_NATS_PASSWORD, ULTTA_NATS_TOKEN or ULTTA_NATS_NKEY; files and TLS in [server.share]
    #[arg(long, value_name = "URL", help_heading = "Sharing")]
    share: Option<String>,

    /// This server's name among those that share; every one needs its own
    #[arg(long, value_name = "NAME", help_heading = "Sharing")]
    member: Option<String>,

    /// Take what the others learn, give nothing
    #[arg(long, help_heading = "Sharing")]
    share_read_only: bool,

    /// Format of the log on standard error: text or json. ULTTA_LOG filters it (info, debug, …)
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"], help_heading = "Service")]
    log: String,
}

const EXAMPLES: &str = "\
Examples:
  A stream named `default`; the page is at http://127.0.0.1:8080/, the API at http://127.0.0.1:8080/docs:
    ultta serve --head head.safetensors --data-dir data

  Ask it:
    ultta client classify features.npy
    ultta client example curl | sh

  Every answer survives a loss of power:
    ultta serve --head head.safetensors --data-dir data --durability sync

  On the network, with tokens and TLS:
    ULTTA_TOKEN_ADMIN=$(openssl rand -hex 24) ultta serve --data-dir data --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem

The file of --config may have a table [server] beside the settings of the method: host, port, data_dir, durability,
sync_interval_ms, compact_bytes, tls_cert, tls_key, cors_origins, hosts, [server.limits], [server.tokens], [server.alarms] and [server.share]
(docs/service.md). Flags win over it.

SIGINT and SIGTERM stop it: what was accepted is finished, states are written. Exit codes: 0 stopped, 1 failure, 2 bad input.";

fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "interval" => Ok(Durability::Interval),
        "sync" => Ok(Durability::Sync),
        _ => Err("expected interval or sync".into()),
    }
}

/// The `[server]` table of a configuration file.
#[derive(Deserialize)]
struct ServerTable {
    server: Option<ServerConfig>,
}

/// The model behind the picture calls.
struct Pictures {
    encoder: Box<dyn ultta_encode::Encoder>,
    limits: ultta_encode::decode::Limits,
}

impl PictureEncoder for Pictures {
    fn dim(&self) -> usize {
        self.encoder.dim()
    }

    fn pixels(&self, picture: &[u8]) -> Result<u64, String> {
        ultta_encode::decode::pixels(picture, &self.limits).map_err(|e| e.to_string())
    }

    fn encode(&self, picture: &[u8]) -> Result<Vec<f32>, String> {
        ultta_encode::encode_picture(&*self.encoder, picture, &self.limits).map_err(|e| e.to_string())
    }
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    ultta_formats::map::give_freed_memory_back();
    start_log(&args.log);
    let (config, method) = resolve(&args)?;
    let spec = match &args.head {
        None if args.settings.method.is_some()
            || args.settings.preset.is_some()
            || !args.settings.settings.is_empty() =>
        {
            return usage("settings of a method were given, but no --head to serve a stream with");
        }
        None if args.group.is_some() => {
            return usage("--group was given, but no --head to serve a stream with");
        }
        None => None,
        Some(path) => {
            let head = crate::anchors::read_head(path)?;
            Some(StreamSpec { head, config: method, durability: None, group: args.group.clone() })
        }
    };
    let encoder = match &args.model {
        None => None,
        Some(model) => {
            // An error means that the pool is running already. Only the image model uses it here.
            let _ =
                rayon::ThreadPoolBuilder::new().start_handler(|_| ultta_server::stand_back()).build_global();
            let encoder = ultta_encode::open(model)?;
            if let (Some(spec), Some(path)) = (&spec, &args.head) {
                crate::encoder::warn_of_another(&spec.head, path, &*encoder);
            }
            let (pixels, bytes) = (config.limits.picture_pixels as u64, config.limits.picture_bytes as u64);
            let limits = ultta_encode::decode::Limits { pixels, bytes, ..Default::default() };
            Some(Arc::new(Pictures { encoder, limits }) as Arc<dyn PictureEncoder>)
        }
    };
    let (tls, port) = (config.tls_cert.is_some(), config.port);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before anything is told: whoever reads the address may stop the server at once.
        let mut stop = Stop::new()?;
        let stream = spec.map(|spec| (args.stream.as_str(), spec));
        let server = match Server::start_with(config, encoder, stream).await {
            Err(ServerError::Stream(reason)) => return usage(format!("{reason}{}", advice(&reason))),
            Err(error) if is_taken(&error) => {
                let port = port.checked_add(1).unwrap_or(8080);
                anyhow::bail!("{error} (--port {port}, and ULTTA_URL=http://127.0.0.1:{port} for the client)")
            }
            started => started?,
        };
        // For whoever started it with port 0; then for people. A program may read the first line and hang up.
        writeln!(std::io::stdout(), "listening on {}", server.address())?;
        let page = url(server.address(), tls);
        let _ = writeln!(std::io::stdout(), "page: {page}/  API: {page}/docs");
        stop.asked().await?;
        server.stop().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// What to do about a stream that cannot be served, in flags.
fn advice(reason: &str) -> &'static str {
    if reason.contains("is there already") {
        " (--stream, --data-dir; to delete it start without --head, then `ultta client --stream NAME delete`)"
    } else {
        ""
    }
}

/// Whether another program listens there.
fn is_taken(error: &ServerError) -> bool {
    matches!(error, ServerError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse)
}

/// An address to click on: where any is listened on, this machine.
fn url(address: std::net::SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    if address.ip().is_unspecified() {
        format!("{scheme}://localhost:{}", address.port())
    } else {
        format!("{scheme}://{address}")
    }
}

/// SIGINT and SIGTERM, from the moment it is made: until then they end the program as it is.
struct Stop {
    #[cfg(unix)]
    signals: [tokio::signal::unix::Signal; 2],
}

impl Stop {
    #[cfg(unix)]
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { signals: [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?] })
    }

    #[cfg(not(unix))]
    fn new() -> std::io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(unix)]
    async fn asked(&mut self) -> std::io::Result<()> {
        let [interrupt, terminate] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    }

    #[cfg(not(unix))]
    async fn asked(&mut self) -> std::io::Result<()> {
        tokio::signal::ctrl_c().await
    }
}

/// What flags, environment and file ask for.
fn resolve(args: &Args) -> anyhow::Result<(ServerConfig, Config)> {
    let mut server = ServerConfig::default();
    let mut method_file = None;
    if let Some(path) = &args.settings.config {
        let text = read(path)?;
        let table: ServerTable = toml::from_str(&text).map_err(|e| {
            crate::failure::Usage(format!("{}: {}", shown(&path), crate::failure::one_line(&e.to_string())))
        })?;
        let mut rest: toml::Table = toml::from_str(&text)?;
        // Without a [server] table the text itself is used, so that errors name its lines.
        method_file = Some(match rest.remove("server") {
            Some(_) => toml::to_string(&rest)?,
            None => text,
        });
        server = table.server.unwrap_or_default();
    }
    if let Some(path) = &args.tokens {
        server.tokens = toml::from_str(&read(path)?).map_err(|e| {
            crate::failure::Usage(format!("{}: {}", shown(&path), crate::failure::one_line(&e.to_string())))
        })?;
    }
    let Tokens { read, write, admin } = &mut server.tokens;
    for (name, list) in
        [("ULTTA_TOKEN_READ", read), ("ULTTA_TOKEN_WRITE", write), ("ULTTA_TOKEN_ADMIN", admin)]
    {
        let token = std::env::var(name).ok().filter(|token| !token.is_empty());
        if let Some(length) = token.as_ref().map(|token| token.chars().count())
            && length < Tokens::MIN_LENGTH
        {
            let least = Tokens::MIN_LENGTH;
            return usage(format!(
                "{name}: expected at least {least} characters, got {length}; `openssl rand -hex 16` makes some"
            ));
        }
        list.extend(token);
    }
    server.host = args.host.unwrap_or(server.host);
    server.port = args.port.unwrap_or(server.port);
    server.durability = args.durability.unwrap_or(server.durability);
    if let Some(folder) = &args.data_dir {
        server.data_dir = folder.clone();
    }
    if args.tls_cert.is_some() {
        (server.tls_cert, server.tls_key) = (args.tls_cert.clone(), args.tls_key.clone());
    }
    if !args.cors.is_empty() {
        server.cors_origins = args.cors.clone();
    }
    if args.webhook.is_some() {
        server.alarms.webhook = args.webhook.clone();
    }
    if args.mqtt.is_some() {
        server.alarms.mqtt = args.mqtt.clone();
    }
    if args.share.is_some() {
        server.share.url = args.share.clone();
    }
    if args.member.is_some() {
        server.share.member = args.member.clone();
    }
    server.share.read_only |= args.share_read_only;
    for (name, secret) in [
        ("ULTTA_NATS_USER", &mut server.share.user),
        ("ULTTA_NATS_PASSWORD", &mut server.share.password),
        ("ULTTA_NATS_TOKEN", &mut server.share.token),
        ("ULTTA_NATS_NKEY", &mut server.share.nkey),
    ] {
        if let Some(given) = std::env::var(name).ok().filter(|value| !value.is_empty()) {
            *secret = Some(given);
        }
    }
    if let Ok(secret) = std::env::var("ULTTA_WEBHOOK_SECRET") {
        server.alarms.secret = Some(secret).filter(|secret| !secret.is_empty());
    }
    if server.data_dir.as_os_str().is_empty() {
        return usage("where shall streams be kept? give --data-dir DIR");
    }
    if let Err(reason) = server.check() {
        return usage(reason);
    }
    let method = args.settings.resolve_over(method_file.as_deref())?;
    Ok((server, method))
}

fn read(path: &Path) -> anyhow::Result<String> {
    Ok(std::fs::read_to_string(path).map_err(|source| Error::Io {
        doing: "opening",
        source,
        path: path.to_owned(),
    })?)
}

fn start_log(format: &str) {
    let asked = std::env::var("ULTTA_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let shown = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let log = tracing_subscriber::registry();
    // A second start in one process (the Python package) keeps the first log.
    let _ = match format {
        "json" => log.with(lines.json().with_filter(shown)).try_init(),
        _ => log.with(lines.with_filter(shown)).try_init(),
    };
}
