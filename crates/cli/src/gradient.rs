//! The methods that change the encoder. They live in the crate `ultta-gradient`, which the feature `gradient` adds:
//! building it takes longer than everything else here. Without the feature their names are known, and whoever asks
//! for one is told how to build.

use ultta::Card;

use crate::failure::usage;

/// All of them, whether they are built or not.
pub const NAMES: [&str; 7] = ["tent", "eata", "sar", "cotta", "ttt", "ttt++", "tpt"];

/// How to build a binary that has them.
pub const BUILD: &str = "cargo build --release --features gradient";

/// Whether a name means a method that changes the encoder.
pub fn is_method(name: &str) -> bool {
    NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Refuses a method that this binary was built without.
pub fn check_built(name: &str) -> anyhow::Result<()> {
    if cfg!(feature = "gradient") { Ok(()) } else { not_built(name) }
}

/// Where a method that changes the encoder runs.
pub fn needs_pictures(name: &str) -> String {
    let name = name.to_lowercase();
    format!(
        "{name} changes the encoder and so needs pictures, not features; it runs in an evaluation: \
         ultta eval --images DIR --model M --methods zero-shot,{name}{}",
        also_lacking()
    )
}

/// What a request for such a method lacks beside pictures: empty, or how to build.
pub fn also_lacking() -> String {
    if cfg!(feature = "gradient") {
        return String::new();
    }
    format!("; and this binary is built without the methods that change the encoder: {BUILD}")
}

fn not_built<T>(name: &str) -> anyhow::Result<T> {
    usage(format!(
        "{name} changes the encoder, and this binary is built without the methods that do; build it with: {BUILD}"
    ))
}

#[cfg(feature = "gradient")]
pub use built::{Methods, cards};
#[cfg(not(feature = "gradient"))]
pub use left_out::{Methods, cards};

#[cfg(feature = "gradient")]
mod built {
    use std::sync::Arc;

    use ultta_eval::method::Method;
    use ultta_gradient::eval::Evaluated;
    use ultta_gradient::{MethodConfig, Model};

    use super::Card;

    /// The cards of the methods in this binary.
    pub fn cards() -> Vec<&'static Card> {
        ultta_gradient::cards()
    }

    /// A model that methods may change, and pictures of the kind it was trained on.
    pub struct Methods {
        model: Arc<Model>,
        source: Arc<Vec<f32>>,
    }

    impl Methods {
        /// Opens the model by its folder or name. `source` holds preprocessed pictures and may be empty.
        pub fn open(model: &str, source: Vec<f32>) -> anyhow::Result<Self> {
            Ok(Self { model: Arc::new(Model::open(model)?), source: Arc::new(source) })
        }

        /// A method with the settings that the text of a file has for it; `None` if the name is none of these.
        pub fn resolve(&self, name: &str, file: Option<&str>) -> anyhow::Result<Option<Method>> {
            let Some(config) = MethodConfig::resolve(name, file)? else { return Ok(None) };
            let method = Evaluated { model: self.model.clone(), config, source: self.source.clone() };
            Ok(Some(Method::on_pictures(name, Arc::new(method))?))
        }
    }
}

#[cfg(not(feature = "gradient"))]
mod left_out {
    use ultta_eval::method::Method;

    use super::{Card, not_built};

    /// The cards of the methods in this binary: none.
    pub fn cards() -> Vec<&'static Card> {
        Vec::new()
    }

    /// There is none: [`Methods::open`] always tells how to build.
    pub enum Methods {}

    impl Methods {
        pub fn open(_model: &str, _source: Vec<f32>) -> anyhow::Result<Self> {
            not_built("the method")
        }

        pub fn resolve(&self, _name: &str, _file: Option<&str>) -> anyhow::Result<Option<Method>> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "gradient")]
    fn the_names_are_those_of_the_crate() {
        let cards: Vec<&str> = cards().iter().map(|card| card.name).collect();
        assert_eq!(cards, NAMES);
    }

    #[test]
    fn a_binary_without_them_says_how_to_build_one_with_them() {
        let error = not_built::<()>("tent").unwrap_err().to_string();
        assert!(error.contains("tent") && error.contains("--features gradient"), "{error}");
        assert_eq!(check_built("tent").is_ok(), cfg!(feature = "gradient"));
        assert!(needs_pictures("Tent").starts_with("tent changes the encoder") && is_method("Tent"));
        assert_eq!(also_lacking().is_empty(), cfg!(feature = "gradient"));
        assert!(also_lacking().is_empty() || also_lacking().contains(BUILD));
    }
}
