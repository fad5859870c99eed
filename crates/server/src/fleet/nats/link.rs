//! A connection to the broker: what is asked of it, within its time, and in which names.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::object_store::{GetErrorKind, ObjectStore};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use async_nats::jetstream::{self, object_store, stream};
use futures_util::{StreamExt, TryStreamExt};
use tokio::io::AsyncReadExt;

use crate::settings::ShareSettings;

/// How long the broker may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Bytes a second that are expected of a slow line, beside that.
const SLOW: f64 = 100e3;
/// Deltas of which some parts have come, at most.
pub const PARTIALS: usize = 4096;
/// Messages that are read at once.
const BATCH: usize = 64;
/// Time within which the broker knows a message again.
const DUPLICATES: Duration = Duration::from_secs(120);

/// Headers: which part of how many a message is; the object that holds what a dropped member gave.
pub const PARTS: &str = "Ultta-Part";
pub const DROPS: &str = "Ultta-Drop";

/// Why an exchange failed: the broker, or a stream of this server.
pub type Failure = String;

/// A connection, and where reading stands.
pub struct Link {
    pub client: async_nats::Client,
    pub context: jetstream::Context,
    pub stream: stream::Stream,
    pub objects: ObjectStore,
    pub reader: Option<jetstream::consumer::Consumer<pull::Config>>,
    /// The last message that was read, and the last there is.
    pub read: u64,
    pub last: u64,
    /// Whether there was nothing more to read: the last messages there were may have been removed, and are never read.
    pub done: bool,
    pub partial: BTreeMap<String, Partial>,
    /// Bytes that a delta or a contribution may have.
    pub most: usize,
}

/// An object of the bucket.
pub enum Found {
    Nothing,
    Object(Vec<u8>),
    /// One of more bytes than there can be.
    TooLarge(String),
}

impl Found {
    pub fn bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Object(bytes) => Some(bytes),
            Self::Nothing | Self::TooLarge(_) => None,
        }
    }
}

/// A delta of which some parts have come.
pub struct Partial {
    pub first: u64,
    pub since: Instant,
    pub bytes: Vec<u8>,
    pub parts: usize,
}

impl Link {
    /// The next messages; none if there are none at the moment.
    pub async fn next(&mut self) -> Result<Vec<(u64, async_nats::Message)>, Failure> {
        if self.reader.is_none() {
            let config = pull::Config {
                deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: self.read + 1 },
                ack_policy: AckPolicy::None,
                inactive_threshold: Duration::from_secs(60),
                ..Default::default()
            };
            self.reader = Some(answered(self.stream.create_consumer(config)).await?);
        }
        let Some(reader) = &self.reader else { return Ok(Vec::new()) };
        collect(reader, BATCH).await
    }

    /// The whole deltas of one member that the stream still has.
    pub async fn history(&self, subject: &str) -> Result<Vec<Vec<u8>>, Failure> {
        let config = pull::Config {
            filter_subject: subject.into(),
            ack_policy: AckPolicy::None,
            inactive_threshold: Duration::from_secs(60),
            ..Default::default()
        };
        let reader = answered(self.stream.create_consumer(config)).await?;
        let (mut whole, mut bytes) = (Vec::new(), Vec::new());
        loop {
            let messages = collect(&reader, BATCH).await?;
            if messages.is_empty() {
                return Ok(whole);
            }
            for (_, message) in messages {
                let part =
                    message.headers.as_ref().and_then(|h| h.get(PARTS)).map(|v| v.as_str().to_string());
                let Some((part, parts)) = part.as_deref().and_then(|text| text.split_once('/')) else {
                    continue;
                };
                if part == "0" {
                    bytes.clear();
                }
                if bytes.len() + message.payload.len() <= self.most {
                    bytes.extend_from_slice(&message.payload);
                }
                if part.parse::<usize>().map(|part| part + 1).ok() == parts.parse().ok() {
                    whole.push(std::mem::take(&mut bytes));
                }
            }
        }
    }

    /// The number of the last message of a subject.
    pub async fn last_of(&self, subject: &str) -> Result<Option<u64>, Failure> {
        let asked = tokio::time::timeout(ANSWER, self.stream.get_last_raw_message_by_subject(subject)).await;
        match asked.map_err(|_| silent())? {
            Ok(message) => Ok(Some(message.sequence)),
            Err(e) if e.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(e) => Err(e.to_string()),
        }
    }

    pub async fn object_names(&self) -> Result<Vec<String>, Failure> {
        let list = answered(self.objects.list()).await?;
        let infos: Vec<_> = answered(list.try_collect::<Vec<_>>()).await?;
        let names = infos.into_iter().map(|info| info.name).filter(|name| !name.starts_with("drop-"));
        Ok(names.collect())
    }

    /// An object. Only what the broker says is not there is not there: all else is an error, and is tried again.
    pub async fn object(&self, name: &str) -> Result<Found, Failure> {
        let found = tokio::time::timeout(ANSWER, self.objects.get(name)).await;
        let mut object = match found.map_err(|_| silent())? {
            Ok(object) => object,
            Err(e) if e.kind() == GetErrorKind::NotFound => return Ok(Found::Nothing),
            Err(e) => return Err(format!("{name}: {e}")),
        };
        if object.info.size > self.most {
            return Ok(Found::TooLarge(too_large(object.info.size, self.most)));
        }
        let mut bytes = Vec::new();
        // Every piece has its time, so that a whole contribution may take as long as the line needs.
        while answered(object.read_buf(&mut bytes)).await? > 0 {
            if bytes.len() > self.most {
                return Ok(Found::TooLarge(too_large(bytes.len(), self.most)));
            }
        }
        Ok(Found::Object(bytes))
    }

    pub async fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let mut reader = bytes;
        let time = ANSWER + Duration::from_secs_f64(bytes.len() as f64 / SLOW);
        let done = tokio::time::timeout(time, self.objects.put(name, &mut reader)).await;
        done.map_err(|_| silent())?.map(|_| ()).map_err(|e| e.to_string())
    }
}

/// Why a delta of too many bytes is refused.
pub fn too_large(bytes: usize, most: usize) -> String {
    format!("it has {bytes} bytes or more; a delta for this head has {most} at most")
}

/// Bytes of a delta with all classes and second moments, and room for its names and settings.
pub fn most_bytes(classes: usize, dim: usize) -> usize {
    let numbers = 2 * dim + dim * (dim + 1) / 2 + classes * (dim + 2);
    4 * numbers + (64 << 10)
}

fn silent() -> Failure {
    "the broker does not answer".into()
}

async fn collect(
    reader: &jetstream::consumer::Consumer<pull::Config>,
    most: usize,
) -> Result<Vec<(u64, async_nats::Message)>, Failure> {
    let mut batch = answered(reader.fetch().max_messages(most).messages()).await?;
    let mut found = Vec::new();
    while let Some(message) = tokio::time::timeout(ANSWER, batch.next()).await.map_err(|_| silent())? {
        let message = message.map_err(|e| e.to_string())?;
        let sequence = message.info().map_err(|e| e.to_string())?.stream_sequence;
        found.push((sequence, message.message));
    }
    Ok(found)
}

/// Publishes a message, and waits until the broker has it. Gives its number; `None` if another one came before it that it
/// was to follow.
pub async fn confirmed(link: &Link, subject: &str, message: PublishMessage) -> Result<Option<u64>, Failure> {
    let sent = answered(link.context.send_publish(subject.to_string(), message)).await?;
    match tokio::time::timeout(ANSWER, sent.into_future()).await.map_err(|_| silent())? {
        Ok(taken) => Ok(Some(taken.sequence)),
        Err(e) if e.kind() == PublishErrorKind::WrongLastSequence => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}

/// What the broker says, within its time.
pub async fn answered<T, E: std::fmt::Display>(
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(ANSWER, asked).await {
        Ok(answer) => answer.map_err(|e| e.to_string()),
        Err(_) => Err(silent()),
    }
}

pub async fn connect(group: &str, settings: &ShareSettings, most: usize) -> Result<Link, Failure> {
    let Some(url) = &settings.url else { return Err("no broker is set".into()) };
    let mut options = async_nats::ConnectOptions::new().name("ultta").connection_timeout(ANSWER);
    let parsed = |url: &str| -> Result<async_nats::ServerAddr, Failure> {
        url.parse().map_err(|e: std::io::Error| settings.hide(&e.to_string()))
    };
    // The client itself leaves out who is named in the address. A name without a password is a token.
    let address = parsed(url)?;
    options = match (address.username(), address.password()) {
        (Some(user), Some(password)) => options.user_and_password(decoded(user), decoded(password)),
        (Some(token), None) => options.token(decoded(token)),
        (None, _) => options,
    };
    if let Some(token) = &settings.token {
        options = options.token(token.clone());
    }
    if let (Some(user), Some(password)) = (&settings.user, &settings.password) {
        options = options.user_and_password(user.clone(), password.clone());
    }
    if let Some(seed) = &settings.nkey {
        options = options.nkey(seed.clone());
    }
    if let Some(path) = &settings.credentials {
        let read = options.credentials_file(path).await;
        options = read.map_err(|e| format!("the credentials file cannot be used: {}", e.kind()))?;
    }
    if let Some(ca) = &settings.tls_ca {
        options = options.add_root_certificates(ca.clone()).require_tls(true);
    }
    if let (Some(cert), Some(key)) = (&settings.tls_cert, &settings.tls_key) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    // The client writes addresses whole into its log.
    let nameless = parsed(&without_names(url))?;
    let client = answered(options.connect(nameless)).await.map_err(|reason| settings.hide(&reason))?;
    let mut context = jetstream::new(client.clone());
    context.set_timeout(ANSWER);
    let name = format!("ULTTA_{group}");
    let config = stream::Config {
        name: name.clone(),
        subjects: vec![format!("ultta.{group}.*")],
        duplicate_window: DUPLICATES,
        max_bytes: settings.max_bytes,
        ..Default::default()
    };
    let stream = answered(context.get_or_create_stream(config)).await?;
    let objects = match answered(context.get_object_store(&name)).await {
        Ok(objects) => objects,
        Err(_) => {
            let config = object_store::Config { bucket: name, ..Default::default() };
            answered(context.create_object_store(config)).await?
        }
    };
    let (read, last, done, partial) = Default::default();
    Ok(Link { client, context, stream, objects, reader: None, read, last, done, partial, most })
}

/// An address without the user and password in it.
fn without_names(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// A part of an address without its percent signs.
fn decoded(part: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), part.as_bytes());
    while let Some((&byte, behind)) = rest.split_first() {
        let code = behind.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.filter(|code| code.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(|_| byte == b'%') {
            Some(code) => {
                bytes.push(code);
                rest = &behind[2..];
            }
            None => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The subject of a member.
pub fn subject(group: &str, member: &str) -> String {
    format!("ultta.{group}.{}", token(member))
}

/// A member's name as one token of a subject, and as the name of an object.
pub fn token(member: &str) -> String {
    let mut token = String::new();
    for byte in member.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => token.push(byte as char),
            _ => token += &format!("={byte:02x}"),
        }
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_out_of_an_address() {
        for (url, expected) in [
            ("nats://anna:hush@broker:4222", "nats://broker:4222"),
            ("tls://token@broker", "tls://broker"),
            ("nats://anna:h@sh@[::1]:4222/", "nats://[::1]:4222/"),
            ("nats://broker:4222/a@b", "nats://broker:4222/a@b"),
        ] {
            assert_eq!(without_names(url), expected);
        }
    }

    #[test]
    fn what_an_address_names_is_decoded() {
        for (part, expected) in
            [("hush", "hush"), ("a%40b%3A", "a@b:"), ("%c3%a4", "ä"), ("5%", "5%"), ("%+1", "%+1")]
        {
            assert_eq!(decoded(part), expected);
        }
    }
}
