//! [`Made`]: how a run or a report was made.

use serde::{Deserialize, Serialize};

/// How a run was made: what its folder records about that.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Made {
    /// The command, as it was typed.
    pub command: String,
    /// Version of the program.
    pub version: String,
    /// When the program's file was written, in UTC: two builds of one version differ by it. Empty in older runs.
    #[serde(default)]
    pub built: String,
    /// When it was done, in UTC.
    pub date: String,
    /// Processor, cores, system.
    pub machine: String,
}

impl Made {
    /// A run that is made now, by this program.
    pub fn now() -> Self {
        let quoted = |arg: String| if arg.contains([' ', '*', '?']) { format!("'{arg}'") } else { arg };
        let mut args = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
        let program = args.next().unwrap_or_default();
        let program = std::path::Path::new(&program).file_stem().map(|s| s.to_string_lossy().into_owned());
        let command: Vec<String> = program.into_iter().chain(args.map(quoted)).collect();
        Self {
            command: command.join(" "),
            version: env!("CARGO_PKG_VERSION").into(),
            built: built(),
            date: utc(std::time::SystemTime::now()),
            machine: machine(),
        }
    }
}

/// When the file of this program was written; empty where that is not known.
fn built() -> String {
    let written = std::env::current_exe().and_then(|path| path.metadata()?.modified());
    written.map(utc).unwrap_or_default()
}

/// `2026-01-31 08:05 UTC`.
fn utc(time: std::time::SystemTime) -> String {
    let seconds = time.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    // Days since 1970-01-01 to a date of the Gregorian calendar, in eras of 400 years that begin in March.
    let (days, rest) = ((seconds / 86_400) as i64 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest % 3600 / 60)
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{model}, {cores} cores, {}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400 + 3660, "2000-02-29 01:01 UTC"),
            (1_709_164_799, "2024-02-28 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)), date);
        }
        let made = Made::now();
        assert!(made.date.as_str() > "2025" && !made.command.is_empty() && made.machine.contains("cores"));
        assert!(made.built.as_str() > "2025" && made.built <= made.date, "{made:?}");
    }
}
