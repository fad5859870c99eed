//! What someone meets in the first minutes: the documented commands, and what is said when they go wrong.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::{Folder, Outcome, command, npy, outcome, root, ultta, unit_rows};

/// A server that is ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it; its two lines.
fn serve(place: &Path, arguments: &[&str]) -> (Server, String, String) {
    let mut command = command(arguments);
    let mut child = command
        .args(["--port", "0"])
        .current_dir(place)
        .env("ULTTA_LOG", "off")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let (first, second) = (lines.next().unwrap(), lines.next().unwrap());
    (Server(child), first, second)
}

/// The README and `docs/service.md` begin with commands that work one after another, without a download. The answer to the
/// picture.
fn first_commands(page: &str) -> Value {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let line = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("{page}: {start} is missing")).split(" #").next().unwrap().to_string()
    };
    let place = tempfile::tempdir().unwrap();
    for start in ["ultta demo --pictures", "ultta head"] {
        let line = line(start);
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        outcome(command(&words).current_dir(&place).env("XDG_CACHE_HOME", place.path().join("cache")))
            .success();
    }
    let start = line("ultta serve");
    let words: Vec<&str> = start.split_whitespace().skip(1).collect();
    let (_server, listening, page) = serve(place.path(), &words);
    let address = listening.strip_prefix("listening on ").unwrap();
    assert_eq!(page, format!("page: http://{address}/  API: http://{address}/docs"));
    let curl = line("curl -s localhost:8080");
    let path = curl.split_whitespace().nth(2).unwrap().strip_prefix("localhost:8080").unwrap().to_string();
    let file = curl.split('@').nth(1).unwrap().trim();
    let agent = ureq::Agent::new_with_defaults();
    let request = agent.post(format!("http://{address}{path}")).header("content-type", "image/png");
    let mut response = request.send(&std::fs::read(place.path().join(file)).unwrap()[..]).unwrap();
    response.body_mut().read_json().unwrap()
}

/// The names in a document, at every depth.
fn names(document: &Value) -> Vec<String> {
    match document {
        Value::Object(map) => {
            map.iter().flat_map(|(name, value)| [vec![name.clone()], names(value)].concat()).collect()
        }
        Value::Array(values) => values.iter().flat_map(names).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_first_commands_of_the_service_work_as_they_are_written() {
    let answer = first_commands("docs/service.md");
    let docs = std::fs::read_to_string(root().join("docs/service.md")).unwrap();
    let shown = docs.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    let shown: Value = serde_json::from_str(shown).unwrap();
    assert_eq!(names(&answer), names(&shown), "{answer}");
    assert_eq!(answer["rows"][0]["class"], shown["rows"][0]["class"]);
    assert_eq!(answer["learnt"], false);
}

#[test]
fn the_first_commands_of_the_readme_work_as_they_are_written() {
    let answer = first_commands("README.md");
    assert!(answer["rows"][0]["class"] == "star" && answer["learnt"] == true, "{answer}");
}

#[test]
fn a_row_of_the_wrong_length_is_told_so_before_its_norm() {
    let folder = Folder::new();
    let mut child = folder
        .run_command("-", &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"[1, 2, 3]\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2), "{text}");
    assert!(text.contains("feature dimension: expected 8, got 3") && !text.contains("norm"), "{text}");
}

#[test]
fn a_client_without_a_server_is_told_what_to_start() {
    for command in ["status", "list"] {
        let words = ["no answer from http://127.0.0.1:1;", "`ultta serve`", "ULTTA_URL", "refused"];
        ultta(&["client", "--url", "http://127.0.0.1:1", command]).failure(1, &words);
    }
    // An example can be shown all the same; its numbers are a guess then.
    let example = ultta(&["client", "--url", "http://127.0.0.1:1", "example", "curl"]).success().stdout;
    assert!(example.contains("did not answer: 512 numbers a row are a guess"), "{example}");
}

#[test]
fn a_server_that_cannot_start_says_what_to_do() {
    let folder = Folder::new();
    let head = folder.arg("head.safetensors");
    let data = folder.arg("data");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let next = port.checked_add(1).unwrap_or(8080);
    let words = [format!("(--port {next}, and ULTTA_URL=http://127.0.0.1:{next} for the client)")];
    ultta(&["serve", "--head", &head, "--data-dir", &data, "--port", &port.to_string()])
        .failure(1, &["choose another port", &words[0]]);
    let mut short = command(&["serve", "--head", &head, "--data-dir", &data]);
    outcome(short.env("ULTTA_TOKEN_ADMIN", "abc"))
        .failure(2, &["ULTTA_TOKEN_ADMIN: expected at least 16 characters, got 3; `openssl rand -hex 16`"]);
    folder.features("rows.safetensors", &unit_rows(4, 1), 8, None);
    ultta(&["serve", "--head", &folder.arg("rows.safetensors"), "--data-dir", &data])
        .failure(2, &["rows.safetensors is a features file; `ultta head` makes a head of class names"]);
    // Another head under the same name: how to keep both, and how to be rid of the old one.
    drop(serve(folder.path("").as_path(), &["serve", "--head", &head, "--data-dir", &data]).0);
    let other =
        ultta::Head::new(unit_rows(5, 3), 8, (0..5).map(|i| format!("c{i}")).collect::<Vec<_>>(), 30.0);
    other.unwrap().save(folder.path("other.safetensors")).unwrap();
    let mut again =
        command(&["serve", "--head", &folder.arg("other.safetensors"), "--data-dir", &data, "--port", "0"]);
    outcome(again.env("ULTTA_LOG", "off")).failure(
        2,
        &[
            "with another head (4 classes there, 5 asked for)",
            "--stream",
            "start without --head",
            "ultta client --stream NAME delete",
        ],
    );
    let longer = ultta::Head::new([[1.0, 0.0], [0.0, 1.0]].concat(), 2, ["c0", "c1"], 30.0).unwrap();
    longer.save(folder.path("longer.safetensors")).unwrap();
    let mut again =
        command(&["serve", "--head", &folder.arg("longer.safetensors"), "--data-dir", &data, "--port", "0"]);
    outcome(again.env("ULTTA_LOG", "off"))
        .failure(2, &["with another head (features of 8 there, of 2 asked for); delete it"]);
}

#[test]
fn class_names_are_separated_by_commas() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("a.png"), "").unwrap();
    let classify = |flag: &str, names: &str| {
        outcome(command(&["classify", "a.png", "--model", "tiny", flag, names]).current_dir(&place))
    };
    classify("--labels", "circle star").failure(
        2,
        &["expected at least two class names, got 1: \"circle star\"; names are separated by commas"],
    );
    classify("--classes", "circle").failure(2, &["expected at least two class names, got 1: \"circle\"\n"]);
    // That is known before a model is downloaded, and so is a name that a blank cut off.
    let nowhere = |words: &[&str]| {
        let mut command = command(words);
        outcome(command.current_dir(&place).env("HF_HOME", "hf").env("HF_ENDPOINT", "http://127.0.0.1:1"))
    };
    for words in [&["classify", "a.png"][..], &["head", "--out", "h.safetensors"]] {
        nowhere(&[words, &["--labels", "circle"]].concat())
            .failure(2, &["expected at least two class names"]);
    }
    nowhere(&["classify", "a.png", "--labels", "circle,", "star"])
        .failure(2, &["no such file or folder: star; is it a class? --labels takes one word, or quotes"]);
}

/// `ultta classify` with an environment that leads to the hub in its own way.
fn classify(place: &Path, model: &str, environment: &[(&str, &str)]) -> Outcome {
    std::fs::write(place.join("a.png"), "").unwrap();
    let mut command = command(&["classify", "a.png", "--labels", "a,b", "--model", model]);
    command.current_dir(place).env("HF_HOME", place.join("hf")).env("XDG_CACHE_HOME", place.join("cache"));
    for name in [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
        "NO_PROXY",
        "no_proxy",
    ] {
        command.env_remove(name);
    }
    command.env_remove("HF_HUB_OFFLINE").envs(environment.iter().copied());
    outcome(&mut command)
}

/// Takes one connection, and answers it; the first line of what came.
fn one_request(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let taken = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut first = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut first).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        first.trim_end().to_string()
    });
    (address, taken)
}

#[test]
fn the_hub_is_asked_where_the_environment_says_and_failures_say_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let words = [
        "config.json",
        "model.safetensors",
        "--model",
        "models--openai--clip-vit-base-patch16",
        "HF_ENDPOINT",
    ];
    // Nobody answers.
    let closed = [("HF_ENDPOINT", "http://127.0.0.1:1")];
    classify(place.path(), "ViT-B-16", &closed).failure(1, &words);
    // A mirror.
    let (mirror, asked) =
        one_request("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    classify(place.path(), "ViT-B-16", &[("HF_ENDPOINT", &mirror)]).failure(1, &["503"]).failure(1, &words);
    assert_eq!(asked.join().unwrap(), "HEAD /openai/clip-vit-base-patch16/resolve/main/config.json HTTP/1.1");
    // A proxy.
    let (proxy, asked) =
        one_request("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let behind = [("HF_ENDPOINT", "http://hub.invalid"), ("HTTPS_PROXY", &proxy)];
    classify(place.path(), "ViT-B-16", &behind)
        .failure(1, &words)
        .failure(1, &["no answer from http://hub.invalid (HF_ENDPOINT) through the proxy 127.0.0.1:"]);
    assert_eq!(asked.join().unwrap(), "CONNECT hub.invalid:80 HTTP/1.1");
    classify(place.path(), "ViT-B-16", &[("HTTPS_PROXY", "http://me:secret@127.0.0.1:1")])
        .failure(1, &["no answer from the proxy 127.0.0.1:1 (HTTPS_PROXY): connection refused; by hand:"]);
    // A host that the proxy is not for is asked without it.
    let passed_by = [closed[0], ("HTTPS_PROXY", "http://127.0.0.1:2"), ("NO_PROXY", "127.0.0.1")];
    let told = classify(place.path(), "ViT-B-16", &passed_by).failure(1, &words).stderr;
    assert!(
        told.contains("no answer from http://127.0.0.1:1 (HF_ENDPOINT)") && !told.contains("proxy"),
        "{told}"
    );
    // One of another kind is not passed by: nobody answers there, and the mirror is not asked.
    let mirror = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    mirror.set_nonblocking(true).unwrap();
    let endpoint = format!("http://{}", mirror.local_addr().unwrap());
    let socks = [("HF_ENDPOINT", &endpoint[..]), ("ALL_PROXY", "socks5://127.0.0.1:1")];
    classify(place.path(), "ViT-B-16", &socks)
        .failure(1, &["no answer from the proxy 127.0.0.1:1 (ALL_PROXY): "]);
    assert!(mirror.accept().is_err(), "the proxy is passed by");
    // A name that is none.
    classify(place.path(), "ViT-B/61/x", &closed).failure(2, &["`ultta models`", "owner/name"]);
    classify(place.path(), "ViT-B-61", &closed).failure(2, &["did you mean ViT-B-16?"]);
    let nowhere = classify(place.path(), "./my-clip", &closed).failure(2, &["no such folder (./my-clip)"]);
    assert!(!nowhere.stderr.contains("hub"), "{}", nowhere.stderr);
    // An address without its scheme.
    let plain = [("HF_ENDPOINT", "mirror.example")];
    classify(place.path(), "ViT-B-16", &plain)
        .failure(1, &["HF_ENDPOINT: expected an address with https:// in front, got mirror.example"]);
}

#[test]
fn the_tiny_model_says_what_it_knows() {
    let place = tempfile::tempdir().unwrap();
    outcome(command(&["demo", "--pictures", "shapes"]).current_dir(&place)).success();
    let classify = |labels: &str| {
        let arguments = ["classify", "shapes", "--model", "tiny", "--labels", labels, "--csv"];
        outcome(command(&arguments).current_dir(&place).env("XDG_CACHE_HOME", place.path().join("cache")))
            .success()
    };
    // A folder per class: accuracy beside zero-shot's, for the pictures whose folder is a class.
    let told = classify("circle,square,triangle,cross,ring,diamond,star,crescent,hexagon,bar").stderr;
    assert!(told.contains("top-1 %") && !told.contains("top-1 and ECE are those of"), "{told}");
    // The README has the figures of this command.
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains(
        "\nultta classify shapes --model tiny --labels circle,square,triangle,cross,ring,diamond,star,"
    ));
    let top1 = |name: &str| {
        let line = told.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap()
    };
    let shown = format!("{:.1} % zero-shot, {:.1} % adapted", top1("zero-shot"), top1("adapted"));
    let readme: Vec<&str> = readme.split_whitespace().collect();
    assert!(readme.join(" ").contains(&shown), "README: {shown}");
    let told = classify("circle,star").stderr;
    assert!(
        told.contains("top-1 and ECE are those of the 40 pictures whose folder or table names a class"),
        "{told}"
    );
    assert!(!told.contains("warning"), "{told}");
    let told = classify("disc,pentagon").stderr;
    assert!(told.contains("no accuracy: ") && told.contains("are not among the class names"), "{told}");
    let told = classify("cat,circle").stderr;
    assert!(
        told.contains("the tiny model knows ten shapes (circle, square") && told.contains("not cat"),
        "{told}"
    );
    let models = ultta(&["models"]).success().stdout;
    assert!(models.contains("tiny") && models.contains("in the program"), "{models}");
    let listed: Value = ultta(&["models", "--json"]).success().json();
    assert!(listed.as_array().unwrap().iter().any(|m| m["name"] == "tiny" && m["built_in"] == true));
}

/// Folders are numbered in the order of their names, classes of a head as they were given.
#[test]
fn labels_of_a_head_in_another_order_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let cache = place.path().join("cache");
    let call = |words: &[&str]| outcome(command(words).current_dir(&place).env("XDG_CACHE_HOME", &cache));
    call(&["demo", "--pictures", "shapes"]).success();
    call(&["encode", "shapes", "--model", "tiny", "--out", "f.safetensors"]).success();
    let head = |labels: &str, out: &str| {
        call(&["head", "--model", "tiny", "--labels", labels, "--out", out]).success();
    };
    head("circle,square,triangle,cross,ring,diamond,star,crescent,hexagon,bar", "given.safetensors");
    head("bar,circle,crescent,cross,diamond,hexagon,ring,square,star,triangle", "sorted.safetensors");
    let run = |head: &str| call(&["run", "--features", "f.safetensors", "--head", head]);
    let words =
        ["other classes than the features: \"bar\" in the features, \"circle\" in the head", "--labels"];
    run("given.safetensors").failure(2, &words);
    let right = run("sorted.safetensors").success();
    assert!(!right.stderr.contains("warning"), "{}", right.stderr);
    // A head of fewer classes: which are missing, not that a number is too large.
    head("circle,star,ring,hexagon", "four.safetensors");
    run("four.safetensors")
        .failure(2, &["the head has other classes than the features: \"bar\" in the features"]);
    let doctor = |words: &[&str]| call(&[&["doctor", "--head", "four.safetensors"], words].concat());
    let lacks =
        "the head lacks 6 of the 10 classes: \"bar\", \"crescent\", \"cross\", \"diamond\", \"square\", …";
    let told = doctor(&["--features", "f.safetensors"]);
    assert!(told.code == 2 && told.stdout.contains(lacks), "{}", told.stdout);
    for pictures in [&["shapes"][..], &["shapes", "--check-model", "--model", "tiny"]] {
        let told = doctor(pictures);
        assert!(
            told.code == 2 && told.stdout.contains(&format!("by the names of the folders {lacks}")),
            "{}",
            told.stdout
        );
        // Cosines are those of the pictures whose class the head has.
        assert!(!told.stdout.contains("  hm "), "{}", told.stdout);
    }
    head("cat,dog", "other.safetensors");
    let told = call(&["doctor", "--head", "other.safetensors", "shapes"]).stdout;
    assert!(
        told.contains("no folder is named as a class of the head: the head lacks 10 of the 10"),
        "{told}"
    );
    let told = call(&["doctor", "--head", "sorted.safetensors", "shapes"]).success().stdout;
    assert!(told.contains("10 folders are named as classes of the head"), "{told}");
    // This pair is as it should be, and nothing is held against it.
    let told =
        call(&["doctor", "--features", "f.safetensors", "--head", "sorted.safetensors"]).success().stdout;
    assert!(told.contains("the best class has a cosine of 0.6") && !told.contains("  hm "), "{told}");
}

#[test]
fn labels_that_are_right_by_chance_are_told() {
    let folder = Folder::with_rows(400);
    let run = |labels: &[i64]| {
        let data: Vec<u8> = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
        folder.write("labels.npy", npy("<i8", &format!("({},)", labels.len()), &data));
        let labels = folder.arg("labels.npy");
        folder.run_on("features.safetensors", &["--labels", &labels, "--quiet"]).success().stderr
    };
    let bytes = folder.bytes("features.safetensors");
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let labels = file.tensor("labels").unwrap().data().as_chunks::<8>().0;
    let right: Vec<i64> = labels.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
    assert_eq!(run(&right), "");
    // Labels that have nothing to do with the rows, and labels that count from elsewhere.
    let any: Vec<i64> = (0..400).map(|i| i * i / 7 % 4).collect();
    let words = "warning: zero-shot is hardly better than chance (right for ";
    let told = run(&any);
    assert!(told.starts_with(words) && told.contains("%, by chance 25.0 ± "), "{told}");
    let moved: Vec<i64> = right.iter().map(|label| (label + 1) % 4).collect();
    assert!(run(&moved).starts_with(words));
}

#[test]
fn features_of_another_encoder_are_told() {
    let folder = Folder::new();
    let head = ultta::Head::load(folder.path("head.safetensors")).unwrap();
    head.with_metadata("encoder", "openai/clip-vit-base-patch32")
        .save(folder.path("head.safetensors"))
        .unwrap();
    let data: Vec<u8> = unit_rows(20, 5).iter().flat_map(|v| v.to_le_bytes()).collect();
    for (encoder, told) in
        [("ViT-L-14", true), ("ViT-B-32", false), ("openai/clip-vit-base-patch32 image", false)]
    {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![20, 8], &data).unwrap();
        let strings = [("encoder".to_string(), encoder.to_string())].into();
        folder.write("f.safetensors", safetensors::serialize([("features", view)], Some(strings)).unwrap());
        let run = folder.run_on("f.safetensors", &[]).success();
        assert_eq!(run.stderr.contains("of another encoder (ViT-L-14)"), told, "{}", run.stderr);
        let doctor = ultta(&[
            "doctor",
            "--features",
            &folder.arg("f.safetensors"),
            "--head",
            &folder.arg("head.safetensors"),
        ]);
        assert_eq!(
            doctor.stdout.contains("features are of ViT-L-14, the head of openai/clip"),
            told,
            "{}",
            doctor.stdout
        );
    }
}

#[test]
fn the_doctor_says_what_it_looked_at_and_what_does_not_belong_together() {
    let folder = Folder::with_rows(40_003);
    let classes: Vec<String> = (0..62).map(|i| format!("thing {i}")).collect();
    let other = ultta::Head::new(unit_rows(62, 9), 8, classes, 30.0).unwrap();
    other.save(folder.path("other.safetensors")).unwrap();
    let features = folder.arg("features.safetensors");
    let doctor = |head: &str| ultta(&["doctor", "--features", &features, "--head", &folder.arg(head)]);
    // Of 40,003 rows every third is read (at most 20,000), and 2,000 of these are answered.
    let told = doctor("head.safetensors").success().stdout;
    for words in [
        "13335 of 40003 rows were read, spread over the file",
        "cosines and answers are those of 2000 rows, spread over 13335",
        "zero-shot top-1",
    ] {
        assert!(told.contains(words), "{words:?} is missing: {told}");
    }
    let told = doctor("other.safetensors");
    assert!(told.code == 2 && told.stdout.contains("these do not belong together"), "{}", told.stdout);
    assert!(told.stdout.contains("the labels name 4 classes, the head has 62"), "{}", told.stdout);
}
