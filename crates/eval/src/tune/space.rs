//! The settings that `ultta tune` searches, and within which ranges: one table for all methods.

use toml::{Table, Value};
use ultta::{Config, Error, Result};

use crate::method::Method;
use crate::random::Random;

/// How a setting runs from its least to its largest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Evenly.
    Linear(f64, f64),
    /// Evenly in its logarithm.
    Log(f64, f64),
    /// Whole numbers, evenly in their logarithm.
    Whole(f64, f64),
    /// One of these.
    Choice(&'static [&'static str]),
}

/// One setting that is searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knob {
    /// Its key, as for `--set`.
    pub key: &'static str,
    /// Its range.
    pub scale: Scale,
}

const fn knob(key: &'static str, scale: Scale) -> Knob {
    Knob { key, scale }
}

use Scale::{Choice, Linear, Log, Whole};

/// The settings of each method that matter. Of UL-TTA's default those that decide how fast and how far it follows a
/// stream; of the others what their papers tune, around what they recommend.
const TABLE: &[(&str, &[Knob])] = &[
    (
        "ul-tta",
        &[
            knob("prototypes.half_life", Log(500.0, 4000.0)),
            knob("advanced.trust_samples", Log(15.0, 50.0)),
            knob("advanced.prior_smoothing", Log(0.02, 0.2)),
            knob("advanced.prior_dead_zone", Linear(0.2, 1.0)),
            knob("advanced.prior_stay_lift", Linear(0.3, 1.0)),
            knob("advanced.prior_record_decay", Linear(0.96, 0.995)),
            knob("advanced.prior_head_start", Linear(4.0, 10.0)),
            knob("advanced.match_power", Linear(0.5, 1.0)),
            knob("advanced.margin_share", Linear(0.3, 1.0)),
            knob("advanced.halves_share", Linear(0.0, 1.0)),
            knob("advanced.frozen_share", Linear(0.1, 0.5)),
            knob("advanced.floor", Log(0.002, 0.03)),
        ],
    ),
    (
        "ul-tta:paper",
        &[
            knob("gate.keep", Linear(0.1, 1.0)),
            knob("prototypes.alpha", Log(3.0, 100.0)),
            knob("prototypes.eta", Log(0.02, 1.0)),
            knob("prototypes.rho", Log(0.05, 1.0)),
            knob("prior.gamma", Log(0.1, 30.0)),
            knob("prior.kappa", Log(0.05, 3.0)),
            knob("update.every", Whole(16.0, 256.0)),
        ],
    ),
    (
        "tda",
        &[
            knob("capacity", Whole(1.0, 8.0)),
            knob("alpha", Log(0.5, 6.0)),
            knob("beta", Log(1.0, 12.0)),
            knob("negative_capacity", Whole(1.0, 4.0)),
            knob("negative_alpha", Log(0.03, 0.6)),
            knob("negative_beta", Log(0.3, 3.0)),
        ],
    ),
    (
        "dmn",
        &[knob("capacity", Whole(4.0, 64.0)), knob("beta", Log(1.0, 12.0)), knob("weight", Log(0.1, 3.0))],
    ),
    (
        "bca",
        &[
            knob("embedding_threshold", Linear(0.0, 0.9)),
            knob("posterior_threshold", Linear(0.0, 0.9)),
            knob("embedding_count", Log(50.0, 50_000.0)),
            knob("posterior_count", Log(0.5, 50.0)),
        ],
    ),
    (
        "freetta",
        &[knob("alpha", Log(0.01, 0.5)), knob("beta", Log(0.3, 6.0)), knob("text_count", Log(0.5, 30.0))],
    ),
    (
        "onzeta",
        &[
            knob("tau_i", Log(0.01, 0.1)),
            knob("cw", Log(0.05, 2.0)),
            knob("cr", Log(2.0, 60.0)),
            knob("alpha", Linear(0.0, 1.0)),
            knob("beta", Linear(0.2, 1.0)),
        ],
    ),
    (
        "tip-adapter",
        &[knob("capacity", Whole(2.0, 32.0)), knob("alpha", Log(0.2, 5.0)), knob("beta", Log(0.5, 8.0))],
    ),
    // The values that the paper tries.
    ("t3a", &[knob("filter_k", Choice(&["1", "5", "20", "50", "100", "-1"]))]),
    ("lame", &[knob("neighbours", Whole(1.0, 10.0)), knob("weight", Log(0.1, 4.0))]),
    (
        "stata",
        &[
            knob("alpha", Log(0.1, 10.0)),
            knob("text_weight", Log(0.3, 3.0)),
            knob("neighbour_weight", Log(0.1, 3.0)),
            knob("neighbours", Whole(1.0, 10.0)),
        ],
    ),
    (
        "pta",
        &[
            knob("alpha", Log(0.001, 0.5)),
            knob("temperature", Log(2.0, 200.0)),
            knob("threshold", Log(0.02, 0.8)),
            knob("feedback", Choice(&["true", "false"])),
        ],
    ),
    (
        "dota",
        &[
            knob("sigma", Log(0.0002, 0.02)),
            knob("epsilon", Log(1e-5, 1e-2)),
            knob("eta", Log(0.05, 3.0)),
            knob("rho", Log(0.001, 0.1)),
        ],
    ),
    (
        "adapt",
        &[
            knob("capacity", Whole(4.0, 64.0)),
            knob("alpha", Linear(0.5, 1.0)),
            knob("scale", Log(5.0, 200.0)),
            knob("stale_vote", Choice(&["true", "false"])),
        ],
    ),
    (
        "adapt-transductive",
        &[
            knob("capacity", Whole(2.0, 32.0)),
            knob("alpha", Linear(0.5, 1.0)),
            knob("scale", Log(5.0, 200.0)),
        ],
    ),
    (
        "oga",
        &[
            knob("capacity", Whole(2.0, 32.0)),
            knob("tau", Log(0.005, 0.5)),
            knob("by_capacity", Choice(&["true", "false"])),
        ],
    ),
    (
        "ecalp",
        &[
            knob("neighbours", Whole(3.0, 24.0)),
            knob("texts", Whole(1.0, 8.0)),
            knob("gamma", Whole(2.0, 20.0)),
            knob("carry", Log(1.0, 30.0)),
        ],
    ),
    ("prior-only", &[knob("gamma", Log(0.02, 30.0))]),
    (
        "temperature-only",
        &[knob("every", Whole(16.0, 256.0)), knob("beta", Linear(0.5, 0.99)), knob("max", Log(1.2, 5.0))],
    ),
];

/// Names of the methods that can be tuned.
pub fn tunable() -> Vec<&'static str> {
    TABLE.iter().map(|(name, _)| *name).collect()
}

/// A point of the space: for each setting its place in its range, from 0 to 1, or as the method has it.
pub type Point = Vec<Option<f64>>;

/// The settings of one method.
pub struct Space {
    base: Method,
    knobs: &'static [Knob],
    /// Where the method's own values lie.
    own: Vec<f64>,
}

impl Space {
    /// The space of a method, around its own settings.
    pub fn of(base: Method) -> Result<Self> {
        let plain = base.name.replace('_', "-");
        let Some((_, knobs)) = TABLE.iter().find(|(name, _)| *name == plain) else {
            let known = tunable().join(", ");
            let reason = format!("{plain} has no settings to tune (those that have: {known})");
            return Err(Error::Config { key: "method".into(), reason });
        };
        let all: Table = base.config.to_toml().parse().unwrap_or_default();
        let own = |knob: &Knob| {
            let path =
                std::iter::once("method").chain([base.config.method.card().name]).chain(knob.key.split('.'));
            let mut value = Some(Value::Table(all.clone()));
            for part in path {
                value = value.and_then(|v| v.get(part).cloned());
            }
            value.map(|value| knob.scale.place(&value)).ok_or_else(|| Error::Config {
                key: knob.key.into(),
                reason: format!("{plain} has no such setting; the table of settings to tune is out of date"),
            })
        };
        let own = knobs.iter().map(own).collect::<Result<Vec<f64>>>()?;
        Ok(Self { knobs, own, base })
    }

    /// The point of the method's own settings.
    pub fn start(&self) -> Point {
        vec![None; self.knobs.len()]
    }

    /// Anywhere: about half of the settings anew, the others as they are.
    pub fn draw(&self, random: &mut Random) -> Point {
        let mut point = self.start();
        let sure = random.below(point.len());
        for (i, place) in point.iter_mut().enumerate() {
            let (moves, to) = (random.uniform() < 0.5, random.uniform());
            *place = (moves || i == sure).then_some(to);
        }
        point
    }

    /// Near a point: some settings moved by about `step` of their range.
    pub fn near(&self, point: &Point, step: f64, random: &mut Random) -> Point {
        let mut next = point.clone();
        let sure = random.below(point.len());
        for (i, place) in next.iter_mut().enumerate() {
            let (moves, by) = (random.uniform() < 0.3, step * random.normal());
            if moves || i == sure {
                *place = Some((place.unwrap_or(self.own[i]) + by).clamp(0.0, 1.0));
            }
        }
        next
    }

    /// The settings of a point that differ from the method's own, by key.
    pub fn settings(&self, point: &Point) -> Vec<(&'static str, String)> {
        let each = self.knobs.iter().zip(point);
        each.filter_map(|(knob, place)| place.map(|place| (knob.key, knob.scale.text(place)))).collect()
    }

    /// The method with the settings of a point.
    pub fn method(&self, point: &Point) -> Result<Method> {
        let settings = self.settings(point);
        let pairs: Vec<(&str, &str)> = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let config = Config::resolve(Some(&self.base.config.to_toml()), None, None, &pairs)?;
        Ok(Method { config, ..self.base.clone() })
    }
}

impl Scale {
    /// The value at a place from 0 to 1, to three digits.
    fn text(self, place: f64) -> String {
        let log = |low: f64, high: f64| (low.ln() + place * (high.ln() - low.ln())).exp();
        match self {
            Scale::Linear(low, high) => rounded(low + place * (high - low)),
            Scale::Log(low, high) => rounded(log(low, high)),
            Scale::Whole(low, high) => format!("{:.0}", log(low, high)),
            Scale::Choice(all) => all[((place * all.len() as f64) as usize).min(all.len() - 1)].to_string(),
        }
    }

    /// Where a value lies; beyond the ends, at the ends.
    fn place(self, value: &Value) -> f64 {
        let number = value.as_float().or(value.as_integer().map(|v| v as f64)).unwrap_or(f64::NAN);
        let place = match self {
            Scale::Linear(low, high) => (number - low) / (high - low),
            Scale::Log(low, high) | Scale::Whole(low, high) => {
                (number.max(1e-300).ln() - low.ln()) / (high.ln() - low.ln())
            }
            Scale::Choice(all) => {
                let at = all.iter().position(|choice| *choice == value.to_string().trim_matches('"'));
                (at.unwrap_or(0) as f64 + 0.5) / all.len() as f64
            }
        };
        if place.is_nan() { 0.5 } else { place.clamp(0.0, 1.0) }
    }
}

/// Three significant digits, with a decimal point: a float in TOML.
fn rounded(value: f64) -> String {
    let digits = (2 - value.abs().max(1e-9).log10().floor() as i32).clamp(1, 9) as usize;
    let text = format!("{value:.digits$}");
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_the_table_exists_and_takes_both_ends_of_its_range() {
        for name in tunable() {
            let space = Space::of(Method::resolve(name, None).unwrap()).unwrap();
            for place in [0.0, 1.0] {
                let point = vec![Some(place); space.knobs.len()];
                let method = space.method(&point).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_ne!(method.config, space.base.config, "{name}");
            }
            assert_eq!(space.method(&space.start()).unwrap().config, space.base.config, "{name}");
        }
    }

    #[test]
    fn values_have_a_place_and_places_a_value() {
        assert_eq!(Scale::Log(1.0, 100.0).text(0.5), "10.0");
        assert_eq!(Scale::Whole(1.0, 8.0).text(1.0), "8");
        assert_eq!(Scale::Choice(&["a", "b"]).text(1.0), "b");
        assert_eq!(rounded(0.001_234_5), "0.00123");
        assert!((Scale::Log(1.0, 100.0).place(&Value::Float(10.0)) - 0.5).abs() < 1e-12);
        assert_eq!(Scale::Linear(0.0, 1.0).place(&Value::Float(7.0)), 1.0);
    }

    #[test]
    fn a_method_without_settings_is_refused() {
        let refused = Space::of(Method::resolve("zero-shot", None).unwrap()).err().unwrap().to_string();
        assert!(refused.contains("no settings to tune") && refused.contains("tda"), "{refused}");
    }
}
