//! `kill -9` at random moments while everything happens at once: samples, labels, corrections, freezing, snapshots, returns to
//! them, resets, compaction, a shadow. After each kill both streams are what an uninterrupted run over the same requests is, byte for
//! byte.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use ultta::{Config, Features, Session, State};

use crate::serve::{CLASSIFY, Dice, Server, request, simulator};

/// One thing that a client asks for.
#[derive(Clone, Debug)]
enum Ask {
    /// Rows from one on.
    Classify(usize, usize),
    /// A label for a sample of this run of the server: the id, and what the sample's id is to the shadow.
    Label { id: u64, shadow_id: u64, label: usize },
    /// A label that counts at once; `None` takes it back.
    Correct { id: u64, label: Option<usize> },
    /// Start again.
    Reset,
    /// Stop or resume learning.
    Learn(bool),
    /// Keep the state under this number.
    Snapshot(usize),
    /// Return to the snapshot.
    Rollback,
}

/// What an uninterrupted run is at.
#[derive(Clone)]
struct Run {
    session: Session,
    generation: u64,
    /// The kept state, and its label.
    snapshot: Option<(usize, State)>,
    /// Rows shown so far, of all generations.
    row: usize,
}

impl Run {
    fn take(&mut self, ask: &Ask, features: &Features<'_>) {
        match *ask {
            Ask::Classify(from, rows) => {
                self.session.step(&features.slice(from..from + rows)).unwrap();
                self.row = from + rows;
            }
            Ask::Label { id, label, .. } => {
                let _ = self.session.feedback(id, label);
            }
            Ask::Correct { id, label: Some(label) } => {
                let _ = self.session.correct(id, label);
            }
            Ask::Correct { id, label: None } => {
                self.session.withdraw(id);
            }
            Ask::Reset => {
                let (head, learning) = (self.session.head().clone(), self.session.learning());
                self.session = Session::new(head, &Config::default()).unwrap();
                self.session.set_learning(learning);
                self.generation += 1;
            }
            Ask::Learn(learning) => self.session.set_learning(learning),
            Ask::Snapshot(number) => self.snapshot = Some((number, self.session.state())),
            Ask::Rollback => {
                let (_, state) = self.snapshot.clone().unwrap();
                self.session.load(&state).unwrap();
                self.generation += 1;
            }
        }
    }

    fn is(&self, view: &Value, state: &[u8]) -> bool {
        let status = &view["status"];
        status["generation"] == self.generation
            && status["learning"] == self.session.learning()
            && state == self.session.state().to_bytes().unwrap()
    }
}

/// Sends a request; `false` if the server is no more.
fn send(server: &Server, ask: &Ask, run: &Run, features: &Features<'_>) -> bool {
    let stream = "/v1/streams/default";
    let post = |call: &str, body: &Value| match server.post(&format!("{stream}/{call}"), body) {
        Ok(answer) => {
            assert!(answer.get("detail").is_none(), "{ask:?}: {answer}");
            Some(answer)
        }
        Err(_) => None,
    };
    match *ask {
        Ask::Classify(from, rows) => {
            let Ok(answer) = server.post(CLASSIFY, &request(&features.slice(from..from + rows))) else {
                return false;
            };
            assert_eq!(answer["learnt"], run.session.learning(), "{answer}");
            assert_eq!(answer["rows"][0]["id"].as_u64(), Some(run.session.next_id()));
            true
        }
        Ask::Label { id, label, .. } => {
            let body = json!({"labels": [{"id": id, "label": label}], "generation": run.generation});
            post("feedback", &body).is_some()
        }
        Ask::Correct { id, label } => {
            let label = label.map_or(json!({"id": id, "withdraw": true}), |l| json!({"id": id, "label": l}));
            post("correct", &json!({"labels": [label], "generation": run.generation})).is_some()
        }
        Ask::Reset => post("reset", &json!({})).is_some(),
        Ask::Learn(true) => post("unfreeze", &json!({})).is_some(),
        Ask::Learn(false) => post("freeze", &json!({})).is_some(),
        Ask::Snapshot(number) => post("snapshots", &json!({"label": format!("s{number}")})).is_some(),
        Ask::Rollback => {
            let label = format!("s{}", run.snapshot.as_ref().unwrap().0);
            post("rollback", &json!({"label": label})).is_some()
        }
    }
}

/// What to ask for next. Labels are for samples of this run of the server, which its shadow was shown, too.
fn next_ask(run: &Run, shown: &[(u64, u64)], number: &mut usize, dice: &mut Dice) -> Ask {
    let die = dice.below(40);
    if die < 6 && !shown.is_empty() {
        let (id, shadow_id) = shown[dice.below(shown.len() as u64) as usize];
        return Ask::Label { id, shadow_id, label: dice.below(12) as usize };
    }
    match die {
        6 => Ask::Learn(!run.session.learning()),
        7 => {
            *number += 1;
            Ask::Snapshot(*number)
        }
        8 if run.snapshot.is_some() => Ask::Rollback,
        9 | 10 if !shown.is_empty() => {
            let (id, _) = shown[dice.below(shown.len() as u64) as usize];
            Ask::Correct { id, label: Some(dice.below(12) as usize) }
        }
        11 => match run.session.corrections().first() {
            Some((id, _)) => Ask::Correct { id: *id, label: None },
            None => Ask::Classify(run.row, 1),
        },
        // Rarely: what was learnt until then is gone.
        12 if dice.below(10) == 0 => Ask::Reset,
        _ => Ask::Classify(run.row, 1 + dice.below(60) as usize),
    }
}

fn view(server: &Server, stream: &str) -> (Value, Vec<u8>) {
    (server.get(&format!("/v1/streams/{stream}")), server.state_of(stream))
}

fn start(folder: &Path, durability: &str) -> Server {
    let file = folder.join("ultta.toml");
    std::fs::write(&file, "[server]\ncompact_bytes = 65536\n").unwrap();
    Server::start(folder, &["--durability", durability, "--config", file.to_str().unwrap()])
}

#[test]
fn killed_at_random_amid_everything_it_is_what_an_uninterrupted_run_is() {
    let kills: usize = std::env::var("ULTTA_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let folder = tempfile::tempdir().unwrap();
    let features = simulator().next_block(400_000).0;
    let session = Session::new(simulator().head().clone(), &Config::default()).unwrap();
    let mut run = Run { session: session.clone(), generation: 0, snapshot: None, row: 0 };
    let mut shadow = session;
    let mut dice = Dice(11 + kills as u64);
    let (mut number, mut asked, mut compacted, mut rolled_back, mut in_doubt) = (0, 0, 0, 0, 0);
    let mut corrected = 0;
    let mut server = start(folder.path(), "interval");
    let clone = json!({"name": "shade", "shadow": true});
    let made = server.post("/v1/streams/default/clone", &clone).unwrap();
    assert!(made.get("detail").is_none(), "{made}");
    for kill in 0..kills {
        let wait = Duration::from_millis(10 + dice.below(500));
        let pid = server.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(wait);
            Command::new("kill").args(["-9", &pid]).status().unwrap();
        });
        // What the shadow is shown, in order; and the samples that labels may be for.
        let mut shown_jobs: Vec<Ask> = Vec::new();
        let mut shown: Vec<(u64, u64)> = Vec::new();
        let mut shadow_id = shadow.next_id();
        let before_row = run.row;
        let unanswered = loop {
            assert!(run.row + 100 < features.rows(), "more rows are needed");
            let ask = next_ask(&run, &shown, &mut number, &mut dice);
            if matches!(ask, Ask::Classify(..) | Ask::Label { .. }) {
                shown_jobs.push(ask.clone());
            }
            if !send(&server, &ask, &run, &features) {
                break ask;
            }
            asked += 1;
            match ask {
                Ask::Classify(_, rows) => {
                    let id = run.session.next_id();
                    shown.extend((0..rows as u64).map(|i| (id + i, shadow_id + i)));
                    shadow_id += rows as u64;
                }
                Ask::Rollback => {
                    shown.clear();
                    rolled_back += 1;
                }
                Ask::Correct { .. } => corrected += 1,
                Ask::Reset => shown.clear(),
                _ => {}
            }
            run.take(&ask, &features);
        };
        killer.join().unwrap();
        server.kill();
        let durability = ["interval", "sync"][kill % 2];
        server = start(folder.path(), durability);
        assert_eq!(server.get("/healthz")["status"], "ok", "kill {kill}: {}", server.get("/healthz"));
        // The request that was not answered has been taken whole, or not at all.
        let (found, state) = view(&server, "default");
        if !run.is(&found, &state) {
            in_doubt += 1;
            run.take(&unanswered, &features);
            assert!(run.is(&found, &state), "kill {kill}: another state after {unanswered:?}: {found}");
        } else if let Ask::Snapshot(number) = unanswered {
            let kept = server.get("/v1/streams/default/snapshots").to_string();
            if kept.contains(&format!("\"s{number}\"")) {
                run.take(&unanswered, &features);
            }
        }
        compacted += usize::from(
            found["recovered_records"].as_u64().unwrap() < found["status"]["log_next"].as_u64().unwrap(),
        );
        for old in number.saturating_sub(20)..number.saturating_sub(4) {
            if run.snapshot.as_ref().is_some_and(|(kept, _)| *kept != old) {
                server.delete(&format!("/v1/streams/default/snapshots/s{old}"));
            }
        }
        // The shadow has taken the first of what it was shown, in order.
        let (found, state) = view(&server, "shade");
        let seen = found["status"]["health"]["seen"].as_u64().unwrap();
        let mut jobs = shown_jobs.iter();
        loop {
            if shadow.next_id() == seen && state == shadow.state().to_bytes().unwrap() {
                break;
            }
            match jobs.next() {
                Some(Ask::Classify(from, rows)) => {
                    shadow.step(&features.slice(*from..from + rows)).map(drop).unwrap();
                }
                Some(Ask::Label { shadow_id, label, .. }) => drop(shadow.feedback(*shadow_id, *label)),
                _ => panic!("kill {kill}: the shadow is in no state it was shown ({seen} samples)"),
            }
        }
        // What the shadow was not shown any more, because it died with the server, it never sees.
        assert!(run.row >= before_row);
    }
    let (found, state) = view(&server, "default");
    assert!(run.is(&found, &state), "the final state");
    // How often depends on how fast the machine is.
    assert!(10 * compacted > kills && asked > kills, "{compacted} of {kills} with a base, {asked} requests");
    server.terminate();
    println!(
        "{kills} kills, {asked} requests, {} rows, {rolled_back} returns to a snapshot, {corrected} corrections, {compacted} with a base, {in_doubt} unanswered requests taken",
        run.row
    );
}
