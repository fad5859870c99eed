//! What the service says of its streams, for people.

use std::io::Write;

use serde_json::Value;
use ultta_formats::shown;

/// A line per stream.
pub fn list(list: &Value, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "{:<24}{:<18}{:>8}{:>6}{:>12}  learning", "stream", "method", "classes", "dim", "rows")?;
    for stream in list["streams"].as_array().into_iter().flatten() {
        let status = &stream["status"];
        let mut learning = learning(status);
        if let Some(of) = stream["shadow_of"].as_str() {
            learning += &format!(", shadow of {of}");
        }
        writeln!(
            out,
            "{:<24}{:<18}{:>8}{:>6}{:>12}  {}",
            text(&stream["name"]),
            text(&stream["method"]),
            // A JSON value takes no notice of a column's width, its text does.
            stream["classes"].to_string(),
            stream["dim"].to_string(),
            status["health"]["seen"].to_string(),
            shown(&learning)
        )?;
    }
    for (name, reason) in list["damaged"].as_object().into_iter().flatten() {
        writeln!(out, "{:<24}could not be opened: {}", shown(name), text(reason))?;
    }
    Ok(())
}

/// A stream of the service at this address, in a dozen lines.
pub fn status(stream: &Value, url: &str, out: &mut impl Write) -> std::io::Result<()> {
    let (status, health) = (&stream["status"], &stream["status"]["health"]);
    let number = |value: &Value, digits: usize| format!("{:.digits$}", value.as_f64().unwrap_or(0.0));
    let percent = |value: &Value| format!("{:.1} %", 100.0 * value.as_f64().unwrap_or(0.0));
    let mut line = |what: &str, value: String| writeln!(out, "{what:<16}{}", shown(&value));
    line("stream", format!("{} at {url}", text(&stream["name"])))?;
    let verdict = &stream["verdict"];
    if verdict["level"].is_string() {
        line("verdict", format!("{}: {}", text(&verdict["level"]), text(&verdict["reason"])))?;
    }
    if let Some(next) = verdict["next"].as_str().filter(|next| !next.is_empty()) {
        line("next", next.to_string())?;
    }
    for alarm in stream["alarms"].as_array().into_iter().flatten().filter(|alarm| alarm["open"] == true) {
        line("open alarm", format!("{}: {}", text(&alarm["kind"]), text(&alarm["text"])))?;
    }
    let (classes, dim) = (&stream["classes"], &stream["dim"]);
    line("method", format!("{}, {classes} classes, rows of {dim} numbers", text(&stream["method"])))?;
    line("learning", learning(status))?;
    line(
        "answered",
        format!("{} rows, {} scenes, generation {}", health["seen"], health["scenes"], status["generation"]),
    )?;
    let standing = text(&health["standing"]).replace('_', " ");
    line("standing", format!("{standing}; the guard fired {} times", health["guard_fired"]))?;
    let warm_up = stream["warm_up"].as_str();
    let teach = match warm_up {
        Some(_) => "none teach class looks yet".into(),
        None => format!("{} teach", percent(&health["admitted_share"])),
    };
    // What is not looked for is not said to be absent.
    let looked_for = stream["config"].as_str().is_none_or(|config| !config.contains("score = \"off\""));
    let unknown =
        if looked_for { format!(", {} unknown", percent(&health["unknown_share"])) } else { String::new() };
    line(
        "recent rows",
        format!("{teach}, {} answered differently from zero-shot{unknown}", percent(&health["flip_share"])),
    )?;
    // What has moved is told as of the last update, and there is none during the warm-up.
    match warm_up {
        Some(warm_up) => line("warm-up", warm_up.to_string())?,
        None => {
            let used = health["evidence_weight"].as_f64().is_some_and(|weight| weight >= 0.0005);
            let keeps = stream["method"] == "ul-tta" && !used;
            let looks = if keeps { "; class looks are kept, but not used so far" } else { "" };
            line(
                "moved",
                format!(
                    "prior KL {}, prototypes {} at most, evidence weight {}{looks}",
                    number(&health["prior_kl"], 3),
                    number(&health["movement_max"], 3),
                    number(&health["evidence_weight"], 2)
                ),
            )?
        }
    }
    let labels = &stream["reliability"]["labels"];
    if labels.as_u64().is_some_and(|n| n > 0) {
        let of = |which: &str| percent(&stream[which]["top1"]);
        let (adapted, frozen) = (of("reliability"), of("reliability_zero_shot"));
        line(
            "by labels",
            format!(
                "{adapted} right, zero-shot {frozen}, of {labels} rows labelled since the server's start"
            ),
        )?;
    }
    line(
        "log",
        format!(
            "{} bytes since the last base state, durability {}",
            status["log_bytes"],
            text(&stream["durability"])
        ),
    )?;
    for (what, value) in [("DEGRADED", &status["degraded"]), ("DAMAGE", &status["damage"])] {
        if let Some(reason) = value.as_str() {
            line(what, reason.to_string())?;
        }
    }
    Ok(())
}

/// What became of labels: a line each, and how many count in all where the service says so.
pub fn outcomes(answer: &Value, out: &mut impl Write) -> std::io::Result<()> {
    for label in answer["outcomes"].as_array().into_iter().flatten() {
        let why = label["reason"].as_str().map(|why| format!(": {}", shown(&why))).unwrap_or_default();
        writeln!(out, "sample {}: {}{why}", label["id"], text(&label["outcome"]))?;
    }
    if let Some(count) = answer["corrections"].as_u64() {
        writeln!(out, "labels that count: {count}")?;
    }
    Ok(())
}

fn learning(status: &Value) -> String {
    match (status["learning"].as_bool(), status["degraded"].as_str()) {
        (_, Some(_)) => "no: degraded".into(),
        (Some(false), _) => "no: frozen".into(),
        _ => "yes".into(),
    }
}

/// A text without its quotes, safe for a terminal.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| shown(&text))
}
