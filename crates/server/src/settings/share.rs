//! Settings of groups: the `[server.share]` table.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::streams::check_name;

/// How groups of streams share what they learn. `docs/fleet.md` tells how they do.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShareSettings {
    /// Broker that groups share over, as `nats://host:4222`; without one, streams of this server share among themselves. Needs
    /// the cargo feature `nats`.
    pub url: Option<String>,
    /// This server's name among those that share; every one needs its own.
    pub member: Option<String>,
    /// Seconds between two deltas of a member.
    pub seconds: f64,
    /// A member with fewer new samples than this waits, five times as long at most.
    pub samples: u64,
    /// Whether this server only takes: its streams learn from the others and give nothing.
    pub read_only: bool,
    /// Bytes that the broker keeps of a group's deltas, −1 for any number.
    pub max_bytes: i64,
    /// User and password at the broker.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// A token instead of both.
    pub token: Option<String>,
    /// The seed of an nkey.
    pub nkey: Option<String>,
    /// A credentials file, as `nsc` writes it.
    pub credentials: Option<PathBuf>,
    /// Certificate that the broker's is signed with (PEM); asks for TLS.
    pub tls_ca: Option<PathBuf>,
    /// This server's own certificate for the broker (PEM), with `tls_key`.
    pub tls_cert: Option<PathBuf>,
    /// Its private key (PEM).
    pub tls_key: Option<PathBuf>,
}

impl Default for ShareSettings {
    fn default() -> Self {
        Self {
            url: None,
            member: None,
            seconds: 2.0,
            samples: 32,
            read_only: false,
            max_bytes: -1,
            user: None,
            password: None,
            token: None,
            nkey: None,
            credentials: None,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
        }
    }
}

impl ShareSettings {
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(url) = &self.url {
            if !cfg!(feature = "nats") {
                return Err("server.share.url: this program was built without NATS; build it with the cargo feature `nats`".into());
            }
            if !["nats://", "tls://"].iter().any(|scheme| url.starts_with(scheme)) {
                return Err("server.share.url: expected an address that begins with nats:// or tls://".into());
            }
            match &self.member {
                None => return Err("server.share.member: expected a name of this server's own".into()),
                Some(name) => check_name(name).map_err(|e| format!("server.share.member: {e}"))?,
            }
        }
        if !(0.01..=86_400.0).contains(&self.seconds) {
            return Err("server.share.seconds: expected 0.01 to 86400".into());
        }
        if self.user.is_some() != self.password.is_some() || self.tls_cert.is_some() != self.tls_key.is_some()
        {
            return Err("server.share: user and password, tls_cert and tls_key: expected both or none".into());
        }
        Ok(())
    }

    /// A message without what must not be read: an address may have a password in it.
    #[cfg_attr(not(feature = "nats"), allow(dead_code))]
    pub(crate) fn hide(&self, text: &str) -> String {
        let userinfo = self.url.as_ref().and_then(|url| Some(url.split_once("://")?.1.rsplit_once('@')?.0));
        let parts = userinfo.into_iter().flat_map(|info| std::iter::once(info).chain(info.split(':')));
        let secrets = [&self.password, &self.token, &self.nkey].into_iter().flatten().map(String::as_str);
        let mut hidden = text.to_string();
        for secret in parts.chain(secrets).filter(|secret| !secret.is_empty()) {
            hidden = hidden.replace(secret, "…");
        }
        hidden
    }
}

impl std::fmt::Debug for ShareSettings {
    /// Shows nothing secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShareSettings")
            .field("url", &self.url.as_deref().map(|url| self.hide(url)))
            .field("member", &self.member)
            .field("seconds", &self.seconds)
            .field("samples", &self.samples)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_never_reach_a_log() {
        let settings = ShareSettings {
            url: Some("nats://anna:hush@broker:4222".into()),
            token: Some("quiet".into()),
            password: Some("silence".into()),
            nkey: Some("SUSEED".into()),
            ..Default::default()
        };
        let shown =
            format!("{settings:?} {}", settings.hide("anna:hush@broker said quiet, silence and SUSEED"));
        for secret in ["hush", "quiet", "silence", "SUSEED"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(shown.contains("broker"), "{shown}");
    }

    #[test]
    fn what_cannot_work_is_named() {
        assert_eq!(ShareSettings::default().check(), Ok(()));
        let broken = |share: ShareSettings| share.check().unwrap_err();
        assert!(broken(ShareSettings { seconds: 0.0, ..Default::default() }).contains("share.seconds"));
        assert!(broken(ShareSettings { user: Some("a".into()), ..Default::default() }).contains("password"));
        let url = broken(ShareSettings { url: Some("http://x".into()), ..Default::default() });
        let expected = if cfg!(feature = "nats") { "nats://" } else { "cargo feature `nats`" };
        assert!(url.contains(expected), "{url}");
    }
}
