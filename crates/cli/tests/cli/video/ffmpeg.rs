//! Video with the real ffmpeg. `crates/cli/tests/video.sh` installs ffmpeg and runs these; `./test.sh` shows them as
//! ignored, with the reason.

use std::io::Write;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{FPS, Place, SIZE, assert_tells, film, numbers};
use crate::support::{outcome, send};

/// Frames a second that a camera takes.
const CAMERA: usize = 25;

/// ffmpeg, fed with the raw frames of a camera, 32 × 32 pixels, that fill the middle of a larger picture.
fn encoder(height: usize, output: &[&str]) -> Child {
    let (size, rate) = (format!("{SIZE}x{SIZE}"), CAMERA.to_string());
    let width = height * 4 / 3;
    let filter = format!("scale={height}:{height}:flags=bicubic,pad={width}:{height}:-1:-1:black");
    Command::new("ffmpeg")
        .args([
            "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", &size, "-r", &rate, "-i",
            "pipe:0",
        ])
        .args(["-vf", &filter, "-c:v", "libx264", "-pix_fmt", "yuv420p"])
        .args(output)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What a camera takes of a film, which has fewer frames a second: each of them several times.
fn taken(scenes: &[(&str, f64)], seed: u64) -> impl Iterator<Item = Vec<u8>> {
    film(scenes, seed).into_iter().flat_map(|frame| std::iter::repeat_n(frame, CAMERA / FPS))
}

/// Encodes scenes into a file.
fn clip(place: &Place, name: &str, scenes: &[(&str, f64)], height: usize, output: &[&str]) {
    let path = place.path(name);
    let mut child = encoder(height, &[output, &[path.to_str().unwrap()]].concat());
    let mut pipe = child.stdin.take().unwrap();
    taken(scenes, 7).for_each(|frame| pipe.write_all(&frame).unwrap());
    drop(pipe);
    assert!(child.wait().unwrap().success());
}

fn classify(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.classify(arguments);
    command.env_remove("ULTTA_FFMPEG");
    command
}

#[test]
#[ignore = "needs ffmpeg: crates/cli/tests/video.sh installs it and runs this"]
fn a_clip_with_cuts_a_black_stretch_another_resolution_and_a_broken_end() {
    let place = Place::new();
    let parts: [(&[(&str, f64)], usize); 3] = [
        (&[("star", 3.0), ("cross", 2.0), ("dark", 1.6)], 240),
        (&[("ring", 3.0), ("star", 2.4)], 480),
        (&[("bar", 6.0)], 240),
    ];
    let mut whole = Vec::new();
    let mut offset = 0.0;
    for (i, (scenes, height)) in parts.iter().enumerate() {
        let name = format!("{i}.ts");
        clip(&place, &name, scenes, *height, &["-g", "25", "-output_ts_offset", &offset.to_string()]);
        let bytes = std::fs::read(place.path(&name)).unwrap();
        // The last part breaks off in the middle of a packet, about halfway.
        let kept = if i == 2 { bytes.len() / 2 + 77 } else { bytes.len() };
        whole.extend_from_slice(&bytes[..kept]);
        offset += scenes.iter().map(|s| s.1).sum::<f64>();
    }
    std::fs::write(place.path("clip.ts"), whole).unwrap();
    let told = outcome(&mut classify(&place, &["clip.ts", "--timeline", "t.json"])).success();
    eprintln!("{}{}", told.stdout, told.stderr);
    let mut found = place.timeline("t.json");
    let (last, from, to) = found.pop().unwrap();
    assert!(last == "bar" && (from - 12.0).abs() < 0.5 && (13.0..18.0).contains(&to), "{last} {from} {to}");
    assert_tells(&found, &[("star", 3.0), ("cross", 2.0), ("dark", 1.6), ("ring", 3.0), ("star", 2.4)]);
    // A file that is no video, and one that ends before its index.
    std::fs::write(place.path("no.mp4"), vec![7; 5000]).unwrap();
    outcome(&mut classify(&place, &["no.mp4"])).failure(2, &["no.mp4", "Invalid data"]);
    clip(&place, "a.mp4", &[("circle", 2.0)], 240, &[]);
    let bytes = std::fs::read(place.path("a.mp4")).unwrap();
    std::fs::write(place.path("b.mp4"), &bytes[..bytes.len() / 2]).unwrap();
    outcome(&mut classify(&place, &["b.mp4"])).failure(2, &["b.mp4", "moov atom not found"]);
}

/// A port that nobody uses.
fn port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Films scenes in real time and sends them over the network. When each began, and when the last ended.
fn send_live(address: &str, scenes: &[(&str, f64)]) -> Vec<Instant> {
    let address = format!("{address}?pkt_size=1316");
    let output = ["-g", "12", "-tune", "zerolatency", "-flush_packets", "1", "-f", "mpegts", &address];
    let mut child = encoder(240, &output);
    let mut pipe = child.stdin.take().unwrap();
    let mut began = Vec::new();
    let mut next = Instant::now();
    for scene in scenes {
        began.push(next);
        for frame in taken(&[*scene], 8) {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            pipe.write_all(&frame).unwrap();
            next += Duration::from_millis(1000 / CAMERA as u64);
        }
    }
    began.push(next);
    drop(pipe);
    child.wait().unwrap();
    began
}

#[test]
#[ignore = "needs ffmpeg: crates/cli/tests/video.sh installs it and runs this"]
fn a_camera_that_goes_away_and_comes_back() {
    let place = Place::new();
    let address = format!("udp://127.0.0.1:{}", port());
    let mut command = classify(&place, &[&address, "--follow", "--timeline", "t.json"]);
    let child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    std::thread::sleep(Duration::from_secs(1));
    let first = send_live(&address, &[("bar", 5.0), ("cross", 3.0), ("dark", 2.0), ("ring", 3.0)]);
    std::thread::sleep(Duration::from_secs(13));
    let second = send_live(&address, &[("star", 5.0), ("bar", 3.0)]);
    std::thread::sleep(Duration::from_secs(1));
    send("-INT", child.id());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    eprintln!("{}{said}", String::from_utf8(output.stdout).unwrap());
    assert_eq!(output.status.code(), Some(130));
    let found = place.timeline("t.json");
    let names: Vec<&str> = found.iter().map(|e| e.0.as_str()).collect();
    assert_eq!(names, ["bar", "cross", "dark", "ring", "no signal", "star", "bar"], "{found:?}");
    assert!(said.contains("nothing came for 10 seconds"), "{said}");
    // Every cut on the clock of the camera. The program's clock starts when it has read its model, a little later; the end of
    // a film is told by its last frame, and what ffmpeg still held of it is lost, so it is compared on the program's clock.
    // Where a stream is joined, the first second goes to finding out what it is.
    let seconds = |at: Instant| at.duration_since(started).as_secs_f64();
    let cuts = [(0, first[1]), (1, first[2]), (2, first[3]), (5, second[1])];
    let off = cuts.map(|(entry, at)| found[entry].2 - seconds(at));
    let end = found[3].2 - seconds(first[4]) - off.iter().sum::<f64>() / off.len() as f64;
    eprintln!("measured: cuts off by {off:.2?} s, the end of the first film by {end:.2} s");
    assert!(off.iter().all(|off| off.abs() < 0.5) && end.abs() < 0.5, "{off:.2?} {end:.2} {found:?}");
    let joined = found[5].1 - seconds(second[0]);
    assert!(joined.abs() < 1.5, "the second film is seen {joined:.2} s after it began: {found:?}");
    let line = said.lines().find(|line| line.contains("dropped to keep up")).unwrap();
    eprintln!("measured: {line}");
    assert!(late(line) < 1.0, "{line}");
}

/// Seconds after its frame that the latest answer came.
fn late(line: &str) -> f64 {
    line.split("at most ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Resident memory of a process, in kilobytes.
fn resident(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    numbers(line).first().copied()
}

#[test]
#[ignore = "needs ffmpeg: crates/cli/tests/video.sh installs it and runs this"]
fn memory_is_flat_over_an_hour_of_frames() {
    let place = Place::new();
    let scenes =
        [("circle", 8.0), ("cross", 6.0), ("dark", 4.0), ("ring", 7.0), ("star", 5.0), ("bar", 30.0)];
    clip(&place, "minute.mp4", &scenes, 240, &["-preset", "veryfast"]);
    let looped = Command::new("ffmpeg")
        .args(["-v", "error", "-stream_loop", "59", "-i", "minute.mp4", "-c", "copy", "hour.mp4"])
        .current_dir(place.path("."))
        .status()
        .unwrap();
    assert!(looped.success());
    let mut command = classify(&place, &["hour.mp4", "--timeline", "t.csv"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut seen = Vec::new();
    let process = child.id();
    while child.try_wait().unwrap().is_none() {
        seen.extend(resident(process).filter(|&kb| kb > 0));
        std::thread::sleep(Duration::from_millis(200));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let rows = place.read("t.csv").lines().count() - 1;
    let (early, end) = (seen[seen.len() / 10], seen[seen.len() * 9 / 10..].iter().copied().max().unwrap());
    eprintln!("{said}{rows} entries; memory after a tenth {early} kB, at the end {end} kB");
    // Where the copies of the clip meet a frame may be missing.
    let [answered, dark, ..] = numbers(&said)[..] else { panic!("{said}") };
    assert!((16_700..=16_900).contains(&answered) && (1_100..=1_300).contains(&dark), "{said}");
    assert_eq!(rows, 6 * 60);
    assert!(end < early + 8 * 1024, "{early} kB, then {end} kB");
}

#[test]
#[ignore = "needs ffmpeg: crates/cli/tests/video.sh installs it and runs this"]
fn an_encoder_that_cannot_keep_up_drops_frames_and_is_not_late() {
    let place = Place::new();
    crate::pictures::write_slow_model(&place.path("."));
    let address = format!("udp://127.0.0.1:{}", port());
    let arguments =
        ["classify", &address, "--follow", "--fps", "25", "--model", ".", "--labels", "circle,star"];
    let mut command = crate::support::command(&arguments);
    command.current_dir(place.path(".")).env("XDG_CACHE_HOME", place.path("cache"));
    let child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(8));
    send_live(&address, &[("circle", 10.0), ("cross", 10.0)]);
    send("-INT", child.id());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let line = said.lines().find(|line| line.contains("dropped to keep up")).unwrap();
    eprintln!("measured: {line}");
    let [answered, _, dropped] = numbers(line)[..3] else { panic!("{line}") };
    assert!(answered > 20 && dropped > answered, "{line}");
    assert!(late(line) < 1.0, "{line}");
}
