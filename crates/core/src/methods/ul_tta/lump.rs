//! What the fits will need of a sample: its candidates, and the *lump* of the other classes.

use super::{Incoming, Work};
use crate::kernels::exp;
use crate::methods::recent::Lump;
use crate::scores::Summary;

/// Collects what the fits will need of a sample: the candidates' logits and priors, and the lump of the others.
pub(super) fn lump_of(row: Incoming<'_>, summary: &Summary, work: &mut Work) -> Lump {
    let Incoming { text, frozen, weights, .. } = row;
    let candidates = work.candidates.iter().map(|&c| c as usize);
    work.candidate_text.clear();
    work.candidate_text.extend(candidates.clone().map(|c| text[c] - frozen.best));
    work.candidate_prior.clear();
    work.candidate_prior.extend(candidates.clone().map(|c| work.log_prior[c]));
    let listed: f32 = candidates.clone().map(|c| weights[c]).sum();
    let listed_posterior: f32 = work.posterior.iter().sum();
    let listed_prior: f32 = candidates.map(|c| work.prior.mix[c]).sum();
    let classes = (text.len() - work.candidates.len()) as f32;
    let log = |mass: f32| Lump::log_mass(classes, mass);
    Lump {
        classes,
        text: log(exp(frozen.log_sum - frozen.best) - listed),
        prior: log(1.0 - listed_posterior) + summary.log_sum - frozen.best,
        ratio: log(text.len() as f32 - listed_prior) - classes.max(1.0).ln(),
    }
}
