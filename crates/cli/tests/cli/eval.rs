//! `ultta eval`, `ultta report` and `ultta suite` as a user meets them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;

const DIM: usize = 16;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn ultta(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_ultta")).args(args).current_dir(self.0.path()).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.ultta(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn fails(&self, args: &[&str]) -> String {
        let output = self.ultta(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// A pack of `n` rows around `classes` text rows.
    fn pack(&self, name: &str, classes: usize, n: usize, seed: u64, extra: &[(&str, &str)]) {
        let folder = self.path(name);
        std::fs::create_dir_all(&folder).unwrap();
        let text = unit(&noise(classes * DIM, 1));
        let spread = noise(n * DIM, seed);
        let labels: Vec<i64> = (0..n).map(|i| (i * classes / n) as i64).collect();
        let rows: Vec<f32> =
            (0..n * DIM).map(|i| text[labels[i / DIM] as usize * DIM + i % DIM] + 0.8 * spread[i]).collect();
        let names: Vec<String> = (0..classes).map(|c| format!("class {c}")).collect();
        let own: HashMap<String, String> =
            extra.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        write(&folder.join("features.safetensors"), &unit(&rows), n, Some(&labels), own, "features");
        let head: HashMap<String, String> = [
            ("classes", serde_json::to_string(&names).unwrap()),
            ("logit_scale", "30".into()),
            ("encoder", "toy".into()),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_string(), v))
        .collect();
        write(&folder.join("head.safetensors"), &text, classes, None, head, "prototypes");
    }
}

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut random = ultta_eval::random::Random::new(seed);
    (0..n).map(|_| random.normal() as f32 / (DIM as f32).sqrt()).collect()
}

fn unit(rows: &[f32]) -> Vec<f32> {
    ultta::Features::normalized(rows.to_vec(), DIM).unwrap().data().to_vec()
}

fn write(
    path: &Path,
    rows: &[f32],
    n: usize,
    labels: Option<&[i64]>,
    metadata: HashMap<String, String>,
    name: &str,
) {
    let bytes: Vec<u8> = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
    let label_bytes: Vec<u8> = labels.unwrap_or(&[]).iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut tensors = vec![(name, TensorView::new(Dtype::F32, vec![n, DIM], &bytes).unwrap())];
    if labels.is_some() {
        tensors.push(("labels", TensorView::new(Dtype::I64, vec![n], &label_bytes).unwrap()));
    }
    std::fs::write(path, safetensors::serialize(tensors, Some(metadata)).unwrap()).unwrap();
}

const A: [&str; 4] = ["--features", "a/features.safetensors", "--head", "a/head.safetensors"];

fn eval<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["eval"], &A[..], more].concat()
}

fn json(place: &Place, args: &[&str]) -> Value {
    serde_json::from_str(&place.ok(args)).unwrap()
}

#[test]
fn what_could_not_run_stands_in_its_cell_and_pictures_are_files() {
    let place = Place::new();
    place.pack("a", 3, 300, 2, &[]);
    place.pack("b", 3, 300, 3, &[]);
    std::fs::write(place.path("small.toml"), "[method.ecalp]\nmax_samples = 200\n").unwrap();
    let eval = |protocols: &str| {
        let args = ["eval", "--data", ".", "--methods", "zero-shot,ecalp,zero", "--config", "small.toml"];
        place.ok(&[&args[..], &["--protocols", protocols, "--out", "runs"]].concat())
    };
    let tables = eval("iid,iid+cycle:150");
    assert!(tables.contains("zero (views): 4 streams of a, b; the pack has no views"), "{tables}");
    assert!(tables.contains("ecalp (samples): 2 streams of a, b;"), "{tables}");
    let page = "page.html";
    place.ok(&["report", "runs", "--figures", "figures", "--html", page, "--latex", "t.tex"]);
    for name in ["gain.svg", "cost.svg"] {
        let svg = std::fs::read_to_string(place.path("figures").join(name)).unwrap();
        assert!(svg.starts_with("<svg xmlns=") && svg.contains("ecalp"), "{svg}");
    }
    let page = std::fs::read_to_string(place.path(page)).unwrap();
    assert!(page.contains("Without a run: ecalp (samples)") && page.contains("µs a sample"), "{page}");
    // The same from the folder; what ran since speaks for itself.
    assert!(place.ok(&["report", "runs", "--md"]).contains("ecalp (samples)"));
    std::fs::write(place.path("small.toml"), "").unwrap();
    eval("iid,iid+cycle:150");
    let tables = place.ok(&["report", "runs", "--md"]);
    assert!(!tables.contains("ecalp (samples)") && tables.contains("zero (views)"), "{tables}");
    let slow = ["eval", "--data", ".", "--methods", "ul-tta", "--patience", "0", "--out", "slow", "--json"];
    let document: Value = serde_json::from_str(&place.ok(&slow)).unwrap();
    assert_eq!(document["runs"].as_array().unwrap().len(), 0);
    assert!(document["skipped"][0].as_str().unwrap().contains("given up after"), "{document}");
    assert!(place.fails(&["eval", "--data", ".", "--patience=-1"]).contains("--patience"));
}

#[test]
fn one_document_with_every_run_and_its_zero_shot() {
    let place = Place::new();
    place.pack("a", 4, 300, 2, &[]);
    let methods = "zero-shot,ul-tta,ul-tta:paper,t3a,tip-adapter,freetta,tda,bca,onzeta,dmn,stata,lame,prior-only,temperature-only";
    let protocols = "file,iid,sorted,dirichlet:0.1,zipf,partial:0.5,few:2:32,iid+labels:0.5:20,iid+weak:0.5,iid+batch:1,iid+cycle:400,iid+compute:1000:2000";
    let document =
        json(&place, &eval(&["--methods", methods, "--protocols", protocols, "--seeds", "0-1", "--json"]));
    let runs = document["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 14 * 12 * 2);
    assert_eq!(document["summary"].as_array().unwrap().len(), 14 * 12);
    for run in runs {
        for field in ["top1", "ece", "nll", "brier"] {
            let (ours, frozen) = (run[field].as_f64().unwrap(), run["zero_shot"][field].as_f64().unwrap());
            assert!(ours.is_finite() && frozen.is_finite(), "{run}");
            assert!(field == "nll" || (0.0..=2.0).contains(&ours), "{run}");
        }
        assert_eq!(run["classes"], 4);
        if run["method"] == "zero-shot" && run["missed"] == 0 {
            assert_eq!(run["top1"], run["zero_shot"]["top1"]);
        }
        if run["protocol"] == "iid+cycle:400" {
            assert_eq!(run["n"], 400);
        }
        if run["protocol"] == "iid+compute:1000:2000" {
            // two milliseconds each at one per millisecond: about every other sample is missed
            assert!(run["missed"].as_u64().unwrap() > 100, "{run}");
        }
    }
    let labelled = |r: &&Value| r["protocol"] == "iid+labels:0.5:20" && r["method"] == "temperature-only";
    assert!(runs.iter().find(labelled).unwrap()["labels_used"].as_u64().unwrap() > 50);
}

#[test]
fn the_same_seeds_give_the_same_files_whatever_the_number_of_jobs() {
    let place = Place::new();
    place.pack("a", 4, 200, 2, &[("dataset", "a")]);
    for (out, jobs) in [("one", "1"), ("three", "3")] {
        place.ok(&eval(&["--methods", "ul-tta,tda", "--seeds", "0-2", "--out", out, "--jobs", jobs]));
    }
    for seed in 0..3 {
        for method in ["ul-tta", "tda"] {
            let read = |out: &str, file: &str| {
                std::fs::read_to_string(place.path(&format!("{out}/iid/a/{method}/seed-{seed}/{file}")))
                    .unwrap()
            };
            for file in ["summary.json", "windows.jsonl", "config.toml", "done"] {
                assert_eq!(read("one", file), read("three", file), "{method} {seed} {file}");
            }
        }
    }
}

#[test]
fn the_end_says_where_the_runs_are_and_empty_columns_are_left_out() {
    let place = Place::new();
    place.pack("pets24/toy", 4, 200, 2, &[]);
    let all = ["eval", "--data", "pets24", "--methods", "zero-shot,ul-tta", "--protocols", "shuffled"];
    let output = place.ultta(&all);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.ends_with("runs: runs/ (2); a page: ultta report runs --html report.html\n"), "{said}");
    assert!(place.path("runs/iid/pets24/toy/ul-tta/seed-0/done").is_file(), "two parts, and one name: iid");
    let tables = String::from_utf8(output.stdout).unwrap();
    assert!(
        tables.contains("Means over 1 seed,") && tables.contains("1 stream, 1 dataset under 1 protocol.")
    );
    assert!(
        tables.contains("| ECE change | NLL change |") && tables.contains("**iid — Top-1 (%)**"),
        "{tables}"
    );
    assert!(!tables.contains("best stream") && !tables.contains("after garbage"), "{tables}");
    assert!(tables.contains("| pets24/toy |"), "{tables}");
    place.ok(&["report", "runs", "--html", "r.html"]);
    let page = std::fs::read_to_string(place.path("r.html")).unwrap();
    assert!(
        page.contains("<details open><summary>Protocol iid")
            && page.contains("2 runs: 2 methods on 1 dataset.")
    );
}

#[test]
fn finished_runs_are_not_run_again_and_torn_ones_are() {
    let place = Place::new();
    place.pack("a", 4, 200, 2, &[("dataset", "a")]);
    let all = eval(&["--methods", "ul-tta,tda", "--seeds", "0-1", "--json"]);
    let first = json(&place, &all);
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let again = place.ultta(&all);
    assert!(!said(&again).contains("a page:"), "nothing but the document is asked for");
    assert!(said(&again).contains("4 of 4 runs were there already, in runs/"), "{}", said(&again));
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), first);
    // a run that was killed before it was whole: no `done`, half a summary
    let torn = place.path("runs/iid/a/tda/seed-1");
    std::fs::remove_file(torn.join("done")).unwrap();
    std::fs::write(torn.join("summary.json"), "{\"dataset\":").unwrap();
    let resumed = place.ultta(&all);
    assert!(said(&resumed).contains("3 of 4 runs were there already, in runs/"), "{}", said(&resumed));
    let resumed: Value = serde_json::from_slice(&resumed.stdout).unwrap();
    assert_eq!(resumed["runs"].as_array().unwrap().len(), 4, "nothing counted twice");
    assert_eq!(resumed["runs"][3]["top1"], first["runs"][3]["top1"], "nothing lost");
    // other settings are another run
    std::fs::write(place.path("c.toml"), "[method.tda]\ncapacity = 1\n[method.t3a]\nfilter_k = 5\n").unwrap();
    let other = place.ultta(&eval(&["--methods", "ul-tta,tda", "--seeds", "0-1", "--config", "c.toml"]));
    assert!(said(&other).contains("2 of 4 runs were there already, in runs/"), "{}", said(&other));
    // nothing is left aside
    let hidden = walk(&place.path("runs"))
        .into_iter()
        .filter(|p| p.file_name().unwrap().to_string_lossy().starts_with('.'));
    assert_eq!(hidden.count(), 0);
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().flatten().map(|e| e.path());
    entries.flat_map(|p| if p.is_dir() { walk(&p) } else { vec![p] }).collect()
}

#[test]
fn a_killed_evaluation_goes_on_where_it_was() {
    let place = Place::new();
    place.pack("a", 6, 3000, 2, &[]);
    let args = eval(&["--methods", "tda,onzeta,stata,ul-tta", "--seeds", "0-3", "--jobs", "2"]);
    let mut child =
        Command::new(env!("CARGO_BIN_EXE_ultta")).args(&args).current_dir(place.0.path()).spawn().unwrap();
    // kill it once the first runs are there
    for _ in 0..600 {
        let done = |p: &PathBuf| p.ends_with("done");
        if place.path("runs").is_dir() && walk(&place.path("runs")).iter().any(done) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    let document = json(&place, &eval(&["--methods", "tda,onzeta,stata,ul-tta", "--seeds", "0-3", "--json"]));
    assert_eq!(document["runs"].as_array().unwrap().len(), 16);
    let mut straight = eval(&["--methods", "tda,onzeta,stata,ul-tta", "--seeds", "0-3", "--json"]);
    straight.extend(["--out", "other"]);
    let strip = |mut d: Value| {
        d["runs"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .for_each(|r| drop(r.as_object_mut().unwrap().remove("timing")));
        d["runs"].clone()
    };
    assert_eq!(strip(document), strip(json(&place, &straight)));
}

#[test]
fn domains_in_a_row_and_strangers() {
    let place = Place::new();
    place.pack("a", 4, 300, 2, &[]);
    place.pack("b", 4, 200, 3, &[]);
    place.pack("c", 9, 200, 4, &[]);
    let both = ["eval", "--data", "a", "--data", "b", "--methods", "ul-tta", "--json"];
    let continual = json(&place, &[&both[..], &["--protocols", "continual"]].concat());
    let run = &continual["runs"][0];
    assert_eq!((run["dataset"].as_str(), run["n"].as_u64()), (Some("a+b"), Some(800)));
    let domains = run["course"]["domains"].as_array().unwrap();
    let names: Vec<&str> = domains.iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "a"]);
    assert_eq!(json(&place, &[&both[..], &["--protocols", "gradual"]].concat())["runs"][0]["n"], 500);
    let c = "c/features.safetensors,c/head.safetensors";
    let open = json(&place, &eval(&["--protocols", "iid+open:0.25", "--strangers", c, "--json"]));
    let run = &open["runs"][0];
    assert_eq!((run["n"].as_u64(), run["open"]["strangers"].as_u64()), (Some(300), Some(100)));
    assert!(run["open"]["energy"]["auroc"].as_f64().unwrap() > 0.5);
    // any pack as in-distribution: the stream of noise is less certain than the clean one
    let apart = json(&place, &eval(&["--in-distribution", "b/features.safetensors", "--json"]));
    let open = &apart["runs"][1]["open"];
    assert_eq!(open["strangers"], 300);
    assert!((0.0..=1.0).contains(&open["max_softmax"]["auroc"].as_f64().unwrap()));
    // one stream cannot run through other classes
    let error = place.fails(&["eval", "--data", "a", "--data", "c", "--protocols", "continual"]);
    assert!(error.contains("different classes"), "{error}");
}

#[test]
fn mistakes_are_named() {
    let place = Place::new();
    place.pack("a", 4, 100, 2, &[]);
    place.pack("other-encoder", 4, 100, 2, &[("encoder", "another"), ("dataset", "mine")]);
    place.pack("other-classes", 4, 100, 2, &[("classes", "[\"x\",\"y\",\"z\",\"w\"]")]);
    let error = place.fails(&eval(&["--methods", "tdb"]));
    assert!(error.contains("did you mean tda?"), "{error}");
    let error = place.fails(&eval(&["--protocols", "sortd"]));
    assert!(error.contains("did you mean sorted?"), "{error}");
    assert!(place.fails(&eval(&["--seeds", "a"])).contains("0-4"));
    assert!(place.fails(&["eval"]).contains("no packs"));
    for command in ["eval", "tune"] {
        let error = place.fails(&[command, "--data", "DATA"]);
        let told = "no folder DATA: give a folder of packs (features.safetensors beside head.safetensors)";
        assert!(error.contains(told), "{error}");
    }
    assert!(
        place
            .fails(&eval(&["--features", "a/features.safetensors", "--head", "a/head.safetensors"]))
            .contains("twice")
    );
    assert!(place.fails(&eval(&["--protocols", "iid+open:0.5"])).contains("strangers"));
    assert!(place.fails(&eval(&["--protocols", "continual"])).contains("two packs"));
    let error = place.fails(&eval(&["--methods", "tent"]));
    assert!(error.contains("give --images DIR (a folder per class) and --model M"), "{error}");
    assert_eq!(error.contains("--features gradient"), !cfg!(feature = "gradient"), "{error}");

    let rows = unit(&noise(4 * DIM, 5));
    write(&place.path("unlabelled.safetensors"), &rows, 4, None, HashMap::new(), "features");
    let error =
        place.fails(&["eval", "--features", "unlabelled.safetensors", "--head", "a/head.safetensors"]);
    assert!(error.contains("no labels"), "{error}");
    write(&place.path("far.safetensors"), &rows, 4, Some(&[0, 1, 2, 9]), HashMap::new(), "features");
    let error = place.fails(&["eval", "--features", "far.safetensors", "--head", "a/head.safetensors"]);
    assert!(error.contains("label 9"), "{error}");

    let other = |name: &str| format!("{name}/features.safetensors");
    let error = place.fails(&["eval", "--features", &other("other-classes"), "--head", "a/head.safetensors"]);
    assert!(error.contains("other classes"), "{error}");
    // another encoder's name is a warning; the pack's own name is used; a stream across encoders is refused
    let output =
        place.ultta(&["eval", "--features", &other("other-encoder"), "--head", "a/head.safetensors"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("warning: mine: the features were made by"));
    assert!(place.path("runs/iid/mine/ul-tta/seed-0/done").is_file());
    let error = place.fails(&["eval", "--data", "a", "--data", "other-encoder", "--protocols", "continual"]);
    assert!(error.contains("cannot cross encoders"), "{error}");
}

#[test]
fn a_head_of_another_dimension_is_an_error() {
    let place = Place::new();
    place.pack("a", 4, 100, 2, &[]);
    let head = ultta::Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["x", "y"], 10.0).unwrap();
    head.save(place.path("small.safetensors")).unwrap();
    let error = place.fails(&["eval", "--features", "a/features.safetensors", "--head", "small.safetensors"]);
    assert!(error.contains("the head expects 2, the features have 16"), "{error}");
}

#[test]
fn reports_stand_on_their_own() {
    let place = Place::new();
    place.pack("a", 4, 400, 2, &[]);
    place.pack("b", 4, 400, 3, &[]);
    place.ok(&[
        "eval",
        "--data",
        ".",
        "--methods",
        "zero-shot,ul-tta,tda,onzeta",
        "--protocols",
        "iid,sorted",
        "--seeds",
        "0-1",
    ]);
    std::fs::create_dir_all(place.path("runs/iid/broken")).unwrap();
    std::fs::write(place.path("runs/iid/broken/summary.json"), "{").unwrap();
    let output = place.ultta(&["report", "runs", "--html", "r.html", "--md", "r.md", "--latex", "r.tex"]);
    assert!(output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("left out"),
        "an unreadable run folder is named"
    );
    let html = std::fs::read_to_string(place.path("r.html")).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.contains("Left out"));
    for foreign in ["http://", "https://", "<script", "<link", "src=", "@import", "url("] {
        let harmless = html.matches("http://www.w3.org/").count();
        let found = html.matches(foreign).count() - if foreign == "http://" { harmless } else { 0 };
        assert_eq!(found, 0, "{foreign}");
    }
    let md = std::fs::read_to_string(place.path("r.md")).unwrap();
    assert!(md.contains("★") && md.contains("| ul-tta |"), "{md}");
    // Equals stand beside equals, in the summary and in the three tables of both protocols; who is alone is not the best.
    for (title, method) in
        [("The sample teaches before it is answered", "tda"), ("Given more than features: labels", "onzeta")]
    {
        let headings: Vec<usize> = md.match_indices(&format!("| *{title}")).map(|(at, _)| at).collect();
        assert_eq!(headings.len(), 1 + 2 * 3, "{title}: {md}");
        for at in headings {
            let row = md[at..].lines().nth(1).unwrap();
            assert!(row.starts_with(&format!("| {method} |")) && !row.contains('★'), "{row}");
        }
    }
    let tex = std::fs::read_to_string(place.path("r.tex")).unwrap();
    assert!(tex.contains("\\textbf") && tex.contains("\\bottomrule"));
    let heading = "{l}{\\textit{The sample teaches before it is answered}}";
    assert_eq!(tex.matches(heading).count(), 1 + 2 * 3, "{tex}");
    assert!(tex.find("\\begin{table*}") < tex.find("\\begin{table}"), "the ranking first: {tex}");
    assert!(place.fails(&["report", "a"]).contains("no runs"));
    assert!(place.fails(&["report", "nowhere"]).contains("no such file or folder: nowhere"));
}

/// Output that cannot be written is an error, a reader that has gone is not.
#[cfg(target_os = "linux")]
#[test]
fn a_full_or_closed_standard_output_is_no_panic() {
    let place = Place::new();
    place.pack("a", 4, 400, 2, &[("dataset", "a")]);
    let again = ["eval", "--data", ".", "--methods", "zero-shot", "--protocols", "iid", "--seeds", "0"];
    place.ok(&again);
    let json = [&again[..], &["--json"]].concat();
    let onto = |stdout: std::process::Stdio, args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ultta"));
        let output = command.args(args).current_dir(place.path("")).stdout(stdout).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for args in [&again[..], &json, &["report", "runs"], &["models"], &["suite", "paper", "datasets"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let (code, error) = onto(full.into(), args);
        assert_eq!(code, Some(1), "{args:?}: {error}");
        assert!(!error.contains("panicked") && error.contains("No space left"), "{args:?}: {error}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (_, error) = onto(writer.into(), args);
        assert!(!error.contains("panicked"), "{args:?}: {error}");
    }
    let windows = place.path("runs/iid/a/zero-shot/seed-0/windows.jsonl");
    std::fs::write(windows, "{").unwrap();
    let output = place.ultta(&["report", "runs", "--html", "r.html"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("windows.jsonl"), "a torn course is named");
}

#[test]
fn the_papers_tables_say_what_is_absent() {
    let place = Place::new();
    place.pack("data/pacs-art/toy", 7, 300, 2, &[]);
    place.pack("data/pacs-cartoon/toy", 7, 200, 3, &[]);
    let said = place.ok(&["suite", "paper", "datasets", "per-dataset"]);
    assert!(said.contains("| PACS | style / domain | 7 | 7 | 9991 | 500 in 2 packs |"), "{said}");
    assert!(
        said.contains("PACS · UL-TTA, default preset") && said.contains("absent: get DomainBed's"),
        "{said}"
    );
    assert!(place.fails(&["suite", "paper", "ablation"]).contains("did you mean ablations?"));
    let said = place.ok(&["suite", "paper", "domainnet", "ablations"]);
    assert!(said.contains("| Full") || said.contains("| full | 60.1 / 6.8 | absent"), "{said}");
}

#[test]
fn the_set_of_harm_runs_as_a_whole_and_is_reported() {
    let place = Place::new();
    place.pack("packs/a", 4, 200, 2, &[("dataset", "a"), ("encoder", "toy")]);
    place.pack("packs/b", 4, 200, 3, &[("dataset", "b"), ("encoder", "other")]);
    let args = ["eval", "--data", "packs", "--methods", "zero-shot,tda", "--protocols", "harm", "--json"];
    let document = json(&place, &args);
    // The only other pack is of another encoder: no strangers, and nothing is aborted.
    let skipped = document["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    assert!(skipped.iter().all(|s| s.as_str().unwrap().contains("not applicable")), "{skipped:?}");
    let runs = document["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 21 * 2 * 2);
    for run in runs {
        let protocol = run["protocol"].as_str().unwrap();
        assert_eq!(run["shots"].is_object(), protocol.contains("shots"), "{protocol}");
        assert_eq!(run["after_garbage"].is_object(), protocol.contains("garbage"), "{protocol}");
        if protocol.contains("garbage") {
            assert_eq!(
                (run["n"].as_u64(), run["after_garbage"]["garbage"].as_u64()),
                (Some(200), Some(2500))
            );
        }
    }
    place.ok(&["report", "runs", "--html", "report.html", "--md", "report.md"]);
    let html = std::fs::read_to_string(place.path("report.html")).unwrap();
    assert!(html.contains("class=\"heat\"") && !html.contains("Gain and harm: zero-shot"));
    assert!(
        html.contains("<details open><summary>Gain and harm: tda</summary>"),
        "the matrix is seen without a click"
    );
    assert_eq!(html.matches("tda · a · iid+shots:30<").count(), 1, "shots: a row per cell");
    let text = std::fs::read_to_string(place.path("report.md")).unwrap();
    assert!(
        text.contains("**tda — change in NLL (nats, below 0 is better)**")
            && text.contains("worst 300 after garbage")
    );
}

#[test]
fn settings_are_tuned_written_and_made_again() {
    let place = Place::new();
    for (name, seed) in [("a", 2), ("b", 3)] {
        place.pack(&format!("packs/{name}"), 4, 120, seed, &[("dataset", name), ("encoder", "toy")]);
    }
    let tune = |out: &str| {
        let args = ["tune", "--data", "packs", "--method", "tda", "--protocols", "iid,runs", "--trials", "4"];
        place.ok(&[&args[..], &["--out", out]].concat())
    };
    let table = tune("one.toml");
    assert!(table.contains("| all folds | left out | 4 |") && table.contains("without a"), "{table}");
    assert_eq!(tune("two.toml"), table);
    let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    assert_eq!(read("one.toml"), read("two.toml"));
    assert!(read("one.toml").contains("ultta tune --data packs --method tda"));
    // Again: everything is in the journal.
    let journal = read("one.journal");
    assert_eq!((tune("one.toml"), read("one.journal")), (table.clone(), journal));
    // A fold's settings are a configuration, and give the figure of what it left out.
    let config = "one.folds/without-a.toml";
    let args = [
        "eval",
        "--data",
        "packs/a",
        "--methods",
        "tda",
        "--protocols",
        "iid,runs",
        "--config",
        config,
        "--json",
    ];
    let document = json(&place, &args);
    let runs = document["runs"].as_array().unwrap();
    let gain = |run: &serde_json::Value| {
        100.0 * (run["top1"].as_f64().unwrap() - run["zero_shot"]["top1"].as_f64().unwrap())
    };
    let mean = runs.iter().map(gain).sum::<f64>() / 2.0;
    let told = format!("| without a | left out | 2 | {mean:+.2} |");
    assert!(runs.len() == 2 && table.contains(&told), "{told}\n{table}");
    assert!(
        place.fails(&["tune", "--data", "packs", "--method", "zero-shot"]).contains("no settings to tune")
    );
    assert!(place.fails(&["tune", "--data", "packs", "--budget", "soon"]).contains("30m"));
    assert!(place.fails(&["tune", "--data", "packs", "--rows", "0"]).contains("at least 1"));
    let alone = place.fails(&["tune", "--data", "packs/a", "--protocols", "iid+open:0.3"]);
    assert!(alone.contains("nothing to evaluate") && alone.contains("no strangers"), "{alone}");
}

#[test]
fn figures_of_cut_streams_are_made_again_by_tune() {
    let place = Place::new();
    for (name, seed) in [("a", 2), ("b", 3)] {
        place.pack(&format!("packs/{name}"), 4, 120, seed, &[("dataset", name), ("encoder", "toy")]);
    }
    let tune = |more: &[&str]| {
        let args = ["tune", "--data", "packs", "--method", "tda", "--protocols", "iid,runs", "--rows", "70"];
        let table = place.ok(&[&args[..], more].concat());
        let row = table.lines().find(|line| line.starts_with("| without a | left out |")).unwrap();
        row.split(" | ").take(7).collect::<Vec<_>>().join(" | ")
    };
    let told = tune(&["--trials", "6", "--out", "cut.toml"]);
    let again = tune(&["--trials", "1", "--config", "cut.folds/without-a.toml", "--out", "again.toml"]);
    assert_eq!(told, again);
}

#[test]
fn packs_without_labels_are_not_tuned_on() {
    let place = Place::new();
    place.pack("packs/a", 4, 50, 2, &[]);
    let rows = unit(&noise(50 * DIM, 3));
    write(&place.path("packs/a/features.safetensors"), &rows, 50, None, HashMap::new(), "features");
    assert!(place.fails(&["tune", "--data", "packs"]).contains("no labels"));
}
