//! `ultta models`: the models that are known by name.

use std::io::Write as _;
use std::process::ExitCode;

use ultta_encode::hub::Hub;
use ultta_encode::models::{DEFAULT, KNOWN, Reads};
use ultta_encode::tiny;
use ultta_formats::shown;

/// Parameters of the tiny model that are used: of its table of tokens, the rows of the words it knows.
const TINY_PARAMETERS: u64 = 200_000;

/// List known models, their sizes and which of them are in the cache
#[derive(clap::Args, Debug)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let hub = Hub::from_environment()?;
    if args.json {
        let shipped = tiny::config();
        let shipped = serde_json::json!({
            "name": tiny::NAME, "hub": null, "size": shipped.preprocess.size, "dim": shipped.dim,
            "parameters": TINY_PARAMETERS, "default": false, "cached": null, "built_in": true,
        });
        let mut models: Vec<serde_json::Value> = KNOWN
            .iter()
            .map(|m| {
                serde_json::json!({
                    "name": m.name, "hub": m.hub, "size": m.size, "dim": m.dim,
                    "parameters": m.parameters as u64 * 1_000_000, "default": m.hub == DEFAULT,
                    "reads": m.reads.word(), "advice": m.reads.advice(),
                    "cached": hub.cached(m.hub),
                })
            })
            .collect();
        models.push(shipped);
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&models)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        std::io::stdout(),
        "{:<20}{:<54}{:>6}{:>6}{:>9}{:>10}  {:<10}cached",
        "name",
        "on the hub",
        "input",
        "dim",
        "params",
        "float32",
        "loads"
    )?;
    for model in KNOWN {
        let cached = if hub.cached(model.hub).is_some() { "yes" } else { "no" };
        writeln!(
            std::io::stdout(),
            "{:<20}{:<54}{:>6}{:>6}{:>7} M{:>7} MB  {:<10}{cached}{}",
            model.name,
            model.hub,
            model.size,
            model.dim,
            model.parameters,
            model.parameters * 4,
            model.reads.word(),
            if model.hub == DEFAULT { "  (default)" } else { "" }
        )?;
    }
    let shipped = tiny::config();
    writeln!(
        std::io::stdout(),
        "{:<20}{:<54}{:>6}{:>6}{:>7} M{:>7} MB  in the program; knows ten drawn shapes",
        tiny::NAME,
        "–",
        shipped.preprocess.size,
        shipped.dim,
        "0.2",
        "0.6"
    )?;
    writeln!(std::io::stdout(), "\ncache: {}", shown(&hub.cache))?;
    for reads in [Reads::PicturesOnly, Reads::AddConfiguration, Reads::AsOnnx] {
        writeln!(std::io::stdout(), "{}: {}", reads.word(), reads.advice().unwrap_or_default())?;
    }
    writeln!(
        std::io::stdout(),
        "Any folder or hub model (owner/name) with CLIP or SigLIP weights of transformers or open_clip works, too."
    )?;
    Ok(ExitCode::SUCCESS)
}
