//! The demo's pictures: drawn shapes through the tiny encoder, zero-shot and adapted. Everything happens here and now: the
//! pictures are drawn, encoded and answered, nothing is downloaded.

use std::io::Write;
use std::path::Path;

use base64::Engine;
use serde_json::{Value, json};
use ultta::{Config, Input, Session};
use ultta_encode::decode::Picture;
use ultta_encode::preprocess::preprocess;
use ultta_encode::prompts::{Classes, Templates, build_head};
use ultta_encode::thumbnail::thumbnail;
use ultta_encode::tiny::shapes::{SHAPES, Style, draw, write};
use ultta_encode::{Clip, Encoder};
use ultta_eval::plot::{Page, Table};
use ultta_eval::random::Random;

/// A stretch of the stream of pictures: its name, how they are drawn, which shapes occur.
const PHASES: [(&str, Style, &[usize]); 3] = [
    ("as trained", Style::Source, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ("another style", Style::Shifted, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ("three shapes of it", Style::Shifted, &[2, 6, 8]),
];
const EACH: usize = 300;
/// Pictures of every shape that are written to a folder.
const WRITTEN: usize = 20;
/// Pictures shown of each kind.
const SHOWN: usize = 8;

/// A picture and what was answered.
struct Answered {
    picture: Picture,
    label: usize,
    zero_shot: usize,
    adapted: usize,
    prob: f32,
}

/// What came of the pictures.
pub struct Drawn {
    answers: Vec<Answered>,
}

impl Drawn {
    /// Draws, encodes and answers them.
    pub fn run(seed: u64) -> anyhow::Result<Self> {
        let encoder = Clip::tiny()?;
        let classes = Classes::from_list(&SHAPES.join(","))?;
        let head = build_head(&encoder, &classes, &Templates::named("photo")?, None, |_, _| ())?;
        let mut session = Session::new(head, &Config::named("ul-tta")?)?;
        let mut random = Random::new(seed);
        let mut answers = Vec::new();
        for (_, style, shapes) in PHASES {
            let mut one = |_| {
                let label = shapes[random.below(shapes.len())];
                (label, draw(label, style, || random.uniform()))
            };
            let drawn: Vec<(usize, Picture)> = (0..EACH).map(&mut one).collect();
            let mut pixels = Vec::new();
            for (_, picture) in &drawn {
                pixels.extend(preprocess(picture, encoder.preprocess())?);
            }
            let features = encoder.images(&pixels)?;
            let step = session.step(Input { keep_scores: false, ..Input::new(&features) })?;
            answers.extend(drawn.into_iter().zip(step.rows).map(|((label, picture), row)| Answered {
                picture,
                label,
                zero_shot: row.zero_shot.label,
                adapted: row.label,
                prob: row.prob,
            }));
        }
        Ok(Self { answers })
    }

    /// Writes pictures of the other style, a folder per shape; how many.
    pub fn write(folder: &Path, seed: u64) -> anyhow::Result<usize> {
        let mut random = Random::new(seed);
        write(folder, Style::Shifted, WRITTEN, || random.uniform())?;
        Ok(WRITTEN * SHAPES.len())
    }

    /// Per phase, and for all, its name and the shares of right answers: zero-shot, adapted.
    fn shares(&self) -> Vec<(&'static str, f64, f64)> {
        let share = |name, answers: &[Answered]| {
            let of = |right: &dyn Fn(&Answered) -> bool| {
                answers.iter().filter(|a| right(a)).count() as f64 / answers.len().max(1) as f64
            };
            (name, of(&|a| a.zero_shot == a.label), of(&|a| a.adapted == a.label))
        };
        let phases = PHASES.iter().zip(self.answers.chunks(EACH)).map(|(phase, part)| share(phase.0, part));
        phases.chain([share("all pictures", &self.answers)]).collect()
    }

    pub fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(
            out,
            "Drawn pictures: {} of ten shapes, through the tiny encoder of this program.",
            self.answers.len()
        )?;
        writeln!(out, "{:<20}{:>12}{:>12}", "top-1 in %", "zero-shot", "ul-tta")?;
        for (name, zero_shot, adapted) in self.shares() {
            writeln!(out, "{name:<20}{:>12.1}{:>12.1}", 100.0 * zero_shot, 100.0 * adapted)?;
        }
        Ok(())
    }

    pub fn json(&self) -> Value {
        let rows = self.shares().into_iter().map(|(name, zero_shot, adapted): (&str, f64, f64)| {
            json!({"name": name, "zero-shot": zero_shot, "ul-tta": adapted})
        });
        Value::Array(rows.collect())
    }

    /// The part of the page.
    pub fn show(&self, page: Page) -> anyhow::Result<Page> {
        let rows = self.shares().into_iter().map(|(name, zero_shot, adapted)| {
            [name.to_string(), format!("{:.1}", 100.0 * zero_shot), format!("{:.1}", 100.0 * adapted)].into()
        });
        let table = Table {
            caption: "Top-1 accuracy in %, 300 pictures a stretch, one after another".into(),
            header: ["stretch", "zero-shot", "ul-tta"].map(String::from).into(),
            rows: rows.collect(),
        };
        let page = page
            .section("Drawn pictures")
            .text(
                "Pictures of ten shapes, drawn a moment ago, went through the tiny encoder that ships with the program \
                 (0.2 million parameters, trained on dark shapes on light paper), were answered zero-shot, and answered \
                 again by the adapted head. Then the paper turned darker and rippled; then only triangles, stars and \
                 hexagons came.",
            )
            .table(&table);
        let mended = self.thumbnails(|a| a.zero_shot != a.label && a.adapted == a.label)?;
        let spoiled = self.thumbnails(|a| a.zero_shot == a.label && a.adapted != a.label)?;
        Ok(page
            .text("The first that adaptation mended:")
            .thumbnails(&mended)
            .text("The first that it spoiled:")
            .thumbnails(&spoiled))
    }

    fn thumbnails(&self, which: impl Fn(&Answered) -> bool) -> anyhow::Result<Vec<(String, String)>> {
        let show = |a: &Answered| {
            let (is, said) = (SHAPES[a.label], SHAPES[a.adapted]);
            let caption =
                format!("{is}: {said} {:.0} % (zero-shot: {})", 100.0 * a.prob, SHAPES[a.zero_shot]);
            Ok::<_, anyhow::Error>((
                base64::engine::general_purpose::STANDARD.encode(thumbnail(&a.picture)?),
                caption,
            ))
        };
        self.answers.iter().filter(|a| which(a)).take(SHOWN).map(show).collect()
    }
}
