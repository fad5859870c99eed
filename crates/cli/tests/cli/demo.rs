//! `ultta demo` from end to end.

use crate::support::{command, outcome, ultta};

#[test]
fn the_demo_runs_and_reports() {
    let folder = tempfile::tempdir().unwrap();
    let done = outcome(command(&["demo"]).current_dir(&folder)).success();
    for word in ["Simulated data", "home domain", "domain shift", "class-mix shift", "ul-tta:paper"] {
        assert!(done.stdout.contains(word), "{word:?} is missing: {}", done.stdout);
    }
    assert!(!done.stdout.contains('\x1b'), "no colour when not on a terminal");

    let html = std::fs::read_to_string(folder.path().join("ultta-demo.html")).unwrap();
    assert!(html.contains("The data are simulated") && html.matches("<svg").count() >= 4);
    for reference in ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link"] {
        assert!(!html.contains(reference), "the report refers to the outside: {reference}");
    }
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
fn the_page_can_go_to_standard_output() {
    let page = ultta(&["demo", "--html", "-"]).success().stdout;
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    ultta(&["demo", "--html", "-", "--json"]).failure(2, &["--json", "--html -"]);
}

#[test]
fn a_report_that_cannot_be_written_is_said_before_any_work() {
    ultta(&["demo", "--html", "/no/such/folder/report.html"]).failure(1, &["/no/such/folder/report.html"]);
}
