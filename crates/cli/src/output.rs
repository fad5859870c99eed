//! Output files: written aside and renamed when complete, so that a failed run leaves the old file as it was.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use ultta_formats::Aside;
use ultta_formats::shown;

use crate::failure::usage;

/// Where bytes go.
pub enum Output {
    /// Standard output.
    Stdout(io::Stdout),
    /// A new file beside the one that it will replace.
    Aside(Aside),
    /// A device or a named pipe: nothing there to keep, and a rename would replace it.
    Direct(File),
}

impl Output {
    /// Opens an output before any work starts; `-` is standard output.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Output::Stdout(io::stdout()));
        }
        let cannot = || format!("cannot write {}", shown(&path));
        match path.metadata() {
            Ok(there) if there.is_dir() => usage(format!("cannot write {}: it is a folder", shown(&path))),
            Ok(there) if !there.is_file() => {
                Ok(Output::Direct(File::options().write(true).open(path).with_context(cannot)?))
            }
            _ => Ok(Output::Aside(Aside::create(path).with_context(cannot)?)),
        }
    }

    /// Completes the output: from now on the file is there under its name.
    pub fn commit(mut self) -> anyhow::Result<()> {
        self.flush()?;
        if let Output::Aside(file) = self {
            file.commit()?;
        }
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Stdout(stdout) => stdout.write(bytes),
            Output::Aside(file) => file.write(bytes),
            Output::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Stdout(stdout) => stdout.flush(),
            Output::Aside(file) => file.flush(),
            Output::Direct(file) => file.flush(),
        }
    }
}

/// Checks before any work starts that a state can be saved here.
pub fn check_writable(path: &Path) -> anyhow::Result<()> {
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        return usage(format!("cannot write {}: it is not a regular file", shown(&path)));
    }
    Aside::create(path).with_context(|| format!("cannot write {}", shown(&path)))?;
    Ok(())
}

/// Refuses an output that would replace one of the inputs.
pub fn check_apart(output: &Path, inputs: &[&Path]) -> anyhow::Result<()> {
    let Ok(there) = output.canonicalize() else { return Ok(()) };
    match inputs.iter().find(|input| input.canonicalize().is_ok_and(|input| input == there)) {
        Some(_) => usage(format!("{} is an input; write to another file", shown(&output))),
        None => Ok(()),
    }
}

/// Refuses two outputs of one name. Each comes with its flag.
pub fn check_different(outputs: &[(&str, Option<&Path>)]) -> anyhow::Result<()> {
    let given: Vec<(&str, &Path)> =
        outputs.iter().filter_map(|(flag, path)| Some((*flag, (*path)?))).collect();
    for (i, (flag, path)) in given.iter().enumerate() {
        if let Some((other, _)) = given[..i].iter().find(|(_, other)| place(other) == place(path)) {
            return usage(format!("{other} and {flag} both name {}", shown(path)));
        }
    }
    Ok(())
}

/// Where a file is or will be: one that is not there yet, by its folder.
fn place(path: &Path) -> PathBuf {
    let in_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(in_folder).unwrap_or_else(|| path.to_owned())
}

/// The file a path stands for: behind a link, the file it points to is replaced, not the link.
pub fn target(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_outputs_of_one_name_are_refused_before_they_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, round) = (folder.path().join("a"), folder.path().join(".").join("a"));
        let both = |a: &Path, b: &Path| check_different(&[("--a", Some(a)), ("--c", None), ("--b", Some(b))]);
        let refused = both(&plain, &round).unwrap_err().to_string();
        assert!(refused.starts_with("--a and --b both name"), "{refused}");
        assert!(both(&plain, &folder.path().join("b")).is_ok());
        std::fs::write(&plain, "").unwrap();
        assert!(both(&plain, &round).is_err());
    }
}
