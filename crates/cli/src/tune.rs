//! `ultta tune`: settings learnt on labelled packs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ultta_eval::dataset::{self, Dataset};
use ultta_eval::method::Method;
use ultta_eval::plan::Plan;
use ultta_eval::tune::{LeaveOut, Objective, Tune};
use ultta_formats::shown;

use crate::eval::{Bars, HeadsArg, packs_below, protocols, seeds};
use crate::failure::usage;
use crate::output::Output;

/// Learn a method's settings from labelled packs, leaving whole datasets out in turn
///
/// Tries settings on every pack under every protocol: first drawn at random, then around the best. Each dataset (or
/// encoder) is left out in turn: settings fitted to the others are judged on it. The printed table shows the gain on what
/// was left out next to the gain where it was fitted; a large gap means over-fitting, and the gain to expect on a new domain
/// is the one on what was left out.
///
/// Writes a configuration for `--config` of run, eval and serve, whose comments say how it was made; the settings of each
/// fold go into a folder beside it (tuned.folds/), so that each figure can be made again. Every evaluation is noted in a
/// journal (tuned.journal): the same command after an interrupt goes on where it was.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A folder of labelled packs: every features.safetensors with a head.safetensors beside it; may be given several times
    #[arg(long, value_name = "DIR", required = true)]
    data: Vec<PathBuf>,

    /// Which heads of a pack count: `head.safetensors`, or every `head-*.safetensors` beside it, too
    #[arg(long, value_enum, default_value_t)]
    heads: HeadsArg,

    /// The method to tune; baselines are searched within their recommended ranges
    #[arg(long, value_name = "NAME", default_value = "ul-tta")]
    method: String,

    /// Settings to start from, as TOML; the method's own unless given
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Protocols to be good under, separated by commas, as for `ultta eval`
    #[arg(long, value_name = "NAMES", default_value = "harm", value_delimiter = ',')]
    protocols: Vec<String>,

    /// What to be good at
    #[arg(long, value_enum, default_value_t)]
    objective: ObjectiveArg,

    /// What is left out in turn
    #[arg(long, value_enum, default_value_t)]
    leave_out: LeaveOutArg,

    /// No new settings are tried after this time: 90s, 30m, 2h. Without it, --trials alone decides, and the same command
    /// gives the same file on every machine
    #[arg(long, value_name = "TIME", value_parser = time)]
    budget: Option<Duration>,

    /// Settings to try for each fold: half at random, half around the best
    #[arg(long, value_name = "N", default_value_t = 40)]
    trials: usize,

    /// Cut each stream to this many samples: faster, less exact
    #[arg(long, value_name = "N")]
    rows: Option<usize>,

    /// Seeds of the streams: numbers and ranges, separated by commas
    #[arg(long, value_name = "LIST", default_value = "0")]
    seeds: String,

    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Evaluations at a time; as many as there are cores unless given
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,

    /// The configuration to write
    #[arg(long, value_name = "FILE", default_value = "tuned.toml")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  ultta tune --data packs/ --budget 30m --out tuned.toml
  ultta tune --data packs/ --method tda --protocols iid,sorted --trials 30 --out tda.toml
  ultta tune --data packs/ --leave-out encoder --rows 1000 --out quick.toml
  ultta eval --data others/ --config tuned.toml --protocols harm";

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum ObjectiveArg {
    /// Gain in top-1 (points) and NLL (10 points a nat), minus what the worst tenth of the cells lose
    #[default]
    Risk,
    /// The same without the losses
    Mean,
    /// Gain in top-1
    Top1,
    /// Gain in NLL
    Nll,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum LeaveOutArg {
    /// All packs of a dataset
    #[default]
    Dataset,
    /// All packs of an encoder
    Encoder,
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let tune = tune(&args)?;
    for warning in tune.plan.datasets.iter().filter_map(Dataset::warning) {
        eprintln!("warning: {warning}");
    }
    let output = Output::create(&args.out)?;
    let bars = Bars::at_most(tune.most_evaluations()?, tune.budget);
    let tuned = tune.run(&bars);
    bars.clear();
    let tuned = tuned?;
    for reason in &tuned.skipped {
        eprintln!("warning: skipped: {reason}");
    }
    if tuned.other_build > 0 {
        eprintln!(
            "warning: {} evaluations of {} were made by another build of this program; if the method has changed since, remove \
             the journal and run this again",
            tuned.other_build,
            shown(&tune.journal)
        );
    }
    if tuned.folds.len() < 2 {
        eprintln!(
            "warning: nothing could be left out: the gain is on what was fitted, and says little about new domains"
        );
    }
    let made = made(&args);
    let mut output = output;
    output.write_all(tuned.to_toml(&made).as_bytes())?;
    output.commit()?;
    let folder = args.out.with_extension("folds");
    std::fs::create_dir_all(&folder)?;
    for fold in &tuned.folds {
        let plain = fold.name.as_deref().unwrap_or_default().replace(['/', '\\', ':'], "-");
        let mut file = Output::create(&folder.join(format!("without-{plain}.toml")))?;
        file.write_all(tuned.fold_toml(fold, &made).as_bytes())?;
        file.commit()?;
    }
    write!(std::io::stdout(), "{}", tuned.table())?;
    Ok(ExitCode::SUCCESS)
}

fn tune(args: &Args) -> anyhow::Result<Tune> {
    let mut datasets = Vec::new();
    for folder in &args.data {
        for (features, head) in packs_below(folder, args.heads.into())? {
            datasets.push(Dataset::open(&features, &head)?);
        }
    }
    if datasets.is_empty() {
        return usage(
            "no packs: --data expects folders with features.safetensors and head.safetensors beside it",
        );
    }
    if args.trials == 0 {
        return usage("--trials: expected at least 1, got 0");
    }
    if args.rows == Some(0) {
        return usage("--rows: expected at least 1, got 0");
    }
    dataset::name_all(&mut datasets)?;
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|source| ultta::Error::Io {
            doing: "opening",
            source,
            path: path.clone(),
        })
    };
    let file = args.config.as_ref().map(read).transpose()?;
    let seeds = match seeds(&args.seeds) {
        Ok(seeds) => seeds,
        Err(reason) => return usage(reason),
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    Ok(Tune {
        plan: Plan {
            datasets,
            strangers: Vec::new(),
            in_distribution: None,
            methods: vec![Method::resolve(&args.method, file.as_deref())?],
            protocols: protocols(&args.protocols)?,
            seeds,
            out: PathBuf::new(),
            jobs: args.jobs.unwrap_or(cores),
            patience: None,
        },
        objective: match args.objective {
            ObjectiveArg::Risk => Objective::Risk,
            ObjectiveArg::Mean => Objective::Mean,
            ObjectiveArg::Top1 => Objective::Top1,
            ObjectiveArg::Nll => Objective::Nll,
        },
        leave_out: match args.leave_out {
            LeaveOutArg::Dataset => LeaveOut::Dataset,
            LeaveOutArg::Encoder => LeaveOut::Encoder,
        },
        trials: args.trials,
        budget: args.budget,
        rows: args.rows,
        seed: args.seed,
        journal: args.out.with_extension("journal"),
    })
}

/// The command in full, whatever was left to its default.
fn made(args: &Args) -> String {
    let path = |p: &Path| shown(&p);
    let data: Vec<String> = args.data.iter().map(|folder| format!("--data {}", path(folder))).collect();
    let mut made = format!(
        "Made by ultta {}:\n  ultta tune {} --method {} --protocols {} --objective {} --leave-out {} --trials {} \
         --seeds {} --seed {}",
        env!("CARGO_PKG_VERSION"),
        data.join(" "),
        args.method,
        args.protocols.join(","),
        format!("{:?}", args.objective).to_lowercase(),
        format!("{:?}", args.leave_out).to_lowercase(),
        args.trials,
        args.seeds,
        args.seed
    );
    if matches!(args.heads, HeadsArg::All) {
        made.push_str(" --heads all");
    }
    made.extend(args.config.as_ref().map(|file| format!(" --config {}", path(file))));
    made.extend(args.rows.map(|rows| format!(" --rows {rows}")));
    made.extend(args.budget.map(|budget| format!(" --budget {}s", budget.as_secs())));
    made
}

/// `90s`, `30m`, `2h`.
fn time(text: &str) -> Result<Duration, String> {
    let bad = || format!("expected a time such as 90s, 30m or 2h, got {text:?}");
    let (number, seconds) = match text.char_indices().last() {
        Some((end, 's')) => (&text[..end], 1.0),
        Some((end, 'm')) => (&text[..end], 60.0),
        Some((end, 'h')) => (&text[..end], 3600.0),
        _ => return Err(bad()),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(time("30m"), Ok(Duration::from_secs(1800)));
        assert_eq!(time("1.5h"), Ok(Duration::from_secs(5400)));
        for bad in ["", "30", "m", "-1s", "x s", "µ"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
