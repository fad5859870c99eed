//! The listener: connections, TLS, timeouts of slow clients, graceful shutdown.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::answer::Patient;
use crate::descriptors;
use crate::fleet::Fleet;
use crate::http::{self, App};
use crate::picture::PictureEncoder;
use crate::settings::ServerConfig;
use crate::streams::{StreamSpec, Streams};

/// Bytes of a connection's buffers, at most: the head of a request must fit.
const BUFFER: usize = 64 << 10;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A setting cannot work.
    #[error("config: {0}")]
    Config(String),
    /// A stream cannot be opened.
    #[error(transparent)]
    Streams(#[from] ultta::Error),
    /// The stream asked for cannot be served.
    #[error("{0}")]
    Stream(String),
    /// The address cannot be listened on.
    #[error("listening on {address}: {source}{}", advice(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Certificate or key cannot be used.
    #[error("tls: {0}")]
    Tls(String),
}

/// What to do when an address cannot be listened on.
fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "; choose another port",
        _ => "",
    }
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    serving: tokio::task::JoinHandle<()>,
    sharing: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Opens the data folder, recovers its streams and listens. Needs a multi-threaded tokio runtime.
    pub async fn start(
        config: ServerConfig,
        encoder: Option<Arc<dyn PictureEncoder>>,
    ) -> Result<Self, ServerError> {
        Self::start_with(config, encoder, None).await
    }

    /// Starts as [`Server::start`] does, with a stream of this name that is there before the server listens; it is made if it is missing. A
    /// damaged stream of this name is reported, and the others are served.
    pub async fn start_with(
        config: ServerConfig,
        encoder: Option<Arc<dyn PictureEncoder>>,
        stream: Option<(&str, StreamSpec)>,
    ) -> Result<Self, ServerError> {
        let mut config = config;
        config.check().map_err(ServerError::Config)?;
        let limits = &mut config.limits;
        limits.connections = descriptors::connections(limits.connections, limits.streams);
        let tls = match (&config.tls_cert, &config.tls_key) {
            (Some(cert), Some(key)) => Some(tls(cert, key)?),
            _ => None,
        };
        // The port is taken before anything is made, and listened on when all is there.
        let address = config.address();
        let failed = |source| ServerError::Listen { address, source };
        let socket = bind(address).map_err(failed)?;
        let app = tokio::task::block_in_place(|| App::open(config, encoder))?;
        if let Some((name, spec)) = stream
            && !app.streams.is_damaged(name)
            && let Err(reason) = app.streams.ensure(name, spec).await
        {
            app.streams.stop().await;
            return Err(ServerError::Stream(reason));
        }
        let listening = socket.listen(BACKLOG).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = match listening {
            Ok(listening) => listening,
            Err(source) => {
                app.streams.stop().await;
                return Err(failed(source));
            }
        };
        let (stop, stopped) = watch::channel(false);
        let app = Arc::new(app);
        let sharing = Fleet::start(&app, stopped.clone());
        tokio::spawn(look(Arc::downgrade(&app), stopped.clone()));
        let serving = tokio::spawn(serve(listener, tls, app.clone(), stopped));
        tracing::info!(%address, streams = app.streams.names().len(), "listening");
        Ok(Self { address, app, stop, serving, sharing })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its streams.
    pub fn streams(&self) -> &Streams {
        &self.app.streams
    }

    /// Stops listening, finishes what was accepted, writes every state.
    pub async fn stop(self) {
        self.app.stopping.store(true, Ordering::Release);
        let _ = self.stop.send(true);
        let _ = self.serving.await;
        let _ = self.sharing.await;
        self.app.streams.stop().await;
        tracing::info!("stopped");
    }
}

/// Looks every second whether what belongs to all streams is still there, until the server stops.
async fn look(app: Weak<App>, mut stopped: watch::Receiver<bool>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = second.tick() => {}
            _ = stopped.changed() => return,
        }
        let Some(app) = app.upgrade() else { return };
        let _ = tokio::task::spawn_blocking(move || app.streams.look()).await;
    }
}

/// A socket at this address that does not listen yet.
fn bind(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    app: Arc<App>,
    mut stopped: watch::Receiver<bool>,
) {
    let limits = app.config.limits.clone();
    let router = http::router(app);
    let places = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(limits.header_seconds));
    builder.max_buf_size(BUFFER);
    loop {
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            _ = stopped.changed() => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => break,
        };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(e) => {
                // Too many open files, or a client that left at once.
                tracing::warn!(error = %e, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let _ = socket.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let (builder, watcher, tls) = (builder.clone(), graceful.watcher(), tls.clone());
        let handshake = Duration::from_secs(limits.header_seconds);
        let patience = Duration::from_secs(limits.request_seconds);
        tokio::spawn(async move {
            let _place = place;
            let Some(socket) = secure(socket, tls, handshake).await else { return };
            let connection = builder.serve_connection(TokioIo::new(Patient::new(socket, patience)), service);
            // A client may break off at any time: that is not worth a line in the log.
            if let Err(e) = watcher.watch(connection).await {
                tracing::debug!(error = %e, "connection ended");
            }
        });
    }
    drop(listener);
    let patience = Duration::from_secs(limits.shutdown_seconds);
    if tokio::time::timeout(patience, graceful.shutdown()).await.is_err() {
        tracing::warn!("some connections did not end in time");
    }
}

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

async fn secure(socket: TcpStream, tls: Option<TlsAcceptor>, patience: Duration) -> Option<Box<dyn Socket>> {
    let Some(tls) = tls else { return Some(Box::new(socket)) };
    match tokio::time::timeout(patience, tls.accept(socket)).await {
        Ok(Ok(secured)) => Some(Box::new(secured)),
        _ => None,
    }
}

fn tls(cert: &Path, key: &Path) -> Result<TlsAcceptor, ServerError> {
    let failed = |what: &str, path: &Path, e: &dyn std::fmt::Display| {
        ServerError::Tls(format!("{what}: {e} ({})", path.display()))
    };
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(|certs| certs.collect::<Result<Vec<_>, _>>())
        .map_err(|e| failed("certificate", cert, &e))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| failed("key", key, &e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| failed("protocol", cert, &e))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|e| failed("certificate and key", cert, &e))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;

    use serde_json::Value;
    use ultta::{Config, Head};

    use super::*;
    use crate::stream::{ENDED, LEAVING};

    /// A server with a stream `default`, whose owner the test can reach.
    struct Reached {
        runtime: tokio::runtime::Runtime,
        server: Server,
        folder: tempfile::TempDir,
    }

    impl Reached {
        fn start() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["cat", "dog"], 100.0).unwrap();
            let spec = StreamSpec { head, config: Config::default(), durability: None, group: None };
            let config =
                ServerConfig { data_dir: folder.path().to_owned(), port: 0, ..ServerConfig::default() };
            let server = runtime.block_on(Server::start_with(config, None, Some(("default", spec)))).unwrap();
            Self { runtime, server, folder }
        }

        fn stream(&self) -> Arc<crate::stream::Stream> {
            self.server.app.streams.get("default").map_err(|problem| problem.detail).unwrap()
        }

        fn get(&self, path: &str) -> (u16, String) {
            let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
            let mut answer = agent.get(format!("http://{}{path}", self.server.address)).call().unwrap();
            (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
        }

        fn json(&self, path: &str) -> Value {
            serde_json::from_str(&self.get(path).1).unwrap()
        }
    }

    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let started = std::time::Instant::now();
        while !holds() {
            assert!(started.elapsed() < Duration::from_secs(60), "never: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Status, health, list, metrics, readiness and verdict take the standing of a stream from one place.
    #[test]
    fn a_stream_whose_thread_has_ended_says_so_everywhere() {
        let reached = Reached::start();
        assert_eq!(reached.json("/healthz")["status"], "ok");
        let broken = reached.runtime.block_on(
            reached.stream().control(|_| -> Result<(), _> { panic!("the owner fails, as the test wants") }),
        );
        assert_eq!(broken.unwrap_err().status, 503);
        eventually("its queue is closed", || reached.stream().queue.is_closed());
        let view = reached.json("/v1/streams/default");
        assert_eq!(view["status"]["degraded"], ENDED);
        assert_eq!((&view["verdict"]["level"], &view["status"]["learning"]), (&"act".into(), &true.into()));
        let next = view["verdict"]["next"].as_str().unwrap();
        assert!(next.contains("restart the server") && !next.contains("by itself"), "{next}");
        assert_eq!(reached.json("/v1/streams")["streams"][0]["status"]["degraded"], ENDED);
        for path in ["/healthz", "/readyz"] {
            assert_eq!(reached.json(path)["degraded"]["default"], ENDED, "{path}");
        }
        assert_eq!(reached.get("/v2/models/default/ready").0, 503);
        let metrics = reached.get("/metrics").1;
        for line in ["ultta_degraded{stream=\"default\"} 1", "ultta_verdict{stream=\"default\"} 2"] {
            assert!(metrics.contains(line), "{line}: {metrics}");
        }
        // While it is deleted its thread has ended, too, and nothing is wrong.
        reached.stream().leaving.store(true, Ordering::Release);
        let view = reached.json("/v1/streams/default");
        assert_eq!(view["status"]["degraded"], LEAVING);
        assert_eq!((&view["verdict"]["level"], &view["verdict"]["next"]), (&"well".into(), &"".into()));
        assert_eq!(reached.json("/healthz")["status"], "ok");
        assert_eq!(reached.get("/v2/models/default/ready").0, 503);
        let deleted = reached.runtime.block_on(reached.server.app.streams.delete("default"));
        assert!(deleted.is_ok() && reached.get("/v1/streams/default").0 == 404);
        assert_eq!(reached.json("/healthz")["status"], "ok");
        reached.runtime.block_on(reached.server.stop());
    }

    /// Has the owner of the stream wait until something is sent or the sender is dropped.
    fn hold(reached: &Reached) -> (mpsc::Sender<()>, tokio::task::JoinHandle<()>) {
        let stream = reached.stream();
        let (begun, begins) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        let holding = reached.runtime.spawn(async move {
            let hold = move |_: &mut crate::owner::Owner| {
                let _ = begun.send(());
                let _ = held.recv();
                Ok(())
            };
            assert!(stream.control(hold).await.is_ok());
        });
        begins.recv().unwrap();
        (release, holding)
    }

    /// What its owner has not come to yet is in memory, whether or not a client still waits for it.
    #[test]
    fn samples_that_wait_hold_their_room_though_their_client_hangs_up() {
        let reached = Reached::start();
        let room = &reached.server.app.room;
        let (release, holding) = hold(&reached);
        let rows = vec!["[1,0]"; 10_000].join(",");
        let bodies = [
            ("classify", format!("{{\"features\":[{rows}]}}")),
            ("feedback", format!("{{\"labels\":[{}]}}", vec![r#"{"id":0,"label":0}"#; 10_000].join(","))),
            ("correct", format!("{{\"labels\":[{}]}}", vec![r#"{"id":0,"label":0}"#; 10_000].join(","))),
        ];
        let mut sent = 0;
        for (i, (call, body)) in bodies.iter().enumerate() {
            let mut client = std::net::TcpStream::connect(reached.server.address).unwrap();
            let length = body.len();
            write!(client, "POST /v1/streams/default/{call} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
            eventually("it waits for the owner", || reached.stream().waiting() == i + 1);
            drop(client);
            sent += length;
        }
        // The server sees that the clients have gone.
        std::thread::sleep(Duration::from_millis(200));
        // Rows of six letters have become rows of eight bytes.
        assert!((sent..sent + (32 << 10)).contains(&room.held()), "{} of {sent}", room.held());
        drop(release);
        eventually("all is done", || room.held() == 0);
        reached.runtime.block_on(holding).unwrap();
        reached.runtime.block_on(reached.server.stop());
    }

    /// A call that does not take lines counts a body that says it is lines, too.
    #[test]
    fn a_body_is_counted_whatever_it_is_called() {
        let reached = Reached::start();
        let mut client = std::net::TcpStream::connect(reached.server.address).unwrap();
        let head =
            "POST /v2/models/default/infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson";
        write!(client, "{head}\r\ninference-header-content-length: 10\r\ncontent-length: 60000000\r\n\r\n")
            .unwrap();
        client.write_all(&vec![b' '; 3 << 20]).unwrap();
        eventually("it is counted", || reached.server.app.room.held() > 2 << 20);
        drop(client);
        eventually("the client has gone", || reached.server.app.room.held() == 0);
        reached.runtime.block_on(reached.server.stop());
    }

    /// Answers that a client does not read are in memory, whatever call they are to.
    #[test]
    fn every_large_answer_holds_room_until_it_is_read() {
        let reached = Reached::start();
        let app = &reached.server.app;
        const CLASSES: usize = 8000;
        let anchors = (0..CLASSES).flat_map(|i| [(i as f32).cos(), (i as f32).sin()]).collect();
        let names: Vec<String> = (0..CLASSES).map(|i| format!("{i} {}", "long ".repeat(150))).collect();
        let head = Head::new(anchors, 2, names, 100.0).unwrap();
        let spec = StreamSpec { head, config: Config::default(), durability: None, group: None };
        reached.runtime.block_on(app.streams.ensure("many", spec)).unwrap();
        let classes = reached.json("/v1/streams/many/classes");
        assert_eq!(classes["classes"].as_array().unwrap().len(), CLASSES);
        eventually("it was read", || app.room.held() == 0);
        let mut client = std::net::TcpStream::connect(reached.server.address).unwrap();
        client.write_all(b"GET /v1/streams/many/classes HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        eventually("it holds its room", || app.room.held() > 6 << 20);
        drop(client);
        eventually("the client has gone", || app.room.held() == 0);
        // The sender's own names for rows come back with the answers.
        let names = vec![format!("\"{}\"", "x".repeat(1000)); 8000].join(",");
        let rows = vec!["[1,0]"; 8000].join(",");
        let body = format!("{{\"features\":[{rows}],\"refs\":[{names}]}}");
        let length = body.len();
        let url = format!("http://{}/v1/streams/default/predict", reached.server.address);
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let ask = || {
            let request = agent.post(&url).header("content-type", "application/json");
            request.send(&body).unwrap().status().as_u16()
        };
        let most = app.room.for_answer(app.room.most_for_answers() - length - (4 << 20));
        let most = most.map_err(|problem| problem.detail).unwrap();
        assert_eq!(ask(), 429, "there is room for the body, and not for the answer");
        drop(most);
        let mut client = std::net::TcpStream::connect(reached.server.address).unwrap();
        write!(client, "POST /v1/streams/default/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        std::io::Read::read(&mut client, &mut [0; 12]).unwrap();
        eventually("the body is done", || app.room.held() < length + (4 << 20));
        assert!(app.room.held() > 6 << 20, "{}", app.room.held());
        drop(client);
        eventually("the client has gone", || app.room.held() == 0);
        let all = app.room.for_answer(app.room.most_for_answers()).map_err(|problem| problem.detail).unwrap();
        let rest = app.room.share();
        assert!(rest.hold(app.config.limits.waiting_bytes - all.bytes()) || rest.hold(64 << 10));
        assert_eq!(reached.get("/v1/streams/many/classes").0, 429);
        assert_eq!(reached.get("/openapi.json").0, 200, "it is in the program itself");
        drop((all, rest));
        assert_eq!(reached.get("/v1/streams/many/classes").0, 200);
        reached.runtime.block_on(reached.server.stop());
    }

    /// While the disk of a stream does not answer, whoever asks for its snapshots waits, and nobody else.
    #[test]
    fn a_disk_that_does_not_answer_keeps_only_those_waiting_who_need_it() {
        let reached = Reached::start();
        let stream = reached.stream();
        let disk = stream.folder.manifest();
        let call = |method: &str, path: &str| {
            let mut client = std::net::TcpStream::connect(reached.server.address).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let body = "{\"label\":\"x\"}";
            let length = body.len();
            write!(client, "{method} /v1/streams/default/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
            client
        };
        let waiting: Vec<_> = (0..4)
            .flat_map(|_| [call("GET", "snapshots"), call("DELETE", "snapshots/x"), call("POST", "rollback")])
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        let mut other = call("GET", "history");
        let read = std::io::Read::read(&mut other, &mut [0; 12]);
        drop(disk);
        assert_eq!(read.unwrap(), 12);
        drop((waiting, stream));
        reached.runtime.block_on(reached.server.stop());
    }

    /// A state is read when it is needed: however many wait to return to one, none of them holds it.
    #[test]
    fn whoever_waits_to_return_to_a_snapshot_holds_nothing() {
        let reached = Reached::start();
        let stream = reached.stream();
        let kept = reached.runtime.block_on(stream.control(|owner| owner.snapshot("x")));
        assert!(kept.is_ok());
        let (release, holding) = hold(&reached);
        let url = format!("http://{}/v1/streams/default/rollback", reached.server.address);
        let asked = std::thread::spawn(move || {
            let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
            let request = agent.post(url).header("content-type", "application/json");
            request.send("{\"label\":\"x\"}").unwrap().status().as_u16()
        });
        eventually("it waits for the owner", || stream.waiting() == 1);
        stream.folder.remove_snapshot("x").unwrap();
        drop(release);
        assert_eq!(asked.join().unwrap(), 404);
        reached.runtime.block_on(holding).unwrap();
        drop(stream);
        reached.runtime.block_on(reached.server.stop());
    }

    /// Whoever asks for a deletion and hangs up gets it: no stream is left that is neither there nor gone.
    #[test]
    fn a_deletion_runs_to_its_end_without_its_client() {
        let reached = Reached::start();
        let stream = reached.stream();
        let (release, holding) = hold(&reached);
        let mut client = std::net::TcpStream::connect(reached.server.address).unwrap();
        client.write_all(b"DELETE /v1/streams/default HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        eventually("the deletion waits for the owner", || stream.waiting() > 0);
        drop(client);
        // The server sees that the client has gone, and the request is dropped, while the owner is still at work.
        std::thread::sleep(Duration::from_millis(200));
        drop(release);
        reached.runtime.block_on(holding).unwrap();
        eventually("the stream is gone", || reached.get("/v1/streams/default").0 == 404);
        assert!(!reached.folder.path().join("streams/default").exists());
        assert_eq!(reached.json("/healthz")["status"], "ok");
        reached.runtime.block_on(reached.server.stop());
    }
}
