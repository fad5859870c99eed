//! The list of methods. One file each; adding one is a line in the macro below (`CONTRIBUTING.md`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::adapter::{Adapter, Card};
use crate::{Config, Head, Result};

mod cache;
mod checked;
mod gaussian;
mod kl;
mod math;
mod memory;
mod recent;
mod views;

pub mod adapt;
pub mod adapt_transductive;
pub mod bca;
pub mod boost_adapter;
pub mod dmn;
pub mod dota;
pub mod ecalp;
pub mod freetta;
pub mod lame;
pub mod oga;
pub mod onzeta;
pub mod presets;
pub mod prior_only;
pub mod pta;
pub mod stata;
pub mod t3a;
pub mod tda;
pub mod temperature_only;
pub mod tip_adapter;
pub(crate) mod triangle;
pub mod ul_tta;
pub mod ul_tta_paper;
pub mod zero;
pub mod zero_shot;

/// A method's `build` returns its adapter or, where a setting chooses between adapters, a boxed one.
trait Boxed {
    fn boxed(self) -> Box<dyn Adapter>;
}

impl<A: Adapter + 'static> Boxed for A {
    fn boxed(self) -> Box<dyn Adapter> {
        Box::new(self)
    }
}

impl Boxed for Box<dyn Adapter> {
    fn boxed(self) -> Box<dyn Adapter> {
        self
    }
}

macro_rules! methods {
    ($($variant:ident($config:ty), $name:literal, $card:expr;)*) => {
        /// A method and its settings, as written in a configuration: `[method.ul_tta]`.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(clippy::large_enum_variant)]
        pub enum MethodConfig {
            $(
                #[doc = concat!("`", $name, "`: `ultta config --method ", $name, "` prints its settings.")]
                #[serde(rename = $name)]
                $variant($config),
            )*
        }

        impl MethodConfig {
            /// The adapter for a head. This is the only way to make one, so an invalid adapter cannot exist.
            pub fn build(&self, head: &Arc<Head>) -> Result<Box<dyn Adapter>> {
                match self {
                    $(MethodConfig::$variant(config) => Ok(config.build(head)?.boxed()),)*
                }
            }

            /// The method's card.
            pub fn card(&self) -> &'static Card {
                match self {
                    MethodConfig::UlTta(config) if config.preset() == presets::Preset::Paper => &presets::PAPER_CARD,
                    $(MethodConfig::$variant(_) => &$card,)*
                }
            }

            /// A method with its default settings, by the name on its card.
            pub(crate) fn by_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(MethodConfig::$variant(Default::default())),)*
                    _ => None,
                }
            }
        }

        /// The cards of all methods.
        pub fn cards() -> Vec<&'static Card> {
            vec![$(&$card,)*]
        }
    };
}

methods! {
    ZeroShot(zero_shot::ZeroShotConfig), "zero_shot", zero_shot::CARD;
    UlTta(presets::UlTtaConfig), "ul_tta", presets::CARD;
    T3a(t3a::T3aConfig), "t3a", t3a::CARD;
    TipAdapter(tip_adapter::TipAdapterConfig), "tip_adapter", tip_adapter::CARD;
    Freetta(freetta::FreettaConfig), "freetta", freetta::CARD;
    Tda(tda::TdaConfig), "tda", tda::CARD;
    Bca(bca::BcaConfig), "bca", bca::CARD;
    Onzeta(onzeta::OnzetaConfig), "onzeta", onzeta::CARD;
    Dmn(dmn::DmnConfig), "dmn", dmn::CARD;
    Stata(stata::StataConfig), "stata", stata::CARD;
    Lame(lame::LameConfig), "lame", lame::CARD;
    PriorOnly(prior_only::PriorOnlyConfig), "prior_only", prior_only::CARD;
    TemperatureOnly(temperature_only::TemperatureOnlyConfig), "temperature_only", temperature_only::CARD;
    BoostAdapter(boost_adapter::BoostAdapterConfig), "boost_adapter", boost_adapter::CARD;
    Zero(zero::ZeroConfig), "zero", zero::CARD;
    Pta(pta::PtaConfig), "pta", pta::CARD;
    Dota(dota::DotaConfig), "dota", dota::CARD;
    Adapt(adapt::AdaptConfig), "adapt", adapt::CARD;
    AdaptTransductive(adapt_transductive::AdaptTransductiveConfig), "adapt_transductive", adapt_transductive::CARD;
    Ecalp(ecalp::EcalpConfig), "ecalp", ecalp::CARD;
    Oga(oga::OgaConfig), "oga", oga::CARD;
}

/// The names of all methods as the command line writes them, each followed by its presets: `ul-tta`, `ul-tta:paper`.
pub fn names() -> Vec<String> {
    let of_card = |card: &Card| {
        let name = card.name.replace('_', "-");
        let presets = card.presets.iter().map(|preset| format!("{name}:{preset}"));
        std::iter::once(name.clone()).chain(presets).collect::<Vec<_>>()
    };
    cards().into_iter().flat_map(of_card).collect()
}

/// The card of a method by its name, in any spelling, with a preset after a colon or without.
pub fn card(name: &str) -> Option<&'static Card> {
    let (method, preset) =
        name.split_once(':').map_or((name, None), |(method, preset)| (method, Some(preset)));
    match (MethodConfig::by_name(&method.replace('-', "_"))?, preset) {
        (config, None) => Some(config.card()),
        (MethodConfig::UlTta(_), Some(preset)) => {
            presets::Preset::by_name(preset).map(|preset| MethodConfig::UlTta(preset.config()).card())
        }
        (_, Some(_)) => None,
    }
}

impl MethodConfig {
    /// The one name of the method and its preset: `ul-tta`, `ul-tta:paper`, `tip-adapter`. However it was spelt, it is
    /// reported under this name.
    pub fn name(&self) -> String {
        let name = self.card().name.replace('_', "-");
        match self {
            MethodConfig::UlTta(config) if config.preset() != presets::Preset::Default => {
                format!("{name}:{}", config.preset().name())
            }
            _ => name,
        }
    }

    /// Whether rows need arrival times under these settings.
    pub fn uses_times(&self) -> bool {
        let seconds = self.card().times.and_then(|key| self.setting(key));
        seconds.is_some_and(|value| value.as_float().is_some_and(|seconds| seconds > 0.0))
    }

    /// Scenes that are answered zero-shot at first, and scenes before the first one that teaches what its class looks like;
    /// `None` if there is no such wait.
    pub fn warm_up(&self) -> Option<(u64, u64)> {
        let (first, key) = self.card().warm_up?;
        Some((first, u64::try_from(self.setting(key)?.as_integer()?).ok()?))
    }

    /// The files that the settings name: the setting's key and the path.
    pub fn files(&self) -> Vec<(String, String)> {
        let card = self.card();
        let named = card.files.iter().filter_map(|key| {
            let path = self.setting(key)?.as_str()?.to_string();
            (!path.is_empty()).then(|| (format!("method.{}.{key}", card.name), path))
        });
        named.collect()
    }

    /// The same settings for a stream of `rows` samples: a method that must know the length is told.
    pub fn for_stream_of(&self, rows: u64) -> Self {
        let Some(key) = self.card().horizon else { return self.clone() };
        let mut table = self.to_config().to_table();
        let own = table.get_mut("method").and_then(|methods| methods.get_mut(self.card().name));
        if let Some(own) = own.and_then(Value::as_table_mut) {
            own.insert(key.to_string(), Value::Integer(rows.max(1) as i64));
        }
        Config::from_table(&table).map_or_else(|_| self.clone(), |config| config.method)
    }

    /// All settings, by key.
    pub(crate) fn settings(&self) -> Table {
        let all = self.to_config().to_table();
        let own = all.get("method").and_then(|methods| methods.get(self.card().name));
        own.and_then(Value::as_table).cloned().unwrap_or_default()
    }

    /// One setting, by its dotted key within the method.
    pub(crate) fn setting(&self, key: &str) -> Option<Value> {
        key.split('.').try_fold(Value::Table(self.settings()), |value, key| value.get(key).cloned())
    }

    fn to_config(&self) -> Config {
        Config { method: self.clone(), ..Default::default() }
    }
}
