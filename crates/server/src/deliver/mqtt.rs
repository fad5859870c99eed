//! MQTT, for Home Assistant and other recorders' users. With the topic `ultta` and a stream `yard`:
//!
//! | topic | what | kept by the broker |
//! |---|---|---|
//! | `ultta/available` | `online`, and `offline` once the server is gone (the last will) | yes |
//! | `ultta/yard/verdict` | `well`, `watch` or `act` | yes |
//! | `ultta/yard/state` | the notice as JSON: verdict, reason, next step, and the alarm if there is one | yes |
//! | `ultta/events` | every alarm as JSON | no |
//! | `homeassistant/…/config` | Home Assistant's discovery: a sensor for the verdict, a problem that is on while something is to be done | yes |
//!
//! What the broker keeps of a stream is cleared when the stream is deleted.

use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rumqttc::{Client, LastWill, MqttOptions, QoS};
use serde_json::json;

use super::{GONE, Notice};
use crate::verdict::Level;

/// Messages that may wait for the broker.
const QUEUE: usize = 256;
/// Pause before the broker is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// Starts the threads that publish notices and keep the connection.
pub fn start(url: &str, topic: &str, notices: Receiver<Notice>) -> Result<(), String> {
    let options = options(url, topic)?;
    let (client, mut connection) = Client::new(options, QUEUE);
    let topic = topic.to_string();
    let available = format!("{topic}/available");
    let publisher = client.clone();
    let keep = move || {
        for event in connection.iter() {
            match event {
                Ok(rumqttc::Event::Incoming(rumqttc::Packet::ConnAck(_))) => {
                    let _ = publisher.try_publish(&available, QoS::AtLeastOnce, true, "online");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "the MQTT broker cannot be reached; it is tried again");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    };
    let publish = move || {
        let mut announced = BTreeSet::new();
        for notice in notices {
            let messages = if notice.event == GONE {
                announced.remove(&notice.stream);
                farewell(&notice.stream, &topic)
            } else {
                let new = announced.insert(notice.stream.clone());
                messages(&notice, &topic, new)
            };
            for (topic, retain, text) in messages {
                if let Err(error) = client.try_publish(topic, QoS::AtLeastOnce, retain, text) {
                    tracing::warn!(stream = notice.stream, %error, "an MQTT message was dropped");
                }
            }
        }
    };
    let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let started = std::thread::Builder::new().name(name.into()).spawn(work);
        started.map(drop).map_err(|e| format!("no thread for MQTT: {e}"))
    };
    start("mqtt", Box::new(keep))?;
    start("mqtt notices", Box::new(publish))
}

/// From `mqtt://user:password@host:1883`.
fn options(url: &str, topic: &str) -> Result<MqttOptions, String> {
    let expected = "server.alarms.mqtt: expected mqtt://user:password@host:1883";
    let rest = url.strip_prefix("mqtt://").ok_or(expected)?.trim_end_matches('/');
    let (login, place) = rest.rsplit_once('@').map_or((None, rest), |(login, place)| (Some(login), place));
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().map_err(|_| expected)?),
        None => (place, 1883),
    };
    if host.is_empty() {
        return Err(expected.into());
    }
    let mut options = MqttOptions::new(format!("ultta-{}", std::process::id()), host, port);
    options.set_keep_alive(Duration::from_secs(30));
    options.set_last_will(LastWill::new(format!("{topic}/available"), "offline", QoS::AtLeastOnce, true));
    if let Some(login) = login {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        options.set_credentials(user, password);
    }
    Ok(options)
}

/// The messages of a notice: topic, whether the broker keeps it, text. The first notice of a stream announces it.
fn messages(notice: &Notice, topic: &str, first: bool) -> Vec<(String, bool, String)> {
    let stream = &notice.stream;
    let level = match notice.verdict.level {
        Level::Well => "well",
        Level::Watch => "watch",
        Level::Act => "act",
    };
    let whole = json!(notice).to_string();
    let mut messages = Vec::new();
    if first {
        messages.extend(discovery(stream, topic));
    }
    messages.push((format!("{topic}/{stream}/verdict"), true, level.to_string()));
    messages.push((format!("{topic}/{stream}/state"), true, whole.clone()));
    if notice.alarm.is_some() {
        messages.push((format!("{topic}/events"), false, whole));
    }
    messages
}

/// What makes the broker forget a stream that was deleted: nothing, on each topic that it keeps.
fn farewell(stream: &str, topic: &str) -> Vec<(String, bool, String)> {
    let [sensor, problem] = discovery(stream, topic).map(|(topic, ..)| topic);
    let own = ["verdict", "state"].map(|what| format!("{topic}/{stream}/{what}"));
    [sensor, problem].into_iter().chain(own).map(|topic| (topic, true, String::new())).collect()
}

/// Home Assistant's discovery messages for a stream.
fn discovery(stream: &str, topic: &str) -> [(String, bool, String); 2] {
    // Ids there are letters, digits, '_' and '-'.
    let id = format!("ultta_{}", stream.replace('.', "_"));
    let common = |name: &str, unique: &str| {
        json!({
            "name": name,
            "unique_id": format!("{id}_{unique}"),
            "state_topic": format!("{topic}/{stream}/verdict"),
            "availability_topic": format!("{topic}/available"),
            "json_attributes_topic": format!("{topic}/{stream}/state"),
            "device": { "identifiers": [id], "name": format!("ultta {stream}"), "manufacturer": "ultta" },
        })
    };
    let verdict = common("Verdict", "verdict");
    let mut problem = common("Problem", "problem");
    problem["device_class"] = json!("problem");
    problem["value_template"] = json!("{{ 'ON' if value == 'act' else 'OFF' }}");
    [
        (format!("homeassistant/sensor/{id}/verdict/config"), true, verdict.to_string()),
        (format!("homeassistant/binary_sensor/{id}/problem/config"), true, problem.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::alarms::AlarmView;
    use crate::verdict::Verdict;

    fn notice() -> Notice {
        let verdict = Verdict { level: Level::Act, reason: "No row came.".into(), next: "look".into() };
        let alarm = Some(AlarmView::silent(1.0, 60.0, 3));
        Notice { event: "alarm", stream: "yard.1".into(), time: 1.0, alarm, verdict }
    }

    #[test]
    fn addresses_are_read_and_refused() {
        let options = options("mqtt://me:pa:ss@broker:1999", "ultta").unwrap();
        assert_eq!(options.broker_address(), ("broker".to_string(), 1999));
        assert!(super::options("mqtt://broker", "ultta").is_ok());
        for bad in ["http://broker", "mqtt://", "mqtt://broker:x"] {
            assert!(super::options(bad, "ultta").unwrap_err().contains("server.alarms.mqtt"), "{bad}");
        }
    }

    #[test]
    fn the_first_notice_of_a_stream_announces_it() {
        let topics = |first| messages(&notice(), "ultta", first).into_iter().map(|m| m.0).collect::<Vec<_>>();
        assert_eq!(topics(false), ["ultta/yard.1/verdict", "ultta/yard.1/state", "ultta/events"]);
        assert!(topics(true)[1].starts_with("homeassistant/binary_sensor/ultta_yard_1/"));
    }

    #[test]
    fn a_stream_that_is_gone_leaves_nothing_on_the_broker() {
        let kept = messages(&notice(), "ultta", true).into_iter().filter(|(_, retain, _)| *retain);
        let mut kept: Vec<String> = kept.map(|(topic, ..)| topic).collect();
        let cleared = farewell("yard.1", "ultta");
        assert!(cleared.iter().all(|(_, retain, text)| *retain && text.is_empty()), "{cleared:?}");
        let mut cleared: Vec<String> = cleared.into_iter().map(|(topic, ..)| topic).collect();
        kept.sort();
        cleared.sort();
        assert_eq!(kept, cleared);
    }

    /// A broker that lets anyone in and keeps what it is told.
    #[test]
    fn a_broker_gets_the_messages() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("mqtt://{}", listener.local_addr().unwrap());
        let (queue, notices) = std::sync::mpsc::sync_channel(8);
        start(&url, "ultta", notices).unwrap();
        queue.send(notice()).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        let mut heard = Vec::new();
        let mut bytes = [0u8; 4096];
        let read = socket.read(&mut bytes).unwrap();
        assert_eq!(bytes[0] >> 4, 1, "CONNECT");
        assert!(String::from_utf8_lossy(&bytes[..read]).contains("ultta/available"), "with a last will");
        socket.write_all(&[0x20, 2, 0, 0]).unwrap();
        let wanted = ["ultta/yard.1/verdict", "ultta/yard.1/state", "ultta/events", "homeassistant/sensor"];
        while !wanted.iter().all(|w| String::from_utf8_lossy(&heard).contains(w)) {
            let read = socket.read(&mut bytes).unwrap();
            assert!(read > 0, "hung up after {}", String::from_utf8_lossy(&heard));
            heard.extend_from_slice(&bytes[..read]);
        }
        assert!(String::from_utf8_lossy(&heard).contains("No row came."));
    }
}
