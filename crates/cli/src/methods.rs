//! `ultta methods`: lists what can adapt.

use std::io::Write;
use std::process::ExitCode;

use serde_json::json;
use ultta::{Footing, Grouping, Growth, Readout};

use crate::gradient;

/// List the methods
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print one JSON array instead
    #[arg(long)]
    json: bool,
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let mut cards = ultta::cards();
    let on_features = cards.len();
    cards.extend(gradient::cards());
    let needs_pictures = |i: usize| i >= on_features;
    if args.json {
        let cards: Vec<_> = cards
            .iter()
            .enumerate()
            .map(|(i, card)| {
                json!({
                    "name": card.name.replace('_', "-"),
                    "summary": card.summary,
                    "paper": card.paper,
                    "readout": match card.readout {
                        Readout::BeforeObserve => "before_observe",
                        Readout::AfterObserve => "after_observe",
                    },
                    "rows": match card.grouping {
                        Grouping::Independent => "independent",
                        Grouping::Joint => "joint",
                    },
                    "needs_horizon": card.horizon.is_some(),
                    "needs_labels": card.needs_labels,
                    "needs_views": card.needs_views,
                    "needs_pictures": needs_pictures(i),
                    "sees": match card.footing() {
                        Footing::Earlier => "earlier_samples",
                        Footing::Itself => "the_sample_itself",
                        Footing::Batch => "later_samples_of_its_batch",
                        Footing::Stream => "the_whole_stream",
                    },
                    "memory_grows_with": match card.growth {
                        Growth::Classes => "classes",
                        Growth::Squares => "classes_and_squared_dimensions",
                        Growth::Samples => "samples",
                    },
                    "tuned_per_dataset_in_its_paper": card.tuned,
                })
            })
            .collect();
        writeln!(out, "{}", serde_json::to_string(&cards)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (i, card) in cards.iter().enumerate() {
        writeln!(out, "{:<17} {}", card.name.replace('_', "-"), card.summary)?;
        writeln!(out, "{:<17} {}", "", card.paper)?;
        let readout = if card.teaches_first() {
            "a sample teaches before it is answered"
        } else {
            "a sample is answered before it teaches"
        };
        let rows = match (card.grouping, card.footing()) {
            (Grouping::Independent, _) => "any block size gives the same answers",
            (Grouping::Joint, Footing::Stream) => "answers the whole stream jointly, once it has ended",
            (Grouping::Joint, _) => "answers the rows of a block jointly: it sees later samples",
        };
        writeln!(out, "{:<17} {readout}; {rows}", "")?;
        let needs = [
            (card.horizon.is_some(), "the length of the stream"),
            (card.needs_labels, "labelled examples"),
            (card.needs_views, "extra views of each sample"),
            (needs_pictures(i), "pictures, and the model inside: `ultta eval --images DIR --model M`"),
        ];
        for (_, need) in needs.iter().filter(|(needed, _)| *needed) {
            writeln!(out, "{:<17} needs {need}", "")?;
        }
        if card.growth != Growth::Classes {
            writeln!(out, "{:<17} memory grows with {}", "", card.growth.title())?;
        }
        if card.tuned {
            writeln!(out, "{:<17} tuned per dataset in its paper; here one configuration for all", "")?;
        }
    }
    if cards.len() == on_features {
        let names = gradient::NAMES.join(", ");
        writeln!(out, "Not in this binary: {names}, which change the encoder; {}", gradient::BUILD)?;
    }
    Ok(ExitCode::SUCCESS)
}
