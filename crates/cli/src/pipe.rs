//! `ultta run --features -`: answers JSON lines as they come.

use std::io::{BufRead, BufReader, Read};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use ultta::{Features, Input};
use ultta_formats::{Id, Line};

use crate::failure::{self, BAD_INPUT, advice, is_broken_pipe};
use crate::interrupt::Interrupt;
use crate::run::Run;

/// Longer lines, in bytes, are refused.
const MAX_LINE: u64 = 64 << 20;

/// How often a quiet pipe looks for an interrupt.
const LOOK: Duration = Duration::from_millis(50);

/// Answers every line of standard input, each at once. A line that cannot be answered is reported, in its place
/// and on standard error, and teaches nothing; the stream goes on.
pub fn answer_lines(run: &mut Run, normalize: bool, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let lines = read_lines();
    let mut bad = false;
    let mut number = 0;
    loop {
        if let Some(interrupted) = interrupt.came() {
            return Ok(interrupted);
        }
        let line = match lines.recv_timeout(LOOK) {
            Ok(Ok(line)) => line,
            // Earlier lines stay answered, and what was learnt from them is kept.
            Ok(Err(e)) => return Ok(failure::report(e)),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        number += 1;
        match answer(run, &line, number, normalize) {
            Ok(fine) => bad |= !fine,
            // The reader of the answers hung up. The state is saved as at any other end.
            Err(e) if is_broken_pipe(&e) => {
                run.hung_up = true;
                break;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(if bad { ExitCode::from(BAD_INPUT) } else { ExitCode::SUCCESS })
}

/// Answers one line; `false` if it was no row.
fn answer(run: &mut Run, line: &[u8], number: u64, normalize: bool) -> anyhow::Result<bool> {
    let parsed = match Line::parse(line) {
        Ok(None) => return Ok(true),
        Ok(Some(parsed)) => parsed,
        Err(message) => return refuse(run, number, None, &message.to_string()),
    };
    // A row of the wrong length is told so, not that its norm is wrong.
    let (expected, got) = (run.session.head().dim(), parsed.features.len());
    if got != expected {
        let error = ultta::Error::Shape { what: ultta::What::Dimension, expected, got };
        return refuse(run, number, parsed.id.as_ref(), &error.to_string());
    }
    let (features, views) = match Features::of_line(&parsed, normalize) {
        Ok(rows) => rows,
        Err(e) => return refuse(run, number, parsed.id.as_ref(), &format!("{e}{}", advice(&e))),
    };
    let view_counts = [parsed.views.len()];
    let input = Input {
        learn: Some(&[parsed.learn]),
        times: parsed.time.as_ref().map(std::slice::from_ref),
        views: views.as_ref(),
        view_counts: views.as_ref().map(|_| &view_counts[..]),
        ..Input::new(&features)
    };
    let stepped = run.step(&input, |_, arrival| parsed.id.clone().unwrap_or(Id::Number(arrival)), |_| None);
    match stepped {
        Ok(warning) => {
            if let Some(warning) = warning {
                eprintln!("{warning}");
            }
            flush(run)?;
            Ok(true)
        }
        Err(e) => match e.downcast_ref::<ultta::Error>() {
            Some(e) => refuse(run, number, parsed.id.as_ref(), &format!("{e}{}", advice(e))),
            None => Err(e),
        },
    }
}

fn refuse(run: &mut Run, line: u64, id: Option<&Id>, message: &str) -> anyhow::Result<bool> {
    eprintln!("warning: line {line}: {message}");
    if let Some(sink) = &mut run.sink {
        sink.write_error(line, id, message)?;
    }
    flush(run)?;
    Ok(false)
}

fn flush(run: &mut Run) -> anyhow::Result<()> {
    run.sink.as_mut().map_or(Ok(()), |sink| sink.flush())
}

/// Reads lines in a thread of its own, so that an interrupt is heard while the pipe is quiet. Only a few
/// lines are read ahead: a sender that is faster than the answers has to wait.
fn read_lines() -> Receiver<anyhow::Result<Vec<u8>>> {
    let (sender, receiver) = sync_channel(64);
    std::thread::spawn(move || {
        let mut input = BufReader::new(std::io::stdin());
        loop {
            let mut line = Vec::new();
            let read = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
            let line = match read {
                Ok(0) => return,
                Ok(n) if n as u64 == MAX_LINE && line.last() != Some(&b'\n') => {
                    failure::usage(format!("standard input: a line is longer than {MAX_LINE} bytes"))
                }
                Ok(_) => Ok(line),
                Err(e) => Err(anyhow::Error::from(e).context("reading standard input")),
            };
            let failed = line.is_err();
            if sender.send(line).is_err() || failed {
                return;
            }
        }
    });
    receiver
}
