//! `ultta demo`: a simulated stream whose domain and class mix change, and what adaptation makes of it; then drawn
//! pictures through the tiny encoder.

mod drawn;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};
use ultta::simulate::{Domain, Mix, Simulator, SimulatorConfig};
use ultta::{Config, Health, Input, Session, Standing};
use ultta_eval::metrics::{Accumulator, Metrics};
use ultta_eval::plot::{Bars, LineChart, Page, Reliability, ReliabilityBin, Series, Table};
use ultta_formats::shown;

use drawn::Drawn;
use ultta_encode::tiny::shapes::SHAPES;

use crate::failure::usage;
use crate::output::Output;
use crate::terminal_plot::TerminalPlot;

/// Show adaptation on a simulated stream and on drawn pictures; no data needed
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where the report goes, one self-contained page; `-` prints it, and nothing else
    #[arg(long, value_name = "PATH", default_value = "ultta-demo.html")]
    html: PathBuf,
    /// Only draw: write pictures into this folder, one folder per shape, for `ultta classify --model tiny`
    #[arg(long, value_name = "DIR", conflicts_with = "html")]
    pictures: Option<PathBuf>,
    /// Seed of the simulated stream and of the pictures
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print one JSON object instead of tables and plots
    #[arg(long)]
    json: bool,
}

/// What is run side by side. The first is the baseline.
const METHODS: [&str; 3] = ["zero-shot", "ul-tta:paper", "ul-tta"];
/// What they are, and what is counted.
const LEGEND: [&str; 2] = [
    "zero-shot: the frozen model; ul-tta: what ultta does unless told otherwise; ul-tta:paper: the published algorithm.",
    "top-1: right answers; ECE: how far stated probabilities are from the share of right answers (0 is best).",
];
/// Their colours in the report, and their marks and colours in the terminal.
const COLOURS: [usize; 3] = [0, 2, 1];
const MARKS: [(char, &str); 3] = [('·', "90"), ('×', "33"), ('●', "36")];

const CLASSES: usize = 200;
const BLOCK: usize = ultta::internal::PASS_ROWS;
/// Curves show the mean over this many answers.
const WINDOW: usize = 1024;

/// A stretch of the stream.
struct Phase {
    name: &'static str,
    about: &'static str,
    samples: usize,
    domain: Domain,
    mix: Mix,
}

fn phases() -> [Phase; 3] {
    let shifted = Domain::shifted(1);
    let mix = Mix { id: 1, imbalance: 1.0, occurring: 0.4, run_length: 4.0, strangers: 0.0 };
    [
        Phase {
            name: "home domain",
            about: "the images that the head was made for, all classes equally often",
            samples: 4096,
            domain: Domain::default(),
            mix: Mix::default(),
        },
        Phase {
            name: "domain shift",
            about: "the images change, as from photographs to drawings; same classes, equally often",
            samples: 4096,
            domain: shifted.clone(),
            mix: Mix::default(),
        },
        Phase {
            name: "class-mix shift",
            about: "still the new domain; 40\u{a0}% of the classes occur, some much more often, in short runs",
            samples: 4096,
            domain: shifted,
            mix,
        },
    ]
}

/// One method's way through the stream.
struct Track {
    name: &'static str,
    /// Probability of every answer, and whether it was right.
    answers: Vec<(f64, bool)>,
    /// Health after every block.
    health: Vec<Health>,
}

/// All that the demo shows.
struct Demo {
    simulator: SimulatorConfig,
    phases: [Phase; 3],
    tracks: Vec<Track>,
    drawn: Drawn,
    seconds: f64,
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.pictures {
        return draw(folder, args.seed, args.json);
    }
    let only_page = args.html == Path::new("-");
    if only_page && args.json {
        return usage("--json and --html - both print on standard output; give the page a file");
    }
    let mut html = Output::create(&args.html)?;
    let demo = Demo::run(args.seed)?;
    html.write_all(demo.page(args.seed)?.as_bytes())
        .map_err(anyhow::Error::from)
        .and_then(|()| html.commit())
        .with_context(|| format!("cannot write {}", shown(&args.html)))?;

    if only_page {
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", demo.json(args.seed, &args.html))?;
    } else {
        let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        demo.print(&mut out, colour)?;
        writeln!(out, "\nThe same on files:")?;
        writeln!(out, "  ultta demo --pictures shapes")?;
        writeln!(out, "  {}", classify("shapes"))?;
        writeln!(out, "Report: {}", shown(&args.html))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws pictures into a folder, and says what to do with them.
fn draw(folder: &Path, seed: u64, json: bool) -> anyhow::Result<ExitCode> {
    let pictures = Drawn::write(folder, seed)?;
    let mut out = std::io::stdout().lock();
    let name = shown(&folder);
    let name = if name == "/" { &name } else { name.trim_end_matches('/') };
    if json {
        let value = json!({ "pictures": pictures, "folders": SHAPES.len(), "folder": folder });
        writeln!(out, "{value}")?;
    } else {
        writeln!(out, "{pictures} pictures in {name}/ ({} folders, one per shape). Next:", SHAPES.len())?;
        writeln!(out, "  {}", classify(name))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The command that classifies drawn pictures.
fn classify(folder: &str) -> String {
    let folder = if folder.contains(char::is_whitespace) { format!("'{folder}'") } else { folder.into() };
    format!("ultta classify {folder} --model tiny --labels {}", SHAPES.join(","))
}

impl Demo {
    /// Sends one simulated stream through all methods.
    fn run(seed: u64) -> anyhow::Result<Self> {
        let config = SimulatorConfig { classes: CLASSES, seed, ..Default::default() };
        let mut simulator = Simulator::new(&config)?;
        let mut sessions = Vec::new();
        for name in METHODS {
            sessions.push(Session::new(simulator.head().clone(), &Config::named(name)?)?);
        }
        let mut tracks = METHODS
            .map(|name| Track { name, answers: Vec::new(), health: Vec::new() })
            .into_iter()
            .collect::<Vec<_>>();
        let phases = phases();
        let start = Instant::now();
        for phase in &phases {
            simulator.set_domain(&phase.domain)?;
            simulator.set_mix(&phase.mix)?;
            for _ in 0..phase.samples / BLOCK {
                let (features, labels) = simulator.next_block(BLOCK);
                for (session, track) in sessions.iter_mut().zip(&mut tracks) {
                    let step = session.step(Input { keep_scores: false, ..Input::new(&features) })?;
                    let answers = step.rows.iter().zip(&labels);
                    track.answers.extend(answers.map(|(r, &l)| (f64::from(r.prob), r.label == l as usize)));
                    track.health.push(step.health);
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Self { simulator: config, phases, tracks, drawn: Drawn::run(seed)?, seconds })
    }

    /// First and one-past-last sample of every phase.
    fn spans(&self) -> Vec<(usize, usize)> {
        let mut from = 0;
        self.phases
            .iter()
            .map(|phase| {
                from += phase.samples;
                (from - phase.samples, from)
            })
            .collect()
    }

    /// The whole stream as one more span, with the phases' names.
    fn rows(&self) -> Vec<(&'static str, (usize, usize))> {
        let mut rows: Vec<_> = self.phases.iter().map(|p| p.name).zip(self.spans()).collect();
        rows.push(("whole stream", (0, self.tracks[0].answers.len())));
        rows
    }

    fn what(&self) -> String {
        format!(
            "{} classes, {} dimensions, {} samples with the geometry of CLIP ViT-B/32 features \
             (modality gap, class spread, zero-shot bias)",
            self.simulator.classes,
            self.simulator.dim,
            self.tracks[0].answers.len()
        )
    }

    /// What the collapse guard did, in words; empty where it stayed silent.
    fn guard_events(&self) -> Vec<String> {
        let mut events = Vec::new();
        for track in &self.tracks {
            let mut fired = 0;
            for health in &track.health {
                if health.guard_fired > fired {
                    fired = health.guard_fired;
                    let then = match health.standing {
                        Standing::ZeroShot => "answers zero-shot for a while",
                        _ => "goes back to its last healthy state",
                    };
                    let at = health.seen;
                    events
                        .push(format!("{}: the collapse guard fired by sample {at}; it {then}", track.name));
                }
            }
        }
        events
    }

    fn print(&self, out: &mut impl Write, colour: bool) -> anyhow::Result<()> {
        writeln!(out, "Simulated data: {}.", self.what())?;
        writeln!(out, "Nothing here is a measurement on real images; yours go through `ultta classify`.")?;
        writeln!(out)?;
        for (i, phase) in self.phases.iter().enumerate() {
            writeln!(out, "  {}. {:<16} {}", i + 1, phase.name, phase.about)?;
        }
        writeln!(out)?;
        write!(out, "{:<18}", "top-1 / ECE in %")?;
        for track in &self.tracks {
            write!(out, "{:>18}", track.name)?;
        }
        writeln!(out)?;
        for (name, span) in self.rows() {
            write!(out, "{name:<18}")?;
            for track in &self.tracks {
                write!(out, "{:>18}", track.metrics_text(span))?;
            }
            writeln!(out)?;
        }
        for line in LEGEND {
            writeln!(out, "{line}")?;
        }
        for (title, curve) in [
            ("Top-1 over the stream (%)", Track::top1_curve as fn(&Track) -> Vec<(f64, f64)>),
            ("Calibration error over the stream (ECE, %)", Track::ece_curve),
        ] {
            let mut plot = TerminalPlot::new(title);
            for (track, (mark, ansi)) in self.tracks.iter().zip(MARKS) {
                plot.series(track.name, curve(track), mark, ansi);
            }
            for (phase, (from, _)) in self.phases.iter().zip(self.spans()) {
                plot.section(from as f64, phase.name);
            }
            writeln!(out)?;
            write!(out, "{}", plot.draw(colour))?;
        }
        writeln!(out)?;
        for event in self.guard_events() {
            writeln!(out, "{event}")?;
        }
        let rate = (METHODS.len() * self.tracks[0].answers.len()) as f64 / self.seconds;
        writeln!(out, "{:.1} s, {rate:.0} answers per second, simulation included.", self.seconds)?;
        writeln!(out)?;
        self.drawn.print(out)?;
        Ok(())
    }

    fn json(&self, seed: u64, html: &Path) -> Value {
        let phases: Vec<Value> = self
            .rows()
            .into_iter()
            .map(|(name, (from, to))| {
                let methods: serde_json::Map<String, Value> =
                    self.tracks.iter().map(|t| (t.name.to_string(), json!(t.metrics((from, to))))).collect();
                json!({ "name": name, "from": from, "to": to, "methods": methods })
            })
            .collect();
        let health: serde_json::Map<String, Value> =
            self.tracks.iter().map(|t| (t.name.to_string(), json!(t.health.last()))).collect();
        json!({
            "simulated": true,
            "seed": seed,
            "classes": self.simulator.classes,
            "dim": self.simulator.dim,
            "n": self.tracks[0].answers.len(),
            "phases": phases,
            "health": health,
            "guard": self.guard_events(),
            "drawn_pictures": self.drawn.json(),
            "seconds": self.seconds,
            "html": html,
        })
    }

    fn page(&self, seed: u64) -> anyhow::Result<String> {
        let header = ["phase"].into_iter().chain(METHODS).map(String::from).collect();
        let rows = self.rows().into_iter().map(|(name, span)| {
            let cells = self.tracks.iter().map(|track| track.metrics_text(span));
            [name.to_string()].into_iter().chain(cells).collect()
        });
        let table = Table {
            caption: "Top-1 accuracy / 15-bin expected calibration error, in %".into(),
            header,
            rows: rows.collect(),
        };
        let whole = (0, self.tracks[0].answers.len());
        let (frozen, adapted) =
            (self.tracks[0].metrics(whole), self.tracks[METHODS.len() - 1].metrics(whole));
        let change = |after: f64, before: f64| format!("{:+.1}", 100.0 * (after - before));
        let from_to = |what: &str, before: f64, after: f64| {
            format!(
                "points of {what} over the whole stream: {:.1} % to {:.1} %",
                100.0 * before,
                100.0 * after
            )
        };
        let mut page = Page::new("ultta demo")
            .lead(
                "A frozen zero-shot classifier meets a stream that changes under its hands. Each answer is given \
                 before the sample teaches; nobody tells the labels.",
            )
            .headline(&[
                (change(adapted.top1, frozen.top1), from_to("top-1", frozen.top1, adapted.top1)),
                (change(adapted.ece, frozen.ece), from_to("calibration error", frozen.ece, adapted.ece)),
            ])
            .note(&format!(
                "The data are simulated: {}. They show how the methods behave, not how well they do on real images.",
                self.what()
            ));
        for (i, phase) in self.phases.iter().enumerate() {
            page = page.text(&format!("{}. {}: {}.", i + 1, phase.name, phase.about));
        }
        page = page.section("Results").table(&table).text(&LEGEND.join(" "));
        for event in self.guard_events() {
            page = page.text(&format!("{event}."));
        }
        page = page.figures(vec![
            self.chart("Top-1 over the stream", "top-1 (%)", Track::top1_curve),
            self.chart("Calibration error over the stream", "ECE (%)", Track::ece_curve),
            self.gains(),
            self.reliability(),
        ])
        .text(&format!("Curves show the mean over the last {WINDOW} answers of a phase; the dots of the reliability diagram grow with the share of answers."))
        .section("What can be seen without labels")
        .text("A session reports its health with every step: how far the class prior has moved, and on how many classes the answers fall.")
        .figures(vec![
            self.chart("Class prior: KL from uniform", "nats", |t| t.health_curve(|h| h.prior_kl)),
            self.chart("Classes that the answers fall on", "effective number", |t| {
                t.health_curve(|h| h.effective_classes)
            }),
        ]);
        let again = format!("ultta demo --seed {seed}");
        Ok(self.drawn.show(page)?.section("Make it again").code(&again).to_html())
    }

    fn chart(&self, title: &str, label: &str, curve: impl Fn(&Track) -> Vec<(f64, f64)>) -> String {
        let mut chart = LineChart::new(title, "sample", label);
        for (track, colour) in self.tracks.iter().zip(COLOURS) {
            chart = chart.series(Series::new(track.name, curve(track)).colour(colour));
        }
        for (phase, (from, to)) in self.phases.iter().zip(self.spans()) {
            chart = chart.span(from as f64, to as f64, phase.name);
        }
        chart.to_svg()
    }

    fn gains(&self) -> String {
        let rows = self.rows();
        let names = rows.iter().map(|r| r.0.to_string()).collect();
        let mut bars = Bars::new("Gain over zero-shot", "points of top-1", names).signed(1);
        for (track, colour) in self.tracks.iter().zip(COLOURS).skip(1) {
            let gain = |span| 100.0 * (track.metrics(span).top1 - self.tracks[0].metrics(span).top1);
            bars = bars.group(track.name, rows.iter().map(|r| gain(r.1)).collect(), vec![], colour);
        }
        bars.to_svg()
    }

    fn reliability(&self) -> String {
        let mut diagram = Reliability::new("Reliability over the whole stream");
        for (track, colour) in self.tracks.iter().zip(COLOURS) {
            diagram = diagram.series(track.name, &track.bins(10), colour);
        }
        diagram.to_svg()
    }
}

impl Track {
    fn metrics(&self, (from, to): (usize, usize)) -> Metrics {
        let mut sum = Accumulator::default();
        self.answers[from..to].iter().for_each(|&(prob, right)| sum.push(prob, right));
        sum.metrics().unwrap_or(Metrics { top1: 0.0, ece: 0.0 })
    }

    /// Top-1 and ECE in per cent.
    fn metrics_text(&self, span: (usize, usize)) -> String {
        let m = self.metrics(span);
        format!("{:.1} / {:.1}", 100.0 * m.top1, 100.0 * m.ece)
    }

    /// A metric over the last answers, every block; a window does not reach back into another phase.
    fn curve(&self, metric: impl Fn(Metrics) -> f64) -> Vec<(f64, f64)> {
        let mut points = Vec::new();
        let mut start = 0;
        for phase in phases() {
            for to in (start + WINDOW / 2..=start + phase.samples).step_by(BLOCK) {
                let from = to.saturating_sub(WINDOW).max(start);
                points.push((to as f64, 100.0 * metric(self.metrics((from, to)))));
            }
            start += phase.samples;
            points.push((start as f64, f64::NAN));
        }
        points
    }

    fn top1_curve(&self) -> Vec<(f64, f64)> {
        self.curve(|m| m.top1)
    }

    fn ece_curve(&self) -> Vec<(f64, f64)> {
        self.curve(|m| m.ece)
    }

    fn health_curve(&self, figure: impl Fn(&Health) -> f64) -> Vec<(f64, f64)> {
        self.health.iter().map(|h| (h.seen as f64, figure(h))).collect()
    }

    /// Bins of a reliability diagram.
    fn bins(&self, n: usize) -> Vec<ReliabilityBin> {
        let mut bins = vec![(0.0, 0.0, 0.0); n];
        for &(prob, right) in &self.answers {
            let bin = &mut bins[((prob * n as f64) as usize).min(n - 1)];
            *bin = (bin.0 + 1.0, bin.1 + prob, bin.2 + f64::from(u8::from(right)));
        }
        let total = self.answers.len().max(1) as f64;
        bins.into_iter()
            .filter(|bin| bin.0 > 0.0)
            .map(|(n, prob, right)| ReliabilityBin {
                confidence: prob / n,
                accuracy: right / n,
                share: n / total,
                n: n as usize,
            })
            .collect()
    }
}
