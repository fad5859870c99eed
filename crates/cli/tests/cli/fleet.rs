//! `ultta fleet` and servers that share, as programs: killed at random, with a real broker (`crates/server/tests/fleet.py`).

use std::path::Path;
use std::process::Command;

const ULTTA: &str = env!("CARGO_BIN_EXE_ultta");

/// Every server is killed -9 five times, the broker twice, one server is stopped for a while: the same evidence everywhere, every
/// sample counted once.
#[cfg(feature = "nats")]
#[test]
fn servers_that_are_killed_lose_nothing_and_count_nothing_twice() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/tests/fleet.py");
    let output = Command::new("python3")
        .arg(script)
        .args(["--ultta", ULTTA, "--kills", "5", "--pause", "2"])
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
}

/// Without the feature the error names it; a service without groups is told, too.
#[test]
fn what_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |arguments: &[&str]| {
        let mut command = Command::new(ULTTA);
        command.arg("serve").arg("--data-dir").arg(folder.path()).args(arguments);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = serve(&["--share", "nats://127.0.0.1:4222"]);
    let expected = if cfg!(feature = "nats") { "share.member" } else { "cargo feature `nats`" };
    assert!(said.contains(expected), "{said}");
    assert!(serve(&["--group", "all"]).contains("no --head"));
    let lonely =
        Command::new(ULTTA).args(["fleet", "status", "--url", "http://127.0.0.1:9"]).output().unwrap();
    assert_eq!(lonely.status.code(), Some(1));
}
