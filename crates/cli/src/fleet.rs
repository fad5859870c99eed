//! `ultta fleet`: the groups of a running service.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};
use ultta::Error;
use ultta_formats::shown;

use crate::client::{Client, Service, print};
use crate::failure::usage;
use crate::output;

/// Look after a group of streams that teach each other the classes (`ultta serve --group`)
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    service: Service,

    /// The group; without it, the only one that the service has
    #[arg(long, value_name = "NAME", global = true)]
    group: Option<String>,

    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ultta fleet status
  ultta fleet drop box-3/cam-1
  ultta fleet snapshot --out group.safetensors";

#[derive(Subcommand, Debug)]
enum Command {
    /// Members: what each gave, when it was last heard of, how far the service's own are
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Take out what a member gave, everywhere
    Drop {
        /// Its name, or a server's for all of its streams
        member: String,
    },
    /// Have the members of the service keep what they gave where newcomers find it
    Snapshot {
        /// Write all that the group gave to this file, too
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::of(&args.service)?;
    let group = match args.group {
        Some(group) => group,
        None => only_group(&client.get("/v1/groups")?)?,
    };
    let path = format!("/v1/groups/{group}");
    match &args.command {
        Command::Status { json } => {
            let view = client.get(&path)?;
            if *json { print(&view) } else { for_people(&view, &mut stdout())? }
        }
        Command::Drop { member } => {
            let done = client.post(&format!("{path}/drop"), &json!({"member": member}))?;
            for name in done["members"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                writeln!(stdout(), "what {} gave is taken out", shown(name))?;
            }
        }
        Command::Snapshot { out } => {
            if let Some(file) = out {
                output::check_writable(file)?;
            }
            let done = client.post(&format!("{path}/snapshot"), &json!({}))?;
            let members = done["members"].as_array().map_or(0, Vec::len);
            writeln!(stdout(), "{members} members keep what they gave")?;
            if let Some(file) = out {
                let bytes = client.bytes(&format!("{path}/state"))?;
                ultta_formats::write_atomically(&output::target(file), &bytes).map_err(Error::from)?;
                writeln!(stdout(), "{}: {} bytes", shown(&file), bytes.len())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn only_group(list: &Value) -> anyhow::Result<String> {
    let names: Vec<&str> =
        list["groups"].as_array().into_iter().flatten().filter_map(|group| group["group"].as_str()).collect();
    match names[..] {
        [one] => Ok(one.to_string()),
        [] => {
            usage("the service has no stream in a group; create one with `ultta client create --group NAME`")
        }
        _ => usage(format!("the service has several groups: {}; give --group NAME", names.join(", "))),
    }
}

/// A line for the group, one for every member, one for every stream of the service, one for every refusal.
fn for_people(view: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    let text =
        |value: &Value| value.as_str().map_or_else(|| value.to_string(), |text| shown(text).to_string());
    let list = |key: &str| view[key].as_array().cloned().unwrap_or_default();
    let reached = match view["trouble"].as_str() {
        Some(trouble) => format!("apart: {}", shown(trouble)),
        None => "together".into(),
    };
    writeln!(out, "group {} over {}: {reached}", text(&view["group"]), text(&view["over"]))?;
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
    // A member that has given nothing for a while lags behind the group's clock.
    let clock = list("own").iter().filter_map(|own| own["clock"].as_f64()).fold(0.0, f64::max);
    for member in list("members") {
        let stamp = member["stamp"].as_f64().filter(|_| member["samples"] != 0);
        let lag = stamp.map(|stamp| format!(", {:.0} samples of the group ago", (clock - stamp).max(0.0)));
        let seen =
            member["last_seen"].as_f64().map(|t| format!(", last seen {:.0} s ago", (now - t).max(0.0)));
        let own = if member["own"] == true { " (here)" } else { "" };
        writeln!(
            out,
            "  {}{own}: {} samples, delta {}{}{}",
            text(&member["member"]),
            member["samples"],
            member["number"],
            lag.unwrap_or_default(),
            seen.unwrap_or_default()
        )?;
    }
    for own in list("own") {
        let aside = if own["set_aside"] == true { ", others set aside: they misled" } else { "" };
        writeln!(
            out,
            "stream {}: {} samples to give, {} messages behind, others weigh {:.0}, of which {:.0} count{aside}",
            text(&own["stream"]),
            own["waiting"],
            own["behind"],
            own["others"].as_f64().unwrap_or(0.0),
            own["counted"].as_f64().unwrap_or(0.0)
        )?;
    }
    for refused in list("refused") {
        writeln!(
            out,
            "refused {} × {}: {}",
            refused["times"],
            text(&refused["member"]),
            text(&refused["reason"])
        )?;
    }
    Ok(())
}
