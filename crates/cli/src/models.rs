//! `ultta models`: the models that are known by name.

use std::io::Write as _;
use std::process::ExitCode;

use ultta_encode::hub::Hub;
use ultta_encode::models::{DEFAULT, KNOWN};
use ultta_formats::shown;

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
        let models: Vec<serde_json::Value> = KNOWN
            .iter()
            .map(|m| {
                serde_json::json!({
                    "name": m.name, "hub": m.hub, "size": m.size, "dim": m.dim,
                    "parameters": m.parameters as u64 * 1_000_000, "default": m.hub == DEFAULT,
                    "cached": hub.cached(m.hub),
                })
            })
            .collect();
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&models)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        std::io::stdout(),
        "{:<20}{:<44}{:>6}{:>6}{:>9}{:>10}  cached",
        "name",
        "on the hub",
        "input",
        "dim",
        "params",
        "float32"
    )?;
    for model in KNOWN {
        let cached = if hub.cached(model.hub).is_some() { "yes" } else { "no" };
        writeln!(
            std::io::stdout(),
            "{:<20}{:<44}{:>6}{:>6}{:>7} M{:>7} MB  {cached}{}",
            model.name,
            model.hub,
            model.size,
            model.dim,
            model.parameters,
            model.parameters * 4,
            if model.hub == DEFAULT { "  (default)" } else { "" }
        )?;
    }
    writeln!(std::io::stdout(), "\ncache: {}", shown(&hub.cache))?;
    writeln!(
        std::io::stdout(),
        "Any folder or hub model (owner/name) with CLIP or SigLIP weights of transformers or open_clip works, too."
    )?;
    Ok(ExitCode::SUCCESS)
}
