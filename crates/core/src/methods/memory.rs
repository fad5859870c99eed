//! Methods whose memory can be more than a machine has: they say how much, and refuse.

use super::MethodConfig;
use crate::{Error, Head, Result};

/// Refuses what would take more bytes than a setting allows.
pub(crate) fn check_bytes(key: &str, most: u64, needed: u64, what: &str) -> Result<()> {
    if needed <= most {
        return Ok(());
    }
    Err(Error::config(key, format!("{what} need {needed} bytes of memory, at most {most} are allowed")))
}

impl MethodConfig {
    /// Whether a stream of `rows` samples fits what the settings allow the method to hold. The error tells the bytes.
    pub fn check_memory(&self, head: &Head, rows: u64) -> Result<()> {
        let card = self.card();
        let Some(bytes) = card.bytes else { return Ok(()) };
        let (classes, dim) = (head.n_classes(), head.dim());
        if let Some(most) = self.setting("max_samples").and_then(|v| v.as_integer()) {
            let most = most as u64;
            if most > 0 && rows > most {
                let needed = bytes(classes, dim, rows);
                let reason = format!(
                    "{rows} samples need {needed} bytes of memory and time that grows with their square, at most {most} samples are allowed"
                );
                return Err(Error::config(format!("method.{}.max_samples", card.name), reason));
            }
        }
        let most = self.setting("max_bytes").and_then(|v| v.as_integer()).map_or(u64::MAX, |v| v as u64);
        let what = format!("{rows} samples of {classes} classes and {dim} dimensions");
        check_bytes(&format!("method.{}.max_bytes", card.name), most, bytes(classes, dim, rows), &what)
    }
}
