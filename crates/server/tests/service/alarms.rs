//! Alarms over the service: events, metrics, verdicts, the webhook, silence, and the story of a class.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use serde_json::{Value, json};
use ultta::Features;

use crate::common::{DIM, Service, config, eventually, rows};

/// Rows that are moved by one common step.
fn moved(n: usize) -> Features<'static> {
    let rows = rows(n);
    let data = rows.data().iter().enumerate().map(|(i, v)| if i % DIM < 4 { v + 0.6 } else { *v });
    Features::normalized(data.collect::<Vec<_>>(), DIM).unwrap()
}

fn stream(service: &Service) -> Value {
    let (status, stream) = service.get("/v1/streams/default");
    assert_eq!(status, 200, "{stream}");
    stream
}

/// A receiver that refuses the first post and takes the others.
fn receiver() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (send, posts) = mpsc::channel();
    std::thread::spawn(move || {
        for (i, socket) in listener.incoming().enumerate() {
            let mut socket = socket.unwrap();
            let mut text = Vec::new();
            let mut bytes = [0u8; 4096];
            loop {
                let read = socket.read(&mut bytes).unwrap_or(0);
                text.extend_from_slice(&bytes[..read]);
                let whole = String::from_utf8_lossy(&text);
                let body = whole.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
                let length = whole.lines().find_map(|line| {
                    let (key, value) = line.split_once(':')?;
                    key.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
                });
                if read == 0 || length.is_some_and(|length| body >= length) {
                    break;
                }
            }
            let status = if i == 0 { "500 Internal Server Error" } else { "200 OK" };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let _ = socket.write_all(answer.as_bytes());
            if send.send(String::from_utf8_lossy(&text).into_owned()).is_err() {
                return;
            }
        }
    });
    (url, posts)
}

/// A broker that lets anyone in; what is published, as topic and text.
#[cfg(feature = "mqtt")]
fn broker() -> (String, mpsc::Receiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("mqtt://{}", listener.local_addr().unwrap());
    let (send, published) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        loop {
            let mut byte = [0u8];
            if socket.read_exact(&mut byte).is_err() {
                return;
            }
            let kind = byte[0];
            let mut length = 0usize;
            for shift in [0, 7, 14, 21] {
                socket.read_exact(&mut byte).unwrap();
                length |= usize::from(byte[0] & 127) << shift;
                if byte[0] < 128 {
                    break;
                }
            }
            let mut body = vec![0; length];
            socket.read_exact(&mut body).unwrap();
            match kind >> 4 {
                1 => socket.write_all(&[0x20, 2, 0, 0]).unwrap(),
                3 => {
                    let end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    // Behind the topic stands the number of the message, which is acknowledged.
                    socket.write_all(&[0x40, 2, body[end], body[end + 1]]).unwrap();
                    if send.send((text(&body[2..end]), text(&body[end + 2..]))).is_err() {
                        return;
                    }
                }
                _ => {}
            }
        }
    });
    (url, published)
}

/// The next text on a topic.
#[cfg(feature = "mqtt")]
fn next_on(published: &mpsc::Receiver<(String, String)>, topic: &str) -> String {
    let wait = std::time::Duration::from_secs(30);
    loop {
        let (on, text) = published.recv_timeout(wait).unwrap_or_else(|e| panic!("nothing on {topic}: {e}"));
        if on == topic {
            return text;
        }
    }
}

#[cfg(feature = "mqtt")]
#[test]
fn a_broker_keeps_no_word_of_a_stream_that_is_gone_and_hears_of_one_that_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let serve = || {
        let (url, published) = broker();
        let mut settings = config(folder.path());
        settings.alarms.mqtt = Some(url);
        (Service::start(settings), published)
    };
    let (service, published) = serve();
    service.ensure("default", "ul-tta");
    service.ensure("yard", "ul-tta");
    assert_eq!(next_on(&published, "ultta/yard/verdict"), "watch", "no row has arrived yet");
    assert_eq!(service.delete("/v1/streams/yard"), 204);
    assert_eq!(next_on(&published, "ultta/yard/verdict"), "");
    assert_eq!(next_on(&published, "ultta/yard/state"), "");
    service.stop();
    std::fs::write(folder.path().join("streams/default/head.safetensors"), "broken").unwrap();
    let (service, published) = serve();
    assert_eq!(next_on(&published, "ultta/default/verdict"), "act");
    let state = next_on(&published, "ultta/default/state");
    assert!(state.contains("could not be opened"), "{state}");
    service.stop();
}

#[test]
fn a_change_is_an_event_a_metric_a_verdict_and_a_signed_post() {
    let folder = tempfile::tempdir().unwrap();
    let (url, posts) = receiver();
    let mut settings = config(folder.path());
    settings.alarms.webhook = Some(url);
    settings.alarms.secret = Some("between us".into());
    let service = Service::start(settings);
    service.ensure("default", "ul-tta");
    assert_eq!(stream(&service)["verdict"]["level"], "watch", "no row has arrived yet");
    service.classify(&rows(1000));
    let before = stream(&service);
    assert_eq!(before["verdict"]["level"], "well", "{}", before["verdict"]);
    assert_eq!((&before["alarms"], &before["status"]["health"]["alarms_ready"]), (&json!([]), &json!(true)));
    service.classify(&moved(300));
    let after = stream(&service);
    let alarm = &after["alarms"][0];
    assert!(alarm["open"] == true && alarm["since"].as_u64().unwrap() >= 990, "{alarm}");
    assert_ne!(after["verdict"]["level"], "well");
    assert_eq!(after["verdict"]["next"], alarm["advice"]);
    let (_, history) = service.get("/v1/streams/default/history");
    let events = history["events"].as_array().unwrap();
    assert!(events.iter().any(|e| e["kind"] == "alarm"), "{events:?}");
    assert_eq!(
        history["points"].as_array().unwrap().last().unwrap()["seen"],
        1300,
        "a burst is on the chart"
    );
    let metrics = String::from_utf8(service.get_bytes("/metrics").1).unwrap();
    let kind = alarm["kind"].as_str().unwrap();
    assert!(
        metrics.contains(&format!("ultta_alarms_total{{kind=\"{kind}\",stream=\"default\"}} 1")),
        "{metrics}"
    );
    assert!(
        metrics.contains("ultta_verdict{stream=\"default\"}") && metrics.contains("ultta_silence_seconds")
    );

    let refused = posts.recv().unwrap();
    let taken = posts.recv().unwrap();
    let body = taken.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(Some(body), refused.split_once("\r\n\r\n").map(|p| p.1), "the same is tried again");
    let told: Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        (&told["event"], &told["stream"], &told["alarm"]["kind"]),
        (&json!("alarm"), &json!("default"), &alarm["kind"])
    );
    assert!(taken.to_lowercase().contains("x-ultta-signature-256: sha256="), "{taken}");

    let (status, known) = service.post("/v1/streams/default/acknowledge", &json!({}));
    assert_eq!((status, &known["verdict"]["level"]), (200, &json!("well")), "{known}");
    assert_eq!(known["alarms"][0]["open"], false);
    service.stop();
    // A restart knows of the alarm, that it came before, and that somebody has acknowledged it.
    let again = Service::start(config(folder.path()));
    let alarms = stream(&again)["alarms"].clone();
    assert!(alarms[0]["time"].is_null() && alarms[0]["kind"] == *kind, "{alarms}");
    assert_eq!(alarms[0]["open"], false, "{alarms}");
    again.stop();
}

#[test]
fn an_alarm_stays_open_over_a_restart_and_is_known_in_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    service.classify(&rows(1000));
    service.classify(&moved(300));
    service.stop();
    let again = Service::start(config(folder.path()));
    assert_eq!(stream(&again)["alarms"][0]["open"], true);
    let (status, _) = again.post("/v1/streams/default/clone", &json!({"name": "copy"}));
    assert_eq!(status, 201);
    let (_, copy) = again.get("/v1/streams/copy");
    assert_eq!(copy["alarms"][0]["open"], false, "{copy}");
    again.stop();
}

#[test]
fn a_feed_that_ceases_is_told_and_one_that_comes_back_is_well() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = config(folder.path());
    settings.alarms.silent_seconds = Some(0.3);
    let service = Service::start(settings);
    service.ensure("default", "ul-tta");
    service.classify(&rows(5));
    eventually("silence is told", || stream(&service)["verdict"]["level"] == "act");
    let silent = stream(&service);
    assert_eq!(
        (&silent["alarms"][0]["kind"], silent["alarms"].as_array().unwrap().len()),
        (&json!("silent"), 1)
    );
    // Acknowledged is seen, not mended.
    let (_, known) = service.post("/v1/streams/default/acknowledge", &json!({}));
    assert_eq!((&known["alarms"][0]["open"], &known["verdict"]["level"]), (&json!(false), &json!("watch")));
    assert!(known["verdict"]["reason"].as_str().unwrap().contains("acknowledged, and goes on"), "{known}");
    service.classify(&rows(5));
    assert_eq!(stream(&service)["alarms"][0]["open"], false);
    service.stop();
}

/// Whatever stood before a restart: a stream that had rows and gets none is not well.
#[test]
fn a_restart_hides_no_dead_feed() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    service.classify(&rows(300));
    assert_eq!(stream(&service)["verdict"]["level"], "well");
    service.stop();
    let again = Service::start(config(folder.path()));
    let (told, metrics) = (stream(&again), String::from_utf8(again.get_bytes("/metrics").1).unwrap());
    assert_eq!(told["verdict"]["level"], "watch", "{}", told["verdict"]);
    let reason = told["verdict"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("No row since the server opened the stream"), "{reason}");
    assert!(told["status"]["last_row"].is_null() && told["status"]["silence_seconds"].is_f64(), "{told}");
    assert!(metrics.contains("ultta_silence_seconds{stream=\"default\"}"), "{metrics}");
    assert!(metrics.contains("ultta_verdict{stream=\"default\"} 1"), "{metrics}");
    again.stop();
    // A fixed time counts from the start; a row ends the silence.
    let mut settings = config(folder.path());
    settings.alarms.silent_seconds = Some(0.3);
    let fixed = Service::start(settings);
    eventually("silence is told", || stream(&fixed)["verdict"]["level"] == "act");
    assert_eq!(stream(&fixed)["alarms"][0]["kind"], "silent");
    fixed.stop();
    let last = Service::start(config(folder.path()));
    last.classify(&rows(5));
    assert_eq!(stream(&last)["verdict"]["level"], "well");
    last.stop();
}

#[test]
fn too_few_scenes_are_told_and_what_counts_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let warm_up = || stream(&service)["warm_up"].as_str().map(str::to_string);
    assert!(warm_up().is_some_and(|text| text.contains("zero-shot so far")));
    service.classify(&rows(60));
    let told = stream(&service);
    let scenes = told["status"]["health"]["scenes"].as_u64().unwrap();
    assert!((16..100).contains(&scenes), "{scenes} scenes");
    let early = format!("too early to judge: {scenes} of about 220 scenes");
    assert!(told["verdict"]["reason"].as_str().unwrap().contains(&early), "{}", told["verdict"]);
    let counts = format!("{scenes} of 100 scenes; the class mix already counts, classes are not taught yet");
    assert_eq!(warm_up(), Some(counts));
    service.classify(&rows(400));
    assert_eq!(warm_up(), None);
    service.ensure("paper", "ul-tta:paper");
    assert!(service.get("/v1/streams/paper").1["warm_up"].is_null());
    service.stop();
}

#[test]
fn metrics_are_there_before_the_first_alarm() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    // Requests are counted once there was one.
    assert_eq!(service.get("/healthz").0, 200);
    let metrics = String::from_utf8(service.get_bytes("/metrics").1).unwrap();
    for kind in ["domain", "mix", "quality", "frozen", "silent"] {
        let line = format!("ultta_alarms_total{{kind=\"{kind}\",stream=\"default\"}} 0");
        assert!(metrics.contains(&line), "{kind}: {metrics}");
    }
    for name in ["standing", "restarts", "garbage", "effective_classes_zero_shot", "silence_seconds"] {
        assert!(metrics.contains(&format!("ultta_{name}{{stream=\"default\"}}")), "{name}: {metrics}");
    }
    // How right an empty stream is, nobody knows.
    assert!(!metrics.contains("ultta_estimated"), "{metrics}");
    service.classify(&rows(100));
    let metrics = String::from_utf8(service.get_bytes("/metrics").1).unwrap();
    for which in ["", "_recent", "_zero_shot", "_recent_zero_shot"] {
        let value = |end: &str| -> f64 {
            let start = format!("ultta_estimated{which}_top1{end}{{stream=\"default\"}} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
            line.unwrap_or_else(|| panic!("{start}: {metrics}")).parse().unwrap()
        };
        let (low, top1, high) = (value("_low"), value(""), value("_high"));
        assert!(0.0 <= low && low < top1 && top1 < high && high <= 1.0, "{which}: {low} {top1} {high}");
    }
    // What the dashboard and the rules ask for exists.
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for file in ["grafana.json", "prometheus-rules.yml"] {
        let text = std::fs::read_to_string(deploy.join(file)).unwrap();
        let names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in names.filter(|name| name.starts_with("ultta_")) {
            let name = name.trim_end_matches("_bucket");
            assert!(metrics.contains(&format!("# TYPE {name} ")), "{file}: {name}");
        }
    }
    service.stop();
}

#[test]
fn a_class_has_a_story() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let story = |label: usize| service.get(&format!("/v1/streams/default/classes/{label}/history"));
    assert_eq!(story(0).1["points"], json!([]));
    assert_eq!(story(99).0, 404);
    service.classify(&rows(400));
    eventually("a point of the story", || {
        service.get("/v1/streams/default/classes");
        story(0).1["points"].as_array().is_some_and(|points| !points.is_empty())
    });
    let (_, told) = story(0);
    let share = told["points"][0]["recent"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&share) && told["class"].is_string(), "{told}");
    // The story ends where the table of classes stands.
    let (_, all) = service.get("/v1/streams/default/classes");
    let mut named = 0;
    for class in all["classes"].as_array().unwrap() {
        let (_, told) = story(class["label"].as_u64().unwrap() as usize);
        let last = &told["points"].as_array().unwrap().last().unwrap()["estimate"];
        if class["answers"] == 0 {
            assert!(last.is_null(), "{told}");
            continue;
        }
        named += 1;
        for end in ["top1", "low", "high"] {
            let [shown, told] = [last, &class["estimate"]].map(|estimate| estimate[end].as_f64().unwrap());
            assert!((shown - told).abs() < 1e-6, "{end}: {shown} in the story, {told} in the table");
        }
    }
    assert!(named > 1, "{all}");
    service.stop();
}
