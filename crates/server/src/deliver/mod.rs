//! Delivery of alarms to the outside: a webhook (`webhook.rs`, signed by `signature.rs`), and MQTT (`mqtt.rs`, cargo feature
//! `mqtt`). Each has a queue with a bound and a thread of its own: a receiver that is slow or gone costs requests
//! nothing. What does not fit the queue is dropped and said in the log.

#[cfg(feature = "mqtt")]
mod mqtt;
mod signature;
mod webhook;

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

use serde::Serialize;

use crate::alarms::AlarmView;
use crate::settings::AlarmSettings;
use crate::verdict::Verdict;

/// Notices that may wait for a receiver.
const QUEUE: usize = 256;

/// The event of a notice that a stream was deleted.
pub const GONE: &str = "gone";

/// Something to tell.
#[derive(Clone, Debug, Serialize)]
pub struct Notice {
    /// `alarm`, `verdict` when only that has changed, or `gone` when the stream was deleted.
    pub event: &'static str,
    /// The stream it is about.
    pub stream: String,
    /// Seconds since 1970.
    pub time: f64,
    /// The alarm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alarm: Option<AlarmView>,
    /// The verdict on the stream.
    pub verdict: Verdict,
}

/// Where notices go; clones share it.
#[derive(Clone, Default)]
pub struct Outbox {
    receivers: Arc<Vec<Receiver>>,
}

struct Receiver {
    name: &'static str,
    /// Whether it is told of verdicts, too.
    verdicts: bool,
    queue: SyncSender<Notice>,
}

impl Outbox {
    /// Starts a thread for every receiver that the settings name.
    pub fn start(settings: &AlarmSettings) -> Result<Self, String> {
        let mut receivers = Vec::new();
        if let Some(url) = &settings.webhook {
            let (queue, notices) = std::sync::mpsc::sync_channel(QUEUE);
            webhook::start(url.clone(), settings.secret.clone(), notices)?;
            receivers.push(Receiver { name: "webhook", verdicts: false, queue });
        }
        #[cfg(feature = "mqtt")]
        if let Some(url) = &settings.mqtt {
            let (queue, notices) = std::sync::mpsc::sync_channel(QUEUE);
            mqtt::start(url, &settings.mqtt_topic, notices)?;
            receivers.push(Receiver { name: "MQTT", verdicts: true, queue });
        }
        Ok(Self { receivers: Arc::new(receivers) })
    }

    /// Whether anyone wants to know of verdicts.
    pub fn wants_verdicts(&self) -> bool {
        self.receivers.iter().any(|receiver| receiver.verdicts)
    }

    /// Hands a notice over. Never waits.
    pub fn send(&self, notice: &Notice) {
        for receiver in self.receivers.iter().filter(|r| r.verdicts || notice.alarm.is_some()) {
            let lost = match receiver.queue.try_send(notice.clone()) {
                Ok(()) => continue,
                Err(TrySendError::Full(_)) => "its queue is full",
                Err(TrySendError::Disconnected(_)) => "its thread has ended",
            };
            tracing::warn!(stream = notice.stream, to = receiver.name, "an alarm was not delivered: {lost}");
        }
    }
}
