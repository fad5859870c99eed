//! Frames of a video file, a camera or an address, through ffmpeg: raw RGB over a pipe.
//!
//! ffmpeg decodes, keeps the frames per second that are asked for and scales them to the encoder's input, whatever the resolution is and
//! even where it changes: every frame has the same size. Frame `n` stands for the time `n / fps`.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::{Preprocess, Resize};
use crate::decode::Picture;
use crate::{Error, Result, secret};

/// Endings of video files.
pub const ENDINGS: [&str; 17] = [
    "mp4", "mkv", "mov", "avi", "webm", "ts", "m2ts", "mts", "m4v", "mpg", "mpeg", "flv", "wmv", "ogv",
    "3gp", "mjpeg", "h264",
];

/// The variable that names the program, where it is not `ffmpeg` on the path.
pub const PROGRAM: &str = "ULTTA_FFMPEG";

/// Where frames come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file with an end.
    File(String),
    /// A camera, a named pipe or an address: frames come when they are taken, not when they are asked for.
    Live(String),
}

impl Source {
    /// What an argument names, if it names a video: an address (`rtsp://…`), a device (`/dev/video0`), a named pipe or
    /// a file with the ending of one.
    pub fn of(argument: &str) -> Option<Self> {
        let path = Path::new(argument);
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        let scheme = argument.split_once("://").map(|(scheme, _)| scheme);
        if scheme.is_some_and(|s| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '+')) {
            return Some(Self::Live(argument.into()));
        }
        let special = path.metadata().is_ok_and(|there| !there.is_file() && !there.is_dir());
        if argument.starts_with("/dev/video") || (special && argument.starts_with('/')) {
            return Some(Self::Live(argument.into()));
        }
        (ENDINGS.contains(&ending.as_str()) && !path.is_dir())
            .then(|| if special { Self::Live(argument.into()) } else { Self::File(argument.into()) })
    }

    /// As it was given, but for users, passwords and keys of an address: those are for ffmpeg alone.
    pub fn name(&self) -> String {
        match self {
            Self::File(name) => name.clone(),
            Self::Live(name) => secret::hidden_of(name, name),
        }
    }

    /// Whether frames come when they are taken.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }
}

/// A line of ffmpeg that may be passed on. ffmpeg tells addresses in its own way, and not always whole.
fn passed_on(line: &str, source: &Source) -> String {
    match source {
        Source::Live(name) => secret::hidden_of(line, name),
        Source::File(_) => secret::hidden(line),
    }
}

/// A running ffmpeg, and the frames that come out of it.
pub struct Frames {
    out: ChildStdout,
    child: Stopper,
    said: Arc<Mutex<Vec<String>>>,
    listener: Option<JoinHandle<()>>,
    side: usize,
}

/// Ends a running ffmpeg, from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Mutex<Child>>);

impl Stopper {
    /// Ends it; reading its frames then comes to an end.
    pub fn stop(&self) {
        // An error means that it has ended already.
        let _ = locked(&self.0).kill();
    }
}

/// How the frames ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Whether ffmpeg was content.
    pub success: bool,
    /// What ffmpeg said last, in one line; empty if nothing.
    pub said: String,
}

/// Lines of ffmpeg that are kept.
const LINES: usize = 3;

impl Frames {
    /// Starts ffmpeg on a source; frames are cut as the encoder wants its input.
    pub fn open(source: &Source, fps: f64, preprocess: &Preprocess) -> Result<Self> {
        let program = std::env::var_os(PROGRAM).filter(|p| !p.is_empty()).unwrap_or_else(|| "ffmpeg".into());
        let mut command = Command::new(&program);
        command.args(arguments(source, fps, preprocess));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // An interrupt from the keyboard is ours to answer.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|error| {
            Error::Video(match error.kind() {
                std::io::ErrorKind::NotFound => format!(
                    "video is read through ffmpeg, and {} was not found; install it (apt install ffmpeg, dnf install \
                     ffmpeg, brew install ffmpeg, winget install ffmpeg), or name the program in {PROGRAM}",
                    program.to_string_lossy()
                ),
                _ => format!("{} could not be started: {error}", program.to_string_lossy()),
            })
        })?;
        let (Some(out), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(Error::Video("ffmpeg has no output".into()));
        };
        let said = Arc::new(Mutex::new(Vec::new()));
        let kept = said.clone();
        let of = source.clone();
        let listener = std::thread::spawn(move || {
            // A line without an end must not fill the memory.
            let mut lines = BufReader::new(errors);
            let mut line = Vec::new();
            while lines.by_ref().take(4096).read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = passed_on(String::from_utf8_lossy(&line).trim(), &of);
                line.clear();
                let mut kept = locked(&kept);
                if !text.is_empty() && kept.last() != Some(&text) {
                    if kept.len() == LINES {
                        kept.remove(0);
                    }
                    kept.push(text);
                }
            }
        });
        let child = Stopper(Arc::new(Mutex::new(child)));
        Ok(Self { out, child, said, listener: Some(listener), side: preprocess.size })
    }

    /// What ends this ffmpeg from another thread.
    pub fn stopper(&self) -> Stopper {
        self.child.clone()
    }

    /// The next frame; `None` at the end. A frame that is cut short is no frame.
    pub fn read(&mut self) -> Option<Picture> {
        let mut rgb = vec![0; 3 * self.side * self.side];
        self.out.read_exact(&mut rgb).ok()?;
        Some(Picture { width: self.side, height: self.side, rgb })
    }

    /// Waits for the end of ffmpeg, whose last frame was read.
    pub fn end(mut self) -> Ending {
        self.wait()
    }

    fn wait(&mut self) -> Ending {
        // In short looks: whoever wants to end it must not wait behind this wait.
        let success = loop {
            let looked = locked(&self.child.0).try_wait();
            match looked {
                Ok(Some(status)) => break status.success(),
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => break false,
            }
        };
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        Ending { success, said: locked(&self.said).join("; ") }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        if self.listener.is_some() {
            self.child.stop();
            self.wait();
        }
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What ffmpeg is asked for.
fn arguments(source: &Source, fps: f64, preprocess: &Preprocess) -> Vec<String> {
    let side = preprocess.size;
    // Pixels that are not square first; then as pictures go into the encoder: the shorter side to a length and the
    // middle of it, or both sides each for itself.
    let scale = match preprocess.resize {
        Resize::Shortest(shortest) => {
            let shortest = shortest.max(side);
            format!(
                "scale=iw*sar:ih,scale={shortest}:{shortest}:force_original_aspect_ratio=increase:flags=bicubic,\
                 crop={side}:{side}"
            )
        }
        Resize::Squash => format!("scale={side}:{side}:flags=bicubic"),
    };
    let mut list: Vec<String> = ["-hide_banner", "-loglevel", "error", "-nostdin"].map(String::from).into();
    let mut add = |more: &[&str]| list.extend(more.iter().map(|s| s.to_string()));
    match source {
        // A name with a colon is no address.
        Source::File(path) => add(&["-i", &format!("file:{path}")]),
        Source::Live(name) => {
            // Without these ffmpeg looks at five seconds of a stream before it gives a frame.
            add(&["-fflags", "nobuffer", "-flags", "low_delay"]);
            add(&["-analyzeduration", "500000", "-fpsprobesize", "0"]);
            if name.starts_with("/dev/video") {
                add(&["-f", "v4l2"]);
            }
            if name.starts_with("rtsp") {
                add(&["-rtsp_transport", "tcp"]);
            }
            add(&["-i", name]);
        }
    }
    let rate = fps.to_string();
    add(&["-map", "0:v:0", "-an", "-sn", "-dn"]);
    // The filter puts frames on a grid, the rate of the output keeps them there where the filter begins anew, as it does
    // when the resolution changes.
    add(&["-vf", &format!("fps={rate},{scale},format=rgb24"), "-r", &rate]);
    add(&["-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"]);
    list
}

/// Whether a frame shows nothing: 99 % of its values are nearly black.
pub fn is_dark(picture: &Picture) -> bool {
    let bright = picture.rgb.iter().filter(|&&value| value >= 32).count();
    100 * bright < picture.rgb.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn videos_are_told_from_pictures() {
        let live = |name: &str| Some(Source::Live(name.into()));
        for name in ["rtsp://camera/1", "http://host/live.m3u8", "udp://127.0.0.1:9", "/dev/video0"] {
            assert_eq!(Source::of(name), live(name));
        }
        assert_eq!(Source::of("clip.MP4"), Some(Source::File("clip.MP4".into())));
        for name in ["photo.jpg", "photos", "-", "*.png", "://x", "set.tar"] {
            assert_eq!(Source::of(name), None, "{name}");
        }
    }

    #[test]
    fn ffmpeg_is_asked_for_what_the_encoder_wants() {
        let clip = arguments(&Source::File("a:b.mp4".into()), 2.5, &Preprocess::openai(224)).join(" ");
        for part in ["-i file:a:b.mp4 ", "fps=2.5,", "crop=224:224", " -r 2.5 "] {
            assert!(clip.contains(part), "{part:?} is missing: {clip}");
        }
        let camera = arguments(&Source::Live("/dev/video2".into()), 5.0, &Preprocess::siglip(256)).join(" ");
        assert!(camera.contains("-f v4l2 -i /dev/video2") && camera.contains("scale=256:256:"), "{camera}");
        let address = arguments(&Source::Live("rtsp://x/y".into()), 5.0, &Preprocess::openai(32)).join(" ");
        assert!(address.contains("-rtsp_transport tcp -i rtsp://x/y"), "{address}");
    }

    #[test]
    fn passwords_are_shown_to_ffmpeg_alone() {
        let secret = Source::Live("rtsp://admin:se@cret@10.0.0.7:554/a@b?x=y".into());
        assert_eq!(secret.name(), "rtsp://***@10.0.0.7:554/a@b?x=y");
        let keys = Source::Live("http://10.0.0.7/video?user=admin&password=secret&channel=1".into());
        assert_eq!(keys.name(), "http://10.0.0.7/video?user=***&password=***&channel=1");
        assert_eq!(
            passed_on("GET /video?user=admin&password=secret: 401", &keys),
            "GET /video?user=***&password=***: 401"
        );
        assert_eq!(Source::Live("rtsp://it's me:1 2@camera/".into()).name(), "rtsp://***@camera/");
        let asked = arguments(&secret, 5.0, &Preprocess::openai(32));
        assert!(asked.contains(&"rtsp://admin:se@cret@10.0.0.7:554/a@b?x=y".to_string()), "{asked:?}");
        for (said, told) in [
            ("rtsp://admin:se@cret@10.0.0.7:554/a@b: refused", "rtsp://***@10.0.0.7:554/a@b: refused"),
            ("no route to 'tcp://admin:se@cret@10.0.0.7'", "no route to 'tcp://***@10.0.0.7'"),
            ("[rtsp @ 0x55] admin:se@cret@10.0.0.7: 401", "[rtsp @ 0x55] ***@10.0.0.7: 401"),
            ("http://a/ and http://b:c@d/", "http://a/ and http://***@d/"),
            ("Connection refused", "Connection refused"),
        ] {
            assert_eq!(passed_on(said, &secret), told);
        }
        for plain in ["rtsp://camera/1", "/dev/video0", "udp://@:1234"] {
            assert_eq!(Source::Live(plain.into()).name(), plain);
        }
        assert_eq!(Source::File("a://b@c.mp4".into()).name(), "a://b@c.mp4");
    }

    #[test]
    fn a_dark_frame_is_one_without_light() {
        let mut picture = Picture { width: 20, height: 10, rgb: vec![16; 600] };
        assert!(is_dark(&picture));
        picture.rgb[..30].fill(200);
        assert!(!is_dark(&picture));
    }
}
