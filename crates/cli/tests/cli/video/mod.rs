//! `ultta classify VIDEO`, with the tiny model on drawn pictures. Here a script stands in for ffmpeg and prints raw
//! frames; what needs the real one is in `ffmpeg.rs`.

mod ffmpeg;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use ultta::Features;
use ultta_encode::decode::Picture;
use ultta_encode::preprocess::preprocess;
use ultta_encode::tiny::shapes::{SHAPES, SIZE, Style, draw};
use ultta_encode::{Clip, Encoder};
use ultta_eval::random::Random;

use crate::support::{Outcome, command, outcome, send};

const FPS: usize = 5;

/// The tiny model, and the features of its words.
static TINY: LazyLock<(Clip, Features<'static>)> = LazyLock::new(|| {
    let model = Clip::tiny().unwrap();
    let words = model.texts(&SHAPES.map(|shape| format!("a photo of a {shape}."))).unwrap();
    (model, words)
});

/// The drawing of many that the frozen model names most clearly: whether it knows a shape is not what is tested here.
fn known(shape: usize, random: &mut Random) -> Vec<u8> {
    let (model, words) = &*TINY;
    let margin = |picture: &Picture| {
        let image = model.images(&preprocess(picture, model.preprocess()).unwrap()).unwrap();
        let cosine =
            |word: usize| -> f32 { image.row(0).iter().zip(words.row(word)).map(|(a, b)| a * b).sum() };
        let others = (0..SHAPES.len()).filter(|&other| other != shape).map(cosine);
        cosine(shape) - others.fold(-1.0, f32::max)
    };
    let drawn = (0..60).map(|_| draw(shape, Style::Source, || random.uniform()));
    let (best, picture) =
        drawn.map(|picture| (margin(&picture), picture)).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    assert!(best > 0.0, "{} is not known", SHAPES[shape]);
    picture.rgb
}

/// What is filmed: a shape by its name, or the dark.
fn film(scenes: &[(&str, f64)], seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    let mut frames = Vec::new();
    for &(what, seconds) in scenes {
        let shape = SHAPES.iter().position(|shape| *shape == what);
        let still = shape.map(|shape| known(shape, &mut random));
        let still = still.unwrap_or_else(|| vec![0; 3 * SIZE * SIZE]);
        for _ in 0..(seconds * FPS as f64).round() as usize {
            // The noise of a camera.
            let noisy = still.iter().map(|&v| (f64::from(v) + 4.0 * random.normal()).clamp(0.0, 255.0) as u8);
            frames.push(noisy.collect());
        }
    }
    frames
}

/// A folder with a stand-in for ffmpeg.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Makes a script the program that frames come from. It runs in this folder.
    fn stand_in(&self, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path("ffmpeg");
        std::fs::write(&path, format!("#!/bin/sh\ncd {}\n{script}\n", self.folder.path().display())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn frames(&self, name: &str, frames: &[Vec<u8>]) {
        std::fs::write(self.path(name), frames.concat()).unwrap();
    }

    fn classify(&self, arguments: &[&str]) -> Command {
        let mut all = vec!["classify"];
        all.extend(arguments);
        let labels = SHAPES.join(",");
        all.extend(["--labels", &labels, "--model", "tiny", "--threads", "1"]);
        let mut command = command(&all);
        command.current_dir(self.folder.path()).env("XDG_CACHE_HOME", self.path("cache"));
        command.env("ULTTA_FFMPEG", self.path("ffmpeg"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        outcome(&mut self.classify(arguments))
    }

    /// The entries of a timeline: what (a class or a kind), from, to.
    fn timeline(&self, name: &str) -> Vec<(String, f64, f64)> {
        let list: Vec<Value> = serde_json::from_str(&self.read(name)).unwrap();
        let name = |e: &Value| e["class"].as_str().or(e["kind"].as_str()).unwrap().to_string();
        list.iter().map(|e| (name(e), e["from"].as_f64().unwrap(), e["to"].as_f64().unwrap())).collect()
    }
}

/// Whether a timeline tells these stretches, in seconds after one another, to half a second.
fn assert_tells(found: &[(String, f64, f64)], expected: &[(&str, f64)]) {
    let names: Vec<&str> = found.iter().map(|e| e.0.as_str()).collect();
    assert_eq!(names, expected.iter().map(|e| e.0).collect::<Vec<_>>(), "{found:?}");
    let mut at = 0.0;
    for ((what, from, to), (_, seconds)) in found.iter().zip(expected) {
        assert!((from - at).abs() < 0.5, "{what} begins at {from}, expected {at}: {found:?}");
        at += seconds;
        assert!((to - at).abs() < 0.5, "{what} ends at {to}, expected {at}: {found:?}");
    }
}

const SCENES: [(&str, f64); 6] =
    [("circle", 3.0), ("cross", 2.0), ("dark", 1.6), ("ring", 3.0), ("star", 1.0), ("bar", 2.0)];

#[test]
fn scenes_become_a_timeline_in_every_format() {
    let place = Place::new();
    place.stand_in("cat clip.raw");
    place.frames("clip.raw", &film(&SCENES, 1));
    std::fs::write(place.path("clip.mp4"), "").unwrap();
    let told = place.run(&["clip.mp4", "--timeline", "t.json"]).success();
    assert_tells(&place.timeline("t.json"), &SCENES);
    let lines: Vec<&str> = told.stdout.lines().collect();
    assert_eq!(lines.len(), SCENES.len(), "{}", told.stdout);
    assert!(lines[0].starts_with("0:00.0 – 0:03.0") && lines[0].contains("circle"), "{}", told.stdout);
    assert!(lines[2].ends_with("(dark)"), "{}", told.stdout);
    assert!(told.stderr.contains("55 frames answered, 8 dark\n"), "{}", told.stderr);

    let quiet = place.run(&["clip.mp4", "--timeline", "t.csv", "--json", "--quiet"]).success();
    // The answers of the frames, as those of pictures.
    assert_eq!((quiet.stdout.lines().count(), quiet.stderr.as_str()), (55, ""));
    let first: Value = serde_json::from_str(quiet.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&first["id"], &first["class"]), (&"clip.mp4@0.000".into(), &"circle".into()));
    // The dark frames are no samples.
    let samples =
        quiet.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["sample"].clone());
    assert!(samples.eq((0..55).map(Value::from)), "{}", quiet.stdout);
    let table = place.read("t.csv");
    let mut rows = csv::Reader::from_reader(table.as_bytes());
    assert_eq!(
        rows.headers().unwrap().iter().collect::<Vec<_>>(),
        ["from", "to", "kind", "class", "probability", "set", "frames", "scenes"]
    );
    let rows: Vec<csv::StringRecord> = rows.records().map(Result::unwrap).collect();
    for (row, (what, _)) in rows.iter().zip(SCENES) {
        if what == "dark" {
            assert_eq!((&row[2], &row[3], &row[4], &row[5]), ("dark", "", "", ""));
            continue;
        }
        let (prob, frames): (f64, f64) = (row[4].parse().unwrap(), row[6].parse().unwrap());
        assert!(&row[3] == what && row[5].split(';').any(|class| class == what), "{row:?}");
        assert!((0.1..=1.0).contains(&prob) && frames >= 4.0, "{row:?}");
    }
    assert_eq!(rows.len(), SCENES.len());

    place.run(&["clip.mp4", "--timeline", "t.srt"]).success();
    let subtitles = place.read("t.srt");
    assert!(subtitles.starts_with("1\n00:00:00,000 --> 00:00:03,000\ncircle "), "{subtitles}");
    assert_eq!(subtitles.matches(" --> ").count(), SCENES.len());
}

#[test]
fn grouping_and_resuming_change_nothing() {
    let place = Place::new();
    place.stand_in("cat clip.raw");
    place.frames("clip.raw", &film(&SCENES, 2));
    std::fs::write(place.path("clip.mp4"), "").unwrap();
    let answers = |more: &[&str]| place.run(&[&["clip.mp4", "--csv", "-q"], more].concat()).success().stdout;
    let by_eight = answers(&["--save-state", "a.safetensors"]);
    let one_by_one = answers(&["--batch", "1", "--save-state", "b.safetensors"]);
    assert_eq!(by_eight, one_by_one);
    assert_eq!(
        std::fs::read(place.path("a.safetensors")).unwrap(),
        std::fs::read(place.path("b.safetensors")).unwrap()
    );
    answers(&["--load-state", "a.safetensors"]);
}

#[test]
fn a_broken_end_keeps_what_came_before() {
    let place = Place::new();
    let frames = film(&[("circle", 2.0), ("cross", 2.0)], 3);
    place.frames("clip.raw", &frames);
    std::fs::write(place.path("clip.mp4"), "").unwrap();
    // Half a frame at the end.
    place.stand_in("head -c 60000 clip.raw; echo 'partial file' >&2; exit 1");
    let told = place.run(&["clip.mp4", "--timeline", "t.json"]).success();
    assert!(
        told.stderr.contains("warning: clip.mp4: damaged, or it ends early, after 0:03.8: partial file"),
        "{told:?}"
    );
    assert_tells(&place.timeline("t.json"), &[("circle", 2.0), ("cross", 1.8)]);
    let strict = place.run(&["clip.mp4", "--strict", "-q"]);
    assert!(strict.code == 2 && strict.stderr.contains("error: clip.mp4: partial file"), "{strict:?}");
    place.stand_in("echo 'moov atom not found' >&2; exit 1");
    place.run(&["clip.mp4"]).failure(2, &["clip.mp4", "moov atom not found"]);
    place.stand_in("exit 0");
    place.run(&["clip.mp4"]).failure(2, &["clip.mp4", "there is no frame in it"]);
}

#[test]
fn a_run_that_fails_leaves_an_older_timeline_as_it_was() {
    let place = Place::new();
    std::fs::write(place.path("clip.mp4"), "").unwrap();
    std::fs::write(place.path("t.csv"), "of yesterday").unwrap();
    let missing =
        outcome(place.classify(&["clip.mp4", "--timeline", "t.csv"]).env("ULTTA_FFMPEG", "/no/where"));
    assert_eq!(missing.code, 2, "{missing:?}");
    assert_eq!(place.read("t.csv"), "of yesterday");
    place.stand_in("echo 'moov atom not found' >&2; exit 1");
    place.run(&["clip.mp4", "--timeline", "t.csv"]).failure(2, &["moov"]);
    assert_eq!(place.read("t.csv"), "of yesterday");
    place.stand_in("cat clip.raw");
    place.frames("clip.raw", &film(&[("circle", 1.0)], 9));
    place.run(&["clip.mp4", "--timeline", "t.csv"]).success();
    assert!(place.read("t.csv").starts_with("from,to,kind"), "{}", place.read("t.csv"));
}

#[test]
fn a_timeline_takes_the_place_of_no_other_file() {
    let place = Place::new();
    place.stand_in("exit 0");
    std::fs::write(place.path("clip.mp4"), "").unwrap();
    std::fs::write(place.path("names.csv"), "circle\nstar\n").unwrap();
    let classify = |arguments: &[&str]| {
        let mut command = command(&[&["classify", "clip.mp4", "--model", "tiny"], arguments].concat());
        outcome(command.current_dir(place.path(".")).env("ULTTA_FFMPEG", place.path("ffmpeg")))
    };
    classify(&["--labels-file", "names.csv", "--timeline", "names.csv"]).failure(2, &["is an input"]);
    assert_eq!(place.read("names.csv"), "circle\nstar\n");
    let labels = ["--labels", "circle,star", "--timeline", "t.csv"];
    classify(&[&labels[..], &["--out", "./t.csv"]].concat()).failure(2, &["both name"]);
    classify(&[&labels[..], &["--save-state", "t.csv"]].concat()).failure(2, &["both name"]);
    assert!(!place.path("t.csv").exists());
}

#[test]
fn the_sets_of_a_timeline_follow_the_coverage_asked_for() {
    let place = Place::new();
    place.stand_in("cat clip.raw");
    place.frames("clip.raw", &film(&[("circle", 2.0)], 10));
    std::fs::write(place.path("clip.mp4"), "").unwrap();
    let size = |more: &[&str]| {
        place.run(&[&["clip.mp4", "--timeline", "t.json"], more].concat()).success();
        let list: Vec<Value> = serde_json::from_str(&place.read("t.json")).unwrap();
        list[0]["set"].as_array().unwrap().len()
    };
    let (low, usual, high) = (size(&["--coverage", "0.1"]), size(&[]), size(&["--coverage", "0.999"]));
    assert!(low == 1 && low <= usual && usual < high, "{low} {usual} {high}");
}

#[test]
fn the_password_of_a_camera_is_not_shown() {
    let place = Place::new();
    place.frames("clip.raw", &film(&[("circle", 1.0)], 11));
    place.stand_in("cat clip.raw; echo \"$*\" >&2; exit 1");
    let address = "rtsp://admin:secret@127.0.0.1:1/x";
    let told = place.run(&[address, "--json", "-q"]);
    assert!(told.stdout.contains("\"id\":\"rtsp://***@127.0.0.1:1/x@"), "{told:?}");
    assert!(told.stderr.contains("rtsp://***@127.0.0.1:1/x"), "{told:?}");
    place.stand_in("echo \"$*\" >&2; exit 1");
    let failed = place.run(&[address]);
    assert!(failed.code == 2 && failed.stderr.contains("-i rtsp://***@127.0.0.1:1/x"), "{failed:?}");
    for outcome in [told, failed] {
        assert!(!outcome.stdout.contains("secret") && !outcome.stderr.contains("secret"), "{outcome:?}");
    }
}

#[test]
fn without_ffmpeg_the_error_says_how_to_get_it() {
    let place = Place::new();
    std::fs::write(place.path("clip.mp4"), "").unwrap();
    let missing = outcome(place.classify(&["clip.mp4"]).env("ULTTA_FFMPEG", "").env("PATH", "/nowhere"));
    missing
        .failure(2, &["ffmpeg was not found", "apt install ffmpeg", "brew install ffmpeg", "ULTTA_FFMPEG"]);
}

#[test]
fn what_makes_no_sense_is_said() {
    let place = Place::new();
    place.stand_in("exit 0");
    for clip in ["a.mp4", "b.mp4", "c.png"] {
        std::fs::write(place.path(clip), "").unwrap();
    }
    place.run(&["a.mp4", "b.mp4"]).failure(2, &["a.mp4", "one at a time"]);
    place.run(&["c.png", "--follow"]).failure(2, &["--follow", "rtsp://"]);
    place.run(&["c.png", "--timeline", "t.csv"]).failure(2, &["--timeline", "video"]);
    place.run(&["a.mp4", "--follow"]).failure(2, &["--follow", "a file ends"]);
    place.run(&["a.mp4", "--timeline", "t.txt"]).failure(2, &["t.txt", ".csv, .json or .srt"]);
    place.run(&["a.mp4", "--views", "2"]).failure(2, &["--views"]);
    place.run(&["none.mp4"]).failure(2, &["no such file or folder: ", "none.mp4"]);
    assert_eq!(place.run(&["a.mp4", "--fps", "0"]).code, 2);
}

/// Numbers of a text, in order.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_live_source_that_is_too_fast_loses_frames_and_says_how_many() {
    let place = Place::new();
    place.frames("clip.raw", &film(&[("circle", 100.0)], 4));
    place.stand_in("cat clip.raw");
    let told = place.run(&["tcp://127.0.0.1:1"]).success();
    let line = told.stderr.lines().find(|line| line.contains("dropped to keep up")).unwrap().to_string();
    let [answered, dark, dropped] = numbers(&line)[..3] else { panic!("{line}") };
    assert_eq!((answered + dark + dropped, dark), (500, 0), "{line}");
    assert!(dropped > 0 && answered > 0, "{line}");
}

#[test]
fn a_camera_that_goes_away_is_waited_for() {
    let place = Place::new();
    place.frames("before.raw", &film(&[("circle", 1.0)], 5));
    place.frames("after.raw", &film(&[("cross", 1.0)], 6));
    // Away at its second and third opening, silent at the end.
    place.stand_in(
        "n=$(cat n 2> /dev/null || echo 0); echo $((n + 1)) > n
         case $n in
         0) cat before.raw;;
         1|2) echo 'Connection refused' >&2; exit 1;;
         3) cat after.raw;;
         *) exec sleep 60;;
         esac",
    );
    let mut command =
        place.classify(&["rtsp://camera/1", "--follow", "--timeline", "t.json", "--save-state", "s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(120);
    while Instant::now() < patience
        && !std::fs::read_to_string(place.path("t.json")).is_ok_and(|t| t.contains("cross"))
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    send("-INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let found = place.timeline("t.json");
    let names: Vec<&str> = found.iter().map(|e| e.0.as_str()).collect();
    assert_eq!(names, ["circle", "no signal", "cross", "no signal"], "{found:?}");
    assert!(
        found.windows(2).all(|pair| pair[0].2 == pair[1].1),
        "one begins where the other ends: {found:?}"
    );
    assert!(place.path("s").exists(), "the state is saved");
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("no signal (Connection refused); trying again").count(), 1, "{said}");
    assert_eq!(said.matches("no signal (it ended)").count(), 2, "{said}");
}
