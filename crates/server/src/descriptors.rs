//! How many files and sockets the process may have open at once, and how many of these connections get. The rest is
//! kept for the logs: whoever opens connections and says nothing must not keep a stream from learning.

/// Kept for the process: listener, runtime, model, the data folder's lock.
const OWN: usize = 64;
/// Kept for each stream: its folder, its log, its mark, a file being written aside, the folder being synced, a snapshot being read.
const PER_STREAM: usize = 6;

/// Number of connections that may be open beside this number of streams; at most what was asked for.
pub fn connections(asked: usize, streams: usize) -> usize {
    let most = share(limit(), streams);
    if most < asked {
        tracing::warn!(
            asked,
            most,
            "fewer connections than set: the process may open few files (`ulimit -n`)"
        );
    }
    asked.min(most)
}

/// What connections may have of a number of open files.
fn share(files: usize, streams: usize) -> usize {
    let kept = OWN.saturating_add(streams.saturating_mul(PER_STREAM));
    files.saturating_sub(kept.min(files / 2)).max(1)
}

/// Files that the process may have open.
#[cfg(target_os = "linux")]
fn limit() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    match soft {
        Some("unlimited") => usize::MAX,
        soft => soft.and_then(|files| files.parse().ok()).unwrap_or(LOWEST),
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn limit() -> usize {
    LOWEST
}

#[cfg(not(unix))]
fn limit() -> usize {
    usize::MAX
}

/// Where the limit cannot be read, it is taken for the lowest that systems have by default (macOS).
#[cfg(unix)]
const LOWEST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_logs() {
        assert_eq!(share(1024, 64), 1024 - 64 - 384);
        assert_eq!(share(100, 64), 50, "few files are halved");
        assert_eq!((share(1, 64), share(0, 0)), (1, 1));
        assert_eq!(share(usize::MAX, usize::MAX), usize::MAX / 2 + 1);
        assert!(connections(1, 64) == 1 && limit() > 16);
    }
}
