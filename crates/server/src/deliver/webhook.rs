//! The webhook: every alarm is posted as JSON, signed where there is a secret, and tried again when the receiver fails.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::Notice;
use super::signature::sign;

/// Pauses before another try.
const PAUSES: [u64; 5] = [1, 4, 16, 60, 240];
/// Time that one try may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Starts the thread that posts notices.
pub fn start(url: String, secret: Option<String>, notices: Receiver<Notice>) -> Result<(), String> {
    let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).build();
    let agent = ureq::Agent::from(config);
    let work = move || {
        for notice in notices {
            deliver(&agent, &url, secret.as_deref(), &notice);
        }
    };
    let started = std::thread::Builder::new().name("webhook".into()).spawn(work);
    started.map(drop).map_err(|e| format!("no thread for the webhook: {e}"))
}

fn deliver(agent: &ureq::Agent, url: &str, secret: Option<&str>, notice: &Notice) {
    let body = match serde_json::to_vec(notice) {
        Ok(body) => body,
        Err(e) => return tracing::error!(error = %e, "an alarm cannot be written as JSON"),
    };
    let mut pauses = PAUSES.iter();
    loop {
        let mut request = agent.post(url).header("content-type", "application/json");
        if let Some(secret) = secret {
            request = request.header("x-ultta-signature-256", sign(secret.as_bytes(), &body));
        }
        let Err(error) = request.send(&body[..]) else { return };
        let Some(&pause) = pauses.next() else {
            return tracing::error!(stream = notice.stream, %error, "the webhook was given up for this alarm");
        };
        tracing::warn!(stream = notice.stream, %error, pause, "the webhook failed and is tried again");
        std::thread::sleep(Duration::from_secs(pause));
    }
}
