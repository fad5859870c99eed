//! Interrupts: the first one asks a run to stop and save, a second one ends the program at once.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Remembers the signal that asked to stop.
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Listens from now on.
    pub fn listen() -> std::io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM] {
            // In this order: the first signal finds `again` unset, sets it, and only the next one ends us.
            flag::register_conditional_shutdown(number, 128 + number, again.clone())?;
            flag::register(number, again.clone())?;
            flag::register_usize(number, signal.clone(), number as usize)?;
        }
        Ok(Self { signal })
    }

    /// The exit code to end with, once a signal has come.
    pub fn came(&self) -> Option<ExitCode> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            number => Some(ExitCode::from(128 + number as u8)),
        }
    }
}
