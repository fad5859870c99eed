//! `ultta demo` from end to end.

use ultta_encode::tiny::shapes::SHAPES;

use crate::support::{command, outcome, root, ultta};

#[test]
fn the_demo_runs_and_reports() {
    let folder = tempfile::tempdir().unwrap();
    let done = outcome(command(&["demo"]).current_dir(&folder)).success();
    let pictures =
        ["Drawn pictures: 900 of ten shapes", "another style", "ultta classify shapes --model tiny"];
    for word in ["Simulated data", "home domain", "domain shift", "class-mix shift", "ul-tta:paper"]
        .into_iter()
        .chain(pictures)
    {
        assert!(done.stdout.contains(word), "{word:?} is missing: {}", done.stdout);
    }
    assert!(!done.stdout.contains('\x1b'), "no colour when not on a terminal");

    let html = std::fs::read_to_string(folder.path().join("ultta-demo.html")).unwrap();
    assert!(html.contains("The data are simulated") && html.matches("<svg").count() >= 4);
    for reference in ["http:", "https:", "url(", "@import", "<script", "<link"] {
        assert!(!html.contains(reference), "the report refers to the outside: {reference}");
    }
    // Pictures are in the page, links lead to its own sections.
    for (any, own) in [("src=", "src=\"data:image/jpeg;base64,"), ("href=", "href=\"#")] {
        assert_eq!(html.matches(any).count(), html.matches(own).count(), "{any} refers to the outside");
    }
    assert!(html.contains("Drawn pictures") && html.matches("<img").count() >= 8);
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing but the report is left behind");
}

#[test]
fn json_tells_the_same_for_the_same_seed_and_adaptation_helps() {
    let folder = tempfile::tempdir().unwrap();
    let html = folder.path().join("report.html");
    let arguments = ["demo", "--json", "--seed", "3", "--html", html.to_str().unwrap()];
    let [first, second] = [0, 1].map(|_| ultta(&arguments).success().json());
    assert_eq!(first["phases"], second["phases"]);
    assert_eq!(first["simulated"], true);
    assert!(html.exists());
    for phase in first["phases"].as_array().unwrap() {
        let top1 = |method: &str| phase["methods"][method]["top1"].as_f64().unwrap();
        assert!(top1("ul-tta") > top1("zero-shot"), "{phase}");
        assert!((0.4..0.8).contains(&top1("zero-shot")), "{phase}");
    }
}

#[test]
fn the_readme_has_the_figures_of_the_demo() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let rows = readme.lines().skip_while(|line| !line.starts_with("| simulated (`ultta demo`)")).take(3);
    let cells = rows.flat_map(|row| row.split('|').skip(2));
    let shown: Vec<f64> = cells.filter_map(|figure| figure.trim().parse().ok()).collect();
    let folder = tempfile::tempdir().unwrap();
    let demo = outcome(command(&["demo", "--json"]).current_dir(&folder)).success().json();
    let phases = demo["phases"].as_array().unwrap().iter().take(3);
    let top1 = |phase: &serde_json::Value, method: &str| phase["methods"][method]["top1"].as_f64().unwrap();
    let made: Vec<f64> =
        phases.flat_map(|p| [100.0 * top1(p, "zero-shot"), 100.0 * top1(p, "ul-tta")]).collect();
    let same = shown.len() == 6 && shown.iter().zip(&made).all(|(s, m)| (s - m).abs() < 0.15);
    assert!(same, "README {shown:?}, demo {made:?}; docs/picture.py draws docs/demo.svg anew");
    let ece = |phase: usize, method: &str| {
        format!("{:.1}", 100.0 * demo["phases"][phase]["methods"][method]["ece"].as_f64().unwrap())
    };
    let told = format!(
        "rises from {} to {} %, after the pictures changed it falls from {} to {} %, and where the mix changes it rises from {} to {} %",
        ece(0, "zero-shot"),
        ece(0, "ul-tta"),
        ece(1, "zero-shot"),
        ece(1, "ul-tta"),
        ece(2, "zero-shot"),
        ece(2, "ul-tta")
    );
    assert!(readme.contains(&told), "README: {told}");
}

#[test]
fn drawn_pictures_go_through_encoder_and_adaptation() {
    let folder = tempfile::tempdir().unwrap();
    let demo = outcome(command(&["demo", "--json"]).current_dir(&folder)).success().json();
    let share = |phase: &str, method: &str| {
        let phases = demo["drawn_pictures"].as_array().unwrap();
        phases.iter().find(|p| p["name"] == phase).unwrap()[method].as_f64().unwrap()
    };
    assert!(share("as trained", "zero-shot") > 0.85 && share("as trained", "ul-tta") > 0.85, "{demo}");
    assert!(share("another style", "zero-shot") < share("as trained", "zero-shot") - 0.1, "{demo}");
    assert!(share("all pictures", "ul-tta") > share("all pictures", "zero-shot"), "{demo}");
    // The pictures on disk, by the command that the demo prints.
    let place = tempfile::tempdir().unwrap();
    let drawn = outcome(command(&["demo", "--pictures", "shapes/"]).current_dir(&place)).success().stdout;
    let next = format!("  ultta classify shapes --model tiny --labels {}", SHAPES.join(","));
    let told = ["200 pictures in shapes/ (10 folders, one per shape). Next:", &next];
    assert_eq!(drawn.lines().collect::<Vec<_>>(), told);
    let left: Vec<_> = std::fs::read_dir(&place).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["shapes"], "pictures alone are drawn, no report is written");
    let again = outcome(command(&["demo", "--json", "--pictures", "shapes"]).current_dir(&place)).success();
    assert_eq!(again.json(), serde_json::json!({"pictures": 200, "folders": 10, "folder": "shapes"}));
    let both = outcome(command(&["demo", "--html", "d.html", "--pictures", "x"]).current_dir(&place));
    assert_eq!(both.code, 2, "{both:?}");
    let words: Vec<&str> = next.split_whitespace().skip(1).chain(["--json"]).collect();
    let mut classify = command(&words);
    let done =
        outcome(classify.current_dir(&place).env("XDG_CACHE_HOME", folder.path().join("cache"))).success();
    let right = |line: &str| {
        let answer: serde_json::Value = serde_json::from_str(line).unwrap();
        answer["id"].as_str().unwrap().split('/').nth(1) == answer["class"].as_str()
    };
    assert_eq!(done.stdout.lines().count(), 200);
    assert!(done.stdout.lines().filter(|line| right(line)).count() > 100, "{}", done.stderr);
}

#[test]
fn the_page_can_go_to_standard_output() {
    let page = ultta(&["demo", "--html", "-"]).success().stdout;
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    ultta(&["demo", "--html", "-", "--json"]).failure(2, &["--json", "--html -"]);
}

#[test]
fn a_report_that_cannot_be_written_is_said_before_any_work() {
    ultta(&["demo", "--html", "/no/such/folder/report.html"]).failure(1, &["/no/such/folder/report.html"]);
}
