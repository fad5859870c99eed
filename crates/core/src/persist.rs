//! What a session writes to a [`State`] and reads from one.

use std::sync::Arc;

use crate::session::Totals;
use crate::state::{STATE_VERSION, differing_setting};
use crate::{Config, Error, Head, Result, Session, State};

impl Session {
    /// Continues from a saved state, under the configuration that the state carries.
    pub fn resume(head: impl Into<Arc<Head>>, state: &State) -> Result<Self> {
        let config =
            state.metadata.get("config").ok_or_else(|| Error::state("it carries no configuration"))?;
        let mut session = Self::new(head, &Config::from_saved(config)?)?;
        session.load(state)?;
        Ok(session)
    }

    /// Everything needed to continue bit for bit.
    pub fn state(&self) -> State {
        let mut state = self.adapter.save();
        state.metadata.insert("format".into(), format!("ultta-state-{STATE_VERSION}"));
        state.metadata.insert("head".into(), self.head.digest().into());
        state.metadata.insert("config".into(), self.config.to_toml());
        state.metadata.insert("settings".into(), self.config.state_settings().to_string());
        state.metadata.insert("method".into(), self.adapter.card().name.into());
        let t = &self.totals;
        state.put(
            "session.counts",
            &[self.next_id, t.admitted, t.flips, t.unknown, self.healthy_at, t.scenes, t.restarts],
        );
        state.put("session.garbage", &[t.garbage]);
        state.put("session.maxima", &[t.max_prior_kl, t.max_movement]);
        self.unknown.save(&mut state);
        self.guard.save(&mut state);
        self.alarms.save(&mut state);
        self.estimator.save(&mut state);
        if let Some(sets) = &self.sets {
            sets.save(&mut state);
        }
        if let Some(healthy) = &self.healthy {
            state.put_under("healthy.", healthy.clone());
        }
        state
    }

    /// Continues from a saved state, under this session's own configuration. Only settings that the saved numbers
    /// depend on must be the same. On an error nothing has changed.
    pub fn load(&mut self, state: &State) -> Result<()> {
        let meta = |key: &str| state.metadata.get(key).map(String::as_str).unwrap_or("");
        if meta("format") != format!("ultta-state-{STATE_VERSION}") {
            return Err(Error::Version { expected: STATE_VERSION, got: meta("format").to_string() });
        }
        let digest = self.head.digest();
        if meta("head") != digest {
            return Err(Error::OtherHead { expected: digest.into(), got: meta("head").to_string() });
        }
        let ours = self.config.state_settings();
        let mut theirs: Option<toml::Table> = meta("settings").parse().ok();
        if let Some(theirs) = &mut theirs {
            // An earlier version wrote down settings of answers, too.
            theirs.retain(|key, _| !self.config.method.card().answer_keys.contains(&key));
        }
        if theirs.as_ref() != Some(&ours) {
            return Err(Error::OtherConfig { key: differing_setting(&ours.to_string(), meta("settings")) });
        }
        state.check_finite()?;
        let mut fresh = Self::new(self.head.clone(), &self.config)?;
        fresh.learning = self.learning;
        fresh.adapter.load(state)?;
        fresh.unknown.load(state, &self.head)?;
        fresh.guard.load(state)?;
        fresh.alarms.load(state, self.head.n_classes(), self.head.dim())?;
        fresh.estimator.load(state)?;
        if let Some(sets) = &mut fresh.sets {
            sets.load(state, self.head.n_classes())?;
        }
        if state.any_under("session.") {
            let [next_id, admitted, flips, unknown, healthy_at, scenes, restarts] =
                state.counts("session.counts")?;
            let &[max_prior_kl, max_movement] = state.get::<f64>("session.maxima")? else {
                return Err(Error::state("session.maxima: expected 2 values"));
            };
            // States of earlier builds do not say.
            let [garbage] =
                if state.any_under("session.garbage") { state.counts("session.garbage")? } else { [0] };
            (fresh.next_id, fresh.healthy_at) = (next_id, healthy_at);
            fresh.totals =
                Totals { admitted, flips, unknown, scenes, garbage, restarts, max_prior_kl, max_movement };
        }
        let healthy = state.under("healthy.");
        if !healthy.tensors.is_empty() {
            self.config.method.build(&self.head)?.load(&healthy)?;
            fresh.healthy = Some(healthy);
        }
        *self = fresh;
        Ok(())
    }
}
