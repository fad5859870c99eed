//! `ultta run --features -`: JSON lines in, an answer for each at once.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};
use ultta::State;

use crate::support::{DIM, Folder, Outcome, send, unit_rows};

fn spawn(folder: &Folder, flags: &[&str]) -> (Child, ChildStdin, BufReader<ChildStdout>) {
    let mut command = folder.run_command("-", flags);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    (child, stdin, BufReader::new(stdout))
}

/// Feeds all lines and collects what comes of it.
fn feed(folder: &Folder, flags: &[&str], input: &str) -> Outcome {
    let mut command = folder.run_command("-", flags);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_string();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join();
    let outcome = Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    outcome
}

fn lines(rows: &[f32]) -> String {
    rows.chunks(DIM).map(|row| format!("{}\n", json!(row))).collect()
}

fn answers(outcome: &Outcome) -> Vec<Value> {
    outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_line_is_answered_at_once() {
    let folder = Folder::new();
    let (mut child, mut stdin, mut stdout) = spawn(&folder, &[]);
    for (i, row) in unit_rows(5, 3).chunks(DIM).enumerate() {
        writeln!(stdin, "{}", json!({ "id": format!("img-{i}"), "features": row })).unwrap();
        let mut answer = String::new();
        stdout.read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["id"], format!("img-{i}"));
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_pipe_answers_as_a_file_does() {
    let folder = Folder::new();
    let rows = unit_rows(200, 3);
    folder.features("rows.safetensors", &rows, DIM, None);
    folder.run_on("rows.safetensors", &["--out", "%/p.jsonl", "--top", "2", "--save-state", "%/a"]).success();
    let piped = feed(&folder, &["--top", "2", "--save-state", "%/b"], &lines(&rows)).success();
    assert_eq!(piped.stdout, folder.read("p.jsonl"));
    assert!(folder.bytes("a") == folder.bytes("b"));
    let to_file = feed(&folder, &["--out", "%/q.csv", "--json"], &lines(&rows)).success();
    assert_eq!(to_file.json()["n"], 200);
    assert_eq!(folder.read("q.csv").lines().count(), 201);
}

#[test]
fn a_bad_line_is_answered_with_its_error_and_the_stream_goes_on() {
    let folder = Folder::new();
    let good = lines(&unit_rows(1, 3));
    let unit: Vec<f32> = (0..DIM).map(|i| if i == 0 { 1.0 } else { 0.0 }).collect();
    let bad = [
        "hello".to_string(),
        "[1, 2".into(),
        "[1, 0]".into(),
        json!(vec![0.0; DIM]).to_string(),
        json!(vec![3.0; DIM]).to_string(),
        json!({ "id": 5, "feature": unit }).to_string(),
        json!({ "id": 5, "features": unit, "views": [[1.0]] }).to_string(),
        json!({ "id": 5, "features": [1e39, 0, 0, 0, 0, 0, 0, 0] }).to_string(),
        "\u{0}".into(),
    ];
    let input: String = bad.iter().map(|line| format!("{line}\n{good}\n")).collect();
    let outcome = feed(&folder, &["--save-state", "%/s"], &input);
    assert_eq!(outcome.code, 2);
    let answers = answers(&outcome);
    assert_eq!(answers.len(), 2 * bad.len());
    for (pair, line) in answers.chunks(2).zip(&bad) {
        assert!(pair[0]["error"].is_string(), "{line}: {}", pair[0]);
        assert!(pair[1]["label"].is_u64(), "{}", pair[1]);
    }
    assert_eq!(answers[12]["id"], 5);
    assert_eq!(answers[2]["line"], 4, "blank lines count");
    // The bad ones have taught nothing, the good ones have.
    let state = State::load(folder.path("s")).unwrap();
    assert_eq!(state.get::<u64>("session.counts").unwrap()[0], bad.len() as u64);
}

#[test]
fn rows_may_say_that_they_must_not_teach() {
    let folder = Folder::new();
    let silent: String = unit_rows(300, 3)
        .chunks(DIM)
        .map(|row| {
            format!("{}\n", json!({ "features": row, "learn": false, "time": 1.5, "views": [row, row] }))
        })
        .collect();
    let outcome = feed(&folder, &[], &silent).success();
    assert!(answers(&outcome).iter().all(|row| row["admitted"] == false));
    let rows = answers(&outcome);
    assert_eq!(rows[299]["id"], 299, "without an id, the arrival number");
}

#[test]
fn what_makes_no_sense_with_a_pipe_is_refused() {
    let folder = Folder::new();
    for flags in [&["--shuffle", "1"][..], &["--order", "sorted"], &["--rows", "1.."], &["--labels", "x"]] {
        feed(&folder, flags, "").failure(2, &["--features -"]);
    }
    feed(&folder, &["--json"], "").failure(2, &["standard output", "--out"]);
    folder.run(&["--json", "--out", "-"]).failure(2, &["standard output"]);
}

#[test]
fn normalize_takes_rows_of_any_length() {
    let folder = Folder::new();
    let long: Vec<f32> = unit_rows(3, 3).iter().map(|v| 7.0 * v).collect();
    assert_eq!(feed(&folder, &[], &lines(&long)).code, 2);
    let rows = answers(&feed(&folder, &["--normalize"], &lines(&long)).success());
    assert!(rows.iter().all(|row| row["label"].is_u64()));
}

#[cfg(unix)]
#[test]
fn an_interrupt_in_a_quiet_pipe_saves_the_state() {
    let folder = Folder::new();
    let (mut child, mut stdin, mut stdout) = spawn(&folder, &["--save-state", "%/s"]);
    stdin.write_all(lines(&unit_rows(1, 3)).as_bytes()).unwrap();
    stdout.read_line(&mut String::new()).unwrap();
    send("-INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(stdin);
    let state = State::load(folder.path("s")).unwrap();
    assert_eq!(state.get::<u64>("session.counts").unwrap()[0], 1);
}

#[test]
fn a_reader_that_hangs_up_is_no_failure() {
    let folder = Folder::with_rows(5000);
    // a pipe …
    let (mut child, mut stdin, stdout) = spawn(&folder, &["--save-state", "%/s"]);
    drop(stdout);
    let _ = stdin.write_all(lines(&unit_rows(100, 3)).as_bytes());
    drop(stdin);
    let mut stderr = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut stderr).unwrap();
    assert!(child.wait().unwrap().success(), "{stderr}");
    assert!(!stderr.contains("error") && !stderr.contains("panicked"), "{stderr}");
    assert!(folder.path("s").exists());
    // … and a file
    let mut command = folder.run_command("features.safetensors", &["--out", "-", "--probs"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
}
