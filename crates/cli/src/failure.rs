//! How a failure reaches the user: one line on standard error and an exit code.

use std::io::ErrorKind;
use std::process::ExitCode;

use ultta::{Error, What};
use ultta_encode::encoder::NO_ONNX;
use ultta_formats::features::NO_PARQUET;
use ultta_formats::shown;

/// Exit code of bad input and wrong usage; clap uses the same.
pub const BAD_INPUT: u8 = 2;

/// A request that cannot be met as it was made.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Usage {}

/// An `Err` for wrong usage.
pub fn usage<T>(message: impl Into<String>) -> anyhow::Result<T> {
    Err(Usage(message.into()).into())
}

/// Prints a failure and chooses the exit code: 2 for bad input, 1 for everything else. A reader who hung up is
/// no failure.
pub fn report(error: anyhow::Error) -> ExitCode {
    if is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", message(&error));
    ExitCode::from(if is_bad_input(&error) { BAD_INPUT } else { 1 })
}

/// Whether what was handed over is to blame: a file that cannot be opened is, a disk that fails later is not.
fn is_bad_input(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Usage>()
            || cause.downcast_ref::<Error>().is_some_and(|e| match e {
                Error::Io { doing, source, .. } => is_path_to_blame(doing, source),
                _ => true,
            })
            || cause.downcast_ref::<ultta_encode::Error>().is_some_and(|e| match e {
                ultta_encode::Error::Io { doing, source, .. } => is_path_to_blame(doing, source),
                ultta_encode::Error::Hub { .. } | ultta_encode::Error::Onnx { .. } => false,
                _ => true,
            })
    })
}

/// Whether a failure is that of the path that was handed over. A folder can be opened, and fails when it is read.
fn is_path_to_blame(doing: &str, source: &std::io::Error) -> bool {
    doing == "opening" || source.kind() == ErrorKind::IsADirectory
}

/// The whole chain of causes in one line, what to do at its end.
pub fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain() {
        let plain = wrong_path(cause);
        let cause = plain.clone().unwrap_or_else(|| cause.to_string());
        // Some errors quote their cause themselves, and some causes name the file that was said before.
        if cause.contains(&message) {
            message = cause;
        } else if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
        // What the system says of it is the same again.
        if plain.is_some() {
            break;
        }
    }
    let advice = error.chain().map(advice_on).find(|advice| !advice.is_empty()).unwrap_or("");
    shown(&one_line(&message)) + advice
}

/// A path that is not there or is a folder, said plainly; `None` for everything else.
fn wrong_path(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    let core = |error: &Error| match error.root() {
        Error::Io { doing, source, path } => Some((*doing, source.kind(), path.clone())),
        _ => None,
    };
    let (doing, kind, path) = match cause.downcast_ref::<ultta_encode::Error>() {
        Some(ultta_encode::Error::Io { doing, source, path }) => (*doing, source.kind(), path.clone()),
        Some(ultta_encode::Error::Core(error)) => core(error)?,
        Some(_) => return None,
        None => core(cause.downcast_ref::<Error>()?)?,
    };
    match kind {
        ErrorKind::NotFound if doing == "opening" => {
            Some(format!("no such file or folder: {}", shown(&path)))
        }
        ErrorKind::IsADirectory => Some(format!("it is a folder, expected a file: {}", shown(&path))),
        _ => None,
    }
}

/// What to do about a cause, in flags of the command line; empty where it says it all.
fn advice_on(cause: &(dyn std::error::Error + 'static)) -> &'static str {
    match cause.downcast_ref::<ultta_encode::Error>() {
        Some(error) => model_advice(error),
        None => cause.downcast_ref::<Error>().map_or("", advice),
    }
}

/// What to do about an error of the core, in flags of the command line; empty where the error says it all.
pub fn advice(error: &Error) -> &'static str {
    match error.root() {
        // A row of zeros has no direction that scaling could keep.
        Error::NotUnit { what: What::Features | What::Views, norm, .. } if *norm > 0.0 => {
            "; scale the rows to unit length first (`run` and `client` do it with --normalize)"
        }
        Error::NeedsViews { .. } => {
            "; a features file carries them as `views` (`ultta encode --views N` writes them), a JSON line, too"
        }
        Error::Version { .. } => "; start anew without this state, or use the build that wrote it",
        Error::OtherHead { .. } => "; give the head (and --anchors, --logit-scale) it was saved with",
        Error::OtherConfig { .. } => "; leave the settings out to use the state's own",
        Error::Format { reason, .. } if cfg!(not(feature = "parquet")) && reason == NO_PARQUET => {
            "; build it with `--features parquet`"
        }
        _ => "",
    }
}

/// What to do about a model that cannot be had, in flags; empty where the error says it all.
fn model_advice(error: &ultta_encode::Error) -> &'static str {
    match error {
        ultta_encode::Error::Hub { .. } => " (--model FOLDER, --model tiny)",
        ultta_encode::Error::Model { reason, .. } if reason == NO_ONNX => "; build it with `--features onnx`",
        _ => "",
    }
}

/// Whether the reader of our output hung up.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    })
}

/// A message without the lines in which a TOML error quotes the file.
pub fn one_line(message: &str) -> String {
    let quotes_source = |line: &str| {
        line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|')
    };
    message.lines().filter(|l| !quotes_source(l) && !l.trim().is_empty()).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_not_unit_come_with_the_flag_that_helps() {
        let advised = |values: Vec<f32>| {
            let error = ultta::Features::new(values, 2).unwrap_err();
            let found = Error::InFile { error: error.into(), path: "a.safetensors".into() };
            message(&anyhow::Error::from(found).context("reading")).contains("--normalize")
        };
        assert!(advised(vec![3.0, 4.0]));
        assert!(!advised(vec![0.0, 0.0]), "no scaling helps a row of zeros");
    }

    #[test]
    fn a_method_without_its_views_is_told_where_they_come_from() {
        let error = anyhow::Error::from(Error::NeedsViews { method: "zero".into() });
        assert_eq!(
            message(&error),
            "views: the method zero needs views of every sample, got none; a features file carries them as `views` \
             (`ultta encode --views N` writes them), a JSON line, too"
        );
    }

    #[test]
    fn what_a_build_or_a_hub_lacks_comes_with_the_flag_that_helps() {
        let told = |error: ultta_encode::Error| message(&anyhow::Error::from(error));
        let hub = told(ultta_encode::Error::Hub { reason: "nothing came".into() });
        assert_eq!(hub, "hub: nothing came (--model FOLDER, --model tiny)");
        let onnx = told(ultta_encode::Error::Model { reason: NO_ONNX.into(), path: "m".into() });
        assert!(onnx.ends_with("; build it with `--features onnx`"), "{onnx}");
        let parquet = ultta::FeatureFile::from_bytes("a.parquet", *b"PAR1").unwrap_err();
        let parquet = message(&anyhow::Error::from(parquet));
        let advised = parquet.ends_with("; build it with `--features parquet`");
        assert_eq!(advised, cfg!(not(feature = "parquet")), "{parquet}");
    }

    #[test]
    fn a_missing_path_is_said_plainly() {
        let absent = |kind: ErrorKind| (std::io::Error::from(kind), std::path::PathBuf::from("shape"));
        let (source, path) = absent(ErrorKind::NotFound);
        let error = anyhow::Error::from(Error::Io { doing: "opening", source, path });
        assert_eq!(message(&error), "no such file or folder: shape");
        let (source, path) = absent(ErrorKind::NotFound);
        let error = anyhow::Error::from(ultta_encode::Error::Io { doing: "opening", source, path });
        assert_eq!(message(&error.context("labels")), "labels: no such file or folder: shape");
        let (source, path) = absent(ErrorKind::NotFound);
        let error = anyhow::Error::from(Error::Io { doing: "opening", source, path });
        assert_eq!(message(&error.context("shape")), "no such file or folder: shape", "said once");
        let (source, path) = absent(ErrorKind::PermissionDenied);
        let error = anyhow::Error::from(Error::Io { doing: "opening", source, path });
        assert_eq!(message(&error), "opening: permission denied (shape)");
    }

    #[test]
    fn a_folder_in_the_place_of_a_file_is_said_plainly() {
        let (source, path) =
            (std::io::Error::from(ErrorKind::IsADirectory), std::path::PathBuf::from("shapes"));
        let error = anyhow::Error::from(Error::Io { doing: "reading", source, path });
        assert!(is_bad_input(&error));
        assert_eq!(message(&error), "it is a folder, expected a file: shapes");
    }

    /// Every reader calls its first step "opening": the exit code and the plain words go by it.
    #[test]
    fn files_that_are_not_there_are_bad_input_whoever_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("absent.safetensors");
        let errors: [anyhow::Error; 5] = [
            ultta::FeatureFile::open(&absent).unwrap_err().into(),
            ultta::Head::load(&absent).unwrap_err().into(),
            ultta::State::load(&absent).unwrap_err().into(),
            ultta_encode::prompts::class_folders(&absent).unwrap_err().into(),
            ultta_encode::prompts::Classes::from_file(&absent).map(drop).unwrap_err().into(),
        ];
        for error in errors {
            assert!(is_bad_input(&error), "{error:?}");
            assert!(message(&error).starts_with("no such file or folder: "), "{}", message(&error));
        }
        let full = Error::Io { doing: "writing", source: ErrorKind::StorageFull.into(), path: absent };
        assert!(!is_bad_input(&full.into()));
    }

    #[test]
    fn a_state_of_another_version_comes_with_what_to_do() {
        let head = ultta::Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 1.0).unwrap();
        let mut state = ultta::Session::new(head, &ultta::Config::default()).unwrap().state();
        state.metadata.insert("format".into(), "ultta-state-9".into());
        let error = ultta::State::from_bytes(&state.to_bytes().unwrap()).unwrap_err();
        let told = message(&error.into());
        assert!(told.ends_with("; start anew without this state, or use the build that wrote it"), "{told}");
    }

    #[test]
    fn toml_errors_become_one_line() {
        let error = ultta::Config::from_toml("[method.ul_tta.gate]\nkeeep = 0.5").unwrap_err().to_string();
        let line = one_line(&error);
        assert!(line.contains("line 2") && line.contains("keeep") && !line.contains('|'), "{line}");
        assert_eq!(line.lines().count(), 1);
    }
}
