//! The [`Card`] of a method: what others need to know about it.

use crate::{Result, State};

/// When a method's answer is taken, relative to the sample's own teaching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readout {
    /// Answer first, learn after.
    BeforeObserve,
    /// Learn first, then answer with what was learnt.
    AfterObserve,
}

/// What a batch means to a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// A batch is its rows one after another: any grouping gives the same answers, bit for bit.
    Independent,
    /// The rows of a batch are answered jointly: batch size is part of the method.
    Joint,
}

/// What a method must see before it answers a sample: methods are compared among equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Footing {
    /// The samples before it.
    Earlier,
    /// The samples before it, and the sample itself has taught.
    Itself,
    /// Later samples of its batch, too.
    Batch,
    /// The whole stream, too.
    Stream,
}

impl Footing {
    /// All, from the least seen to the most.
    pub const ALL: [Footing; 4] = [Footing::Earlier, Footing::Itself, Footing::Batch, Footing::Stream];

    /// What a sample's answer uses, as a heading.
    pub fn title(self) -> &'static str {
        match self {
            Footing::Earlier => "answers before the sample teaches",
            Footing::Itself => "the sample teaches before it is answered",
            Footing::Batch => "sees later samples of its batch",
            Footing::Stream => "sees the whole stream first",
        }
    }
}

/// What the memory of a method grows with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Classes times dimensions, C·d, or less, and a fixed part.
    Classes,
    /// Classes times squared dimensions, C·d².
    Squares,
    /// The samples seen: without end.
    Samples,
}

impl Growth {
    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Growth::Classes => "classes × dimensions",
            Growth::Squares => "classes × dimensions²",
            Growth::Samples => "samples seen, without end",
        }
    }
}

/// What others need to know about a method: readers, the docs table, `ultta methods`, the evaluation, the service
/// and the contract tests. Other code decides by these facts, not by a method's name; only what sets up a certain
/// comparison names its methods: the demo, the suites that rebuild published tables, the tuning's search spaces.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// Name as written in a configuration, `ul_tta`. The command line writes it with dashes.
    pub name: &'static str,
    /// One line: what it does.
    pub summary: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    /// Names of its presets, other than that of its plain name.
    pub presets: &'static [&'static str],
    /// Whether it is the frozen model's own answer: what every method is compared with.
    pub baseline: bool,
    /// Whether it is this project's own method: reports show it first.
    pub own: bool,
    /// Settings that only answers depend on: a state can be continued under other values of these.
    pub answer_keys: &'static [&'static str],
    /// Operations per sample beyond the zero-shot scores, from the classes and the dimension: at the settings of its
    /// paper, with full memories, a multiplication and an addition being two. `None` where they are not counted this way.
    pub operations: Option<fn(f64, f64) -> f64>,
    /// When the answer is taken.
    pub readout: Readout,
    /// Whether `predict` itself answers as if the sample had been learnt, and then forgets it: the sample takes part in its
    /// own answer, though the answer is taken before it is learnt.
    pub includes_itself: bool,
    /// What a batch means.
    pub grouping: Grouping,
    /// Rows of a step in its paper, where the rows of a step are answered jointly.
    pub batch: Option<usize>,
    /// Whether an evaluation runs it under the collapse guard. The guard is part of this project's own method;
    /// other methods are measured as published, unless a configuration asks for the guard.
    pub guarded: bool,
    /// The setting that holds the length of the stream, if the method must know it in advance.
    pub horizon: Option<&'static str>,
    /// The setting that switches updates by time on when it is above 0: then rows need arrival times.
    pub times: Option<&'static str>,
    /// Scenes that are answered zero-shot at first, and the setting with the number of scenes before the first one that
    /// teaches what its class looks like.
    pub warm_up: Option<(u64, &'static str)>,
    /// Settings that name a file.
    pub files: &'static [&'static str],
    /// Whether it is given labelled examples.
    pub needs_labels: bool,
    /// Whether it needs extra views of each sample.
    pub needs_views: bool,
    /// Whether it reads the extra views of a sample where there are any. Each is a further pass of the encoder.
    pub reads_views: bool,
    /// Whether its batch is the whole stream.
    pub transductive: bool,
    /// Whether its paper chose settings for each dataset. Here every method has one configuration for all.
    pub tuned: bool,
    /// What its memory grows with.
    pub growth: Growth,
    /// Bytes of memory that it comes to need, from the classes, the dimension and the samples of a stream. Only for methods
    /// that may need more than a machine has.
    pub bytes: Option<fn(usize, usize, u64) -> u64>,
    /// What a merged state keeps of two states beside the sums of their evidence: adds it to the third. States of other methods
    /// are left alone.
    pub merge: Option<fn(&State, &State, &mut State) -> Result<()>>,
}

impl Card {
    /// The card of a method that answers first, row by row, and needs nothing but features. Other cards name what
    /// differs.
    pub const PLAIN: Card = Card {
        name: "",
        summary: "",
        paper: "",
        presets: &[],
        baseline: false,
        own: false,
        answer_keys: &[],
        operations: None,
        readout: Readout::BeforeObserve,
        includes_itself: false,
        grouping: Grouping::Independent,
        batch: None,
        guarded: false,
        horizon: None,
        times: None,
        warm_up: None,
        files: &[],
        needs_labels: false,
        needs_views: false,
        reads_views: false,
        transductive: false,
        tuned: false,
        growth: Growth::Classes,
        bytes: None,
        merge: None,
    };

    /// Whether a sample takes part in its own answer as one that has taught.
    pub fn teaches_first(&self) -> bool {
        self.readout == Readout::AfterObserve || self.includes_itself
    }

    /// What it must see before it answers a sample.
    pub fn footing(&self) -> Footing {
        match (self.transductive, self.grouping, self.teaches_first()) {
            (true, _, _) => Footing::Stream,
            (false, Grouping::Joint, _) => Footing::Batch,
            (false, Grouping::Independent, true) => Footing::Itself,
            (false, Grouping::Independent, false) => Footing::Earlier,
        }
    }

    /// What else sets it apart from a method that needs nothing but features: for tables.
    pub fn remarks(&self) -> Vec<&'static str> {
        let all = [
            (self.horizon.is_some(), "needs the stream's length"),
            (self.needs_labels, "needs labels"),
            (self.needs_views, "needs views"),
            (self.growth == Growth::Squares, "memory grows with classes × dimensions²"),
            (self.growth == Growth::Samples, "memory grows with the stream"),
            (self.tuned, "tuned per dataset in its paper"),
        ];
        all.into_iter().filter(|(holds, _)| *holds).map(|(_, remark)| remark).collect()
    }
}
