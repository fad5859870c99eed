//! The list of methods. One file each; adding one is a line in the macro below (`CONTRIBUTING.md`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::adapter::{Adapter, Card};
use crate::{Head, Result};

pub mod ul_tta;
pub mod zero_shot;

macro_rules! methods {
    ($($variant:ident($config:ty), $name:literal, $card:expr;)*) => {
        /// A method and its settings, as written in a configuration: `[method.ul_tta]`.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(missing_docs)]
        pub enum MethodConfig {
            $(#[serde(rename = $name)] $variant($config),)*
        }

        impl MethodConfig {
            /// The adapter for a head. This is the only way to make one, so an invalid adapter cannot exist.
            pub fn build(&self, head: &Arc<Head>) -> Result<Box<dyn Adapter>> {
                match self {
                    $(MethodConfig::$variant(config) => Ok(Box::new(config.build(head)?)),)*
                }
            }

            /// The method's card.
            pub fn card(&self) -> &'static Card {
                match self {
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
    UlTta(ul_tta::UlTtaConfig), "ul_tta", ul_tta::CARD;
}
