//! `ultta run` on files, and the small commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use ultta::State;

use crate::support::{CLASSES, DIM, Folder, npy, send, ultta, unit_rows};

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_summary_is_one_json_object() {
    let folder = Folder::new();
    let summary = folder.run(&["--json"]).success().json();
    assert_eq!((&summary["n"], &summary["classes"]), (&300.into(), &4.into()));
    assert_eq!((&summary["method"], &summary["preset"]), (&"ul-tta".into(), &"default".into()));
    for key in ["top1", "ece", "admitted_share"] {
        assert!((0.0..=1.0).contains(&summary[key].as_f64().unwrap()), "{key}");
    }
    assert!(summary["zero_shot"]["top1"].as_f64().unwrap() > 0.5);
    assert_eq!(summary["health"]["seen"], 300);
    assert_eq!(summary["health"]["standing"], "healthy");
    let frozen = folder.run(&["--json", "--method", "zero-shot"]).success().json();
    assert_eq!((&frozen["preset"], &frozen["top1"]), (&Value::Null, &frozen["zero_shot"]["top1"]));
}

/// A features file with whatever stands beside its rows.
fn features_with(folder: &Folder, beside: &[(&str, Dtype, Vec<usize>, Vec<u8>)]) {
    let bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let rows = bytes(&unit_rows(40, 9));
    let mut tensors = vec![("features", TensorView::new(Dtype::F32, vec![40, DIM], &rows).unwrap())];
    for (name, dtype, shape, bytes) in beside {
        tensors.push((name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    }
    folder.write("beside.safetensors", safetensors::serialize(tensors, None).unwrap());
}

#[test]
fn rows_that_the_file_excludes_do_not_teach() {
    let folder = Folder::new();
    features_with(&folder, &[("learn", Dtype::BOOL, vec![40], vec![0; 40])]);
    let summary = folder.run_on("beside.safetensors", &["--json"]).success().json();
    assert_eq!(summary["admitted_share"], 0.0);
}

/// Opposites of pictures: told by row and in the summary, for people only where there are some.
#[test]
fn garbage_is_told() {
    let folder = Folder::new();
    // Pictures lie to one side.
    let mut data: Vec<f32> = unit_rows(40, 9).iter().map(|v| v + 0.5).collect();
    for row in data.chunks_mut(DIM) {
        let norm = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        row.iter_mut().for_each(|v| *v /= norm);
    }
    for row in [20, 33] {
        for i in 0..DIM {
            data[row * DIM + i] = -data[(row - 1) * DIM + i];
        }
    }
    let data: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![40, DIM], &data).unwrap();
    folder.write("garbage.safetensors", safetensors::serialize([("features", view)], None).unwrap());
    let summary = folder.run_on("garbage.safetensors", &["--json", "--out", "%/p.jsonl"]).success().json();
    let rows = rows(&folder.read("p.jsonl"));
    let told: Vec<usize> = (0..40).filter(|&row| rows[row]["garbage"] == true).collect();
    assert_eq!(told, [20, 33]);
    assert_eq!(summary["health"]["garbage"], told.len());
    assert!(told.iter().all(|&row| rows[row]["admitted"] == false));
    let words = folder.run_on("garbage.safetensors", &[]).success().stdout;
    let told = format!("{} of 40 rows looked like nothing (garbage): they taught nothing", told.len());
    assert!(words.contains(&told), "{words}");
    let off = ["--set", "spot_garbage=false"];
    let words = folder.run_on("garbage.safetensors", &off).success().stdout;
    assert!(!words.contains("garbage"), "{words}");
}

#[test]
fn times_go_with_the_order_of_the_file() {
    let folder = Folder::new();
    let times = |step: f64| -> Vec<u8> { (0..40).flat_map(|i| (step * i as f64).to_le_bytes()).collect() };
    features_with(&folder, &[("times", Dtype::F64, vec![40], times(-1.0))]);
    assert_ne!(folder.run_on("beside.safetensors", &[]).code, 0, "times that run backwards are refused");
    let shuffled = folder.run_on("beside.safetensors", &["--shuffle", "0"]).success();
    assert!(shuffled.stderr.contains("`times`"), "{}", shuffled.stderr);
}

#[test]
fn methods_that_need_views_find_them_in_the_file() {
    let folder = Folder::new();
    folder.features("plain.safetensors", &unit_rows(40, 9), DIM, None);
    assert_ne!(folder.run_on("plain.safetensors", &["--method", "zero"]).code, 0);
    let views = unit_rows(40 * 3, 10).iter().flat_map(|v| v.to_le_bytes()).collect();
    features_with(&folder, &[("views", Dtype::F32, vec![40, 3, DIM], views)]);
    folder.run_on("beside.safetensors", &["--method", "zero"]).success();
}

#[test]
fn without_labels_there_are_no_metrics() {
    let folder = Folder::new();
    folder.features("plain.safetensors", &unit_rows(20, 9), DIM, None);
    let summary = folder.run_on("plain.safetensors", &["--json"]).success().json();
    assert_eq!((&summary["top1"], &summary["zero_shot"]["ece"]), (&Value::Null, &Value::Null));
    let text = folder.run_on("plain.safetensors", &[]).success().stdout;
    assert!(text.contains("20 rows") && !text.contains("top-1"), "{text}");
}

#[test]
fn the_summary_is_plain_unless_figures_are_asked_for() {
    let folder = Folder::new();
    let plain = folder.run(&["--shuffle", "0"]).success().stdout;
    assert!(plain.contains(": 300 rows, 4 classes") && plain.contains("of the rows, "), "{plain}");
    let said = |text: &str| {
        let known =
            ["it uses ", "so far it learnt ", "what it learnt ", "nothing that it learnt ", "it went back "];
        text.lines().filter(|line| known.iter().any(|start| line.starts_with(start))).count()
    };
    assert_eq!(said(&plain), 1, "{plain}");
    for jargon in ["prior KL", "tau ", "evidence weight", "scenes", "admitted"] {
        assert!(!plain.contains(jargon), "{jargon}: {plain}");
    }
    let verbose = folder.run(&["--shuffle", "0", "--verbose"]).success().stdout;
    assert!(verbose.contains("health: prior KL") && verbose.contains("evidence weight"), "{verbose}");
    let zero_shot = folder.run(&["--method", "zero-shot"]).success().stdout;
    assert!(
        zero_shot.contains("nothing that it learnt from the stream changes an answer so far"),
        "{zero_shot}"
    );
    let paper = folder.run(&["--preset", "paper", "--shuffle", "0"]).success().stdout;
    assert_eq!(said(&paper), 1, "{paper}");
}

#[test]
fn answers_of_near_copies_are_not_told_as_learnt() {
    let folder = Folder::new();
    // A still camera on something between two classes: the frozen answer flickers, the scene's does not.
    let anchors = unit_rows(CLASSES.len(), 1);
    let (one, other) = (&anchors[..DIM], &anchors[DIM..2 * DIM]);
    let frame = |i: usize| {
        let tip = if i % 4 == 3 { -0.01 } else { 0.01 };
        let between: Vec<f32> =
            one.iter().zip(other).map(|(a, b)| (1.0 + tip) * a + (1.0 - tip) * b).collect();
        let norm = between.iter().map(|v| v * v).sum::<f32>().sqrt();
        between.into_iter().map(move |v| v / norm)
    };
    folder.features("still.safetensors", &(0..60).flat_map(frame).collect::<Vec<f32>>(), DIM, None);
    let said = folder.run_on("still.safetensors", &[]).success().stdout;
    assert!(said.contains("59 of 60 rows were near-copies"), "{said}");
    assert!(said.contains("25.0 % are answered differently"), "{said}");
    assert!(said.contains("near-copies are answered together; nothing that it learnt"), "{said}");
}

#[test]
fn accuracy_is_estimated_labels_or_not() {
    let folder = Folder::new();
    let check = |summary: &Value| {
        for estimate in [&summary["estimate"], &summary["zero_shot"]["estimate"]] {
            let [top1, low, high] = ["top1", "low", "high"].map(|key| estimate[key].as_f64().unwrap());
            assert!(0.0 <= low && low <= top1 && top1 <= high && high <= 1.0, "{estimate}");
        }
    };
    let free = folder.run(&["--json"]).success().json();
    check(&free);
    assert_eq!(free["health"]["estimate_labels"], 0);
    let labelled = folder.run(&["--json", "--label-share", "0.5", "--label-delay", "10"]).success().json();
    check(&labelled);
    assert!(labelled["health"]["estimate_labels"].as_u64().unwrap() > 100);
    let reach = |summary: &Value| {
        summary["estimate"]["high"].as_f64().unwrap() - summary["estimate"]["low"].as_f64().unwrap()
    };
    assert!(reach(&labelled) < reach(&free));
    // What is rough is not told to people, nor is it on few samples.
    let told = folder.run(&[]).success().stdout;
    let none = "no estimated accuracy: without labels features of 8 dimensions are too few for one (64 are enough)\n";
    assert!(told.contains(none) && !told.contains("estimated accuracy without labels"), "{told}");
    assert!(told.contains("strangers were not looked for (--unknown 5%)\n"), "{told}");
    let told =
        folder.run(&["--unknown", "5%", "--label-share", "0.5", "--label-delay", "10"]).success().stdout;
    assert!(told.contains("labels (90 % interval): adapted ") && told.contains(" % are unknown\n"), "{told}");
    let wide = ultta::simulate::SimulatorConfig { classes: 4, dim: 64, ..Default::default() };
    let mut wide = ultta::simulate::Simulator::new(&wide).unwrap();
    wide.head().save(folder.path("wide.safetensors")).unwrap();
    let rows = wide.next_block(100).0;
    let on = |n: usize| {
        folder.features("rows.safetensors", &rows.data()[..64 * n], 64, None);
        let (features, head) = (folder.arg("rows.safetensors"), folder.arg("wide.safetensors"));
        ultta(&["run", "--features", &features, "--head", &head]).success().stdout
    };
    assert!(
        on(12).contains("no estimated accuracy: 12 rows that differ are too few for one\n"),
        "{}",
        on(12)
    );
    assert!(on(100).contains("estimated accuracy without labels (90 % interval): adapted "), "{}", on(100));
    assert_eq!(
        (&free["estimate"]["rough"], &free["zero_shot"]["estimate"]["rough"]),
        (&true.into(), &true.into())
    );
    assert_eq!(labelled["estimate"]["rough"], false, "labels correct it");
    folder.features("plain.safetensors", &unit_rows(20, 9), DIM, None);
    folder.run_on("plain.safetensors", &["--label-share", "0.5"]).failure(2, &["needs labels"]);
}

#[test]
fn shares_are_what_they_are_however_they_are_written() {
    let folder = Folder::new();
    let share = |text: &str| {
        let summary = folder.run(&["--unknown", text, "--json"]).success().json();
        summary["unknown_share"].as_f64().unwrap()
    };
    let rejected = share("10%");
    assert!((0.03..0.2).contains(&rejected), "{rejected}");
    assert_eq!(rejected, share("0.1"));
    for wrong in ["0", "60%", "five"] {
        let refused = folder.run(&["--unknown", wrong]);
        assert!(refused.code == 2 && refused.stderr.contains("5% or 0.05"), "{refused:?}");
    }
    let sets = |text: &str| {
        let summary = folder.run(&["--coverage", text, "--label-share", "20%", "--json"]).success().json();
        summary["sets"].clone()
    };
    assert_eq!(sets("90%"), sets("0.9"));
    let refused = folder.run(&["--coverage", "9"]);
    assert!(refused.code == 2 && refused.stderr.contains("90% or 0.9"), "{refused:?}");
    let other = folder.run(&["--unknown", "10%", "--set", "unknown.score=energy", "--json"]).success().json();
    assert!((0.03..0.2).contains(&other["unknown_share"].as_f64().unwrap()), "{other}");
}

#[test]
fn a_prediction_row_is_as_documented() {
    let folder = Folder::new();
    folder.run(&["--out", "%/p.jsonl"]).success();
    let text = folder.read("p.jsonl");
    let line = text.lines().next().unwrap();
    let plain = ["id", "label", "class", "prob", "prob_pred", "zero_shot"];
    let keys = [&plain[..], &["admitted", "unknown", "garbage", "scene", "begins_scene", "sample"]].concat();
    let places: Vec<usize> = keys.iter().map(|k| line.find(&format!("\"{k}\":")).unwrap()).collect();
    assert!(places.is_sorted(), "{line}");
    let rows = rows(&text);
    assert_eq!(rows.len(), 300);
    assert_eq!(rows[7]["id"], 7);
    let label = rows[7]["label"].as_u64().unwrap() as usize;
    assert_eq!(rows[7]["class"], CLASSES[label]);
    assert_eq!(rows[7].as_object().unwrap().len(), keys.len());
    assert_eq!(rows[7]["zero_shot"].as_object().unwrap().len(), 2);
}

#[test]
fn top_and_probs_extend_a_row() {
    let folder = Folder::new();
    folder.run(&["--out", "%/p.jsonl", "--top", "9", "--probs"]).success();
    for row in rows(&folder.read("p.jsonl")) {
        let top = row["top"].as_array().unwrap();
        assert_eq!(top.len(), CLASSES.len(), "no more than there are");
        assert_eq!((&top[0]["label"], &top[0]["class"]), (&row["label"], &row["class"]));
        let probs: Vec<f64> = row["probs"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).collect();
        assert!((probs.iter().sum::<f64>() - 1.0).abs() < 1e-5);
        let label = row["label"].as_u64().unwrap() as usize;
        assert!((probs[label] - row["prob"].as_f64().unwrap()).abs() < 1e-5);
    }
}

#[test]
fn csv_says_the_same_as_json_lines() {
    let folder = Folder::new();
    folder.run(&["--out", "%/p.jsonl", "--top", "2"]).success();
    folder.run(&["--out", "%/p.csv", "--top", "2"]).success();
    let mut reader = csv::Reader::from_path(folder.path("p.csv")).unwrap();
    let header = reader.headers().unwrap().clone();
    assert_eq!(
        header.iter().collect::<Vec<_>>().join(","),
        "id,label,class,prob,prob_pred,zero_shot_label,zero_shot_prob,admitted,unknown,garbage,scene,begins_scene,sample,\
         top1_label,top1_class,top1_prob,top2_label,top2_class,top2_prob"
    );
    let records: Vec<_> = reader.records().map(|r| r.unwrap()).collect();
    let rows = rows(&folder.read("p.jsonl"));
    assert_eq!(records.len(), rows.len());
    for (record, row) in records.iter().zip(&rows) {
        assert_eq!(record[0], row["id"].to_string());
        assert_eq!(&record[2], row["class"].as_str().unwrap());
        assert_eq!(record[3].parse::<f32>().unwrap(), row["prob"].as_f64().unwrap() as f32);
        assert_eq!(record[4].parse::<f32>().unwrap(), row["prob_pred"].as_f64().unwrap() as f32);
        assert_eq!(record[12], row["sample"].to_string());
        assert_eq!(record[16], row["top"][1]["label"].to_string());
    }
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_says_the_same_as_json_lines() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    let folder = Folder::new();
    folder.run(&["--out", "%/p.jsonl"]).success();
    folder.run(&["--out", "%/p.parquet", "--probs"]).success();
    let file = std::fs::File::open(folder.path("p.parquet")).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let records: Vec<_> = reader.get_row_iter(None).unwrap().map(|r| r.unwrap()).collect();
    let rows = rows(&folder.read("p.jsonl"));
    assert_eq!(records.len(), rows.len());
    for (record, row) in records.iter().zip(&rows) {
        assert_eq!(record.get_long(0).unwrap(), row["id"].as_i64().unwrap());
        assert_eq!(record.get_string(2).unwrap(), row["class"].as_str().unwrap());
        assert_eq!(record.get_float(3).unwrap(), row["prob"].as_f64().unwrap() as f32);
        assert_eq!(record.get_long(12).unwrap(), row["sample"].as_i64().unwrap());
        assert_eq!(record.len(), 13 + CLASSES.len());
    }
}

#[cfg(not(feature = "parquet"))]
#[test]
fn parquet_needs_its_feature() {
    Folder::new().run(&["--out", "%/p.parquet"]).failure(2, &["--features parquet"]);
}

#[test]
fn block_size_does_not_matter() {
    let folder = Folder::new();
    for preset in ["default", "paper"] {
        let run = |block: &str| {
            let flags = ["--preset", preset, "--block", block, "--out", "%/p.jsonl", "--save-state", "%/s"];
            folder.run(&flags).success();
            (folder.read("p.jsonl"), folder.bytes("s"))
        };
        let whole = run("256");
        for block in ["1", "7", "1000"] {
            assert!(run(block) == whole, "{preset}, blocks of {block}");
        }
    }
}

#[test]
fn resuming_in_the_middle_is_the_same_as_never_stopping() {
    let folder = Folder::new();
    for preset in ["default", "paper"] {
        let order = ["--shuffle", "3", "--preset", preset];
        let run = |more: &[&str]| folder.run(&[&order[..], more].concat()).success();
        run(&["--out", "%/whole.jsonl", "--save-state", "%/whole"]);
        run(&["--rows", "..137", "--out", "%/a.jsonl", "--save-state", "%/half"]);
        // The state's own settings are used; given again, they agree.
        folder
            .run(&[
                "--shuffle",
                "3",
                "--rows",
                "137..",
                "--out",
                "%/b.jsonl",
                "--load-state",
                "%/half",
                "--save-state",
                "%/end",
            ])
            .success();
        assert_eq!(folder.read("a.jsonl") + &folder.read("b.jsonl"), folder.read("whole.jsonl"), "{preset}");
        assert!(folder.bytes("end") == folder.bytes("whole"), "{preset}: the states differ");
        run(&["--rows", "137..", "--load-state", "%/half", "--out", "%/c.jsonl"]);
        assert_eq!(folder.read("b.jsonl"), folder.read("c.jsonl"));
    }
}

#[test]
fn the_settings_must_agree_with_the_state() {
    let folder = Folder::new();
    folder.run(&["--preset", "paper", "--save-state", "%/s"]).success();
    let summary = folder.run(&["--load-state", "%/s", "--json"]).success().json();
    assert_eq!(summary["preset"], "paper");
    assert_eq!(summary["health"]["seen"], 600);
    folder
        .run(&["--load-state", "%/s", "--preset", "default"])
        .failure(2, &["another configuration", "preset", "leave the settings out"]);
}

#[test]
fn orders_choose_the_stream() {
    let folder = Folder::new();
    let ids = |flags: &[&str]| -> Vec<u64> {
        folder.run(&[flags, &["--out", "%/p.jsonl"]].concat()).success();
        rows(&folder.read("p.jsonl")).iter().map(|row| row["id"].as_u64().unwrap()).collect()
    };
    let in_order: Vec<u64> = (0..300).collect();
    assert_eq!(ids(&[]), in_order);
    let shuffled = ids(&["--shuffle", "5"]);
    assert_eq!(shuffled, ids(&["--order", "shuffled", "--seed", "5"]));
    assert_ne!(shuffled, ids(&["--shuffle", "6"]));
    let mut all = shuffled.clone();
    all.sort_unstable();
    assert_eq!(all, in_order);
    assert!(ids(&["--order", "sorted"]).is_sorted_by_key(|id| id % 4));
    assert_eq!(ids(&["--order", "partial:0.5", "--seed", "1"]).len(), 150);
    assert_eq!(ids(&["--rows", "10..12"]), [10, 11]);
    assert_eq!(folder.run(&["--order", "random"]).code, 2);
    assert_eq!(folder.run(&["--order", "sorted", "--shuffle", "1"]).code, 2);
    folder.run(&["--rows", "400.."]).failure(2, &["nothing left of 300 rows"]);
    folder.features("plain.safetensors", &unit_rows(20, 9), DIM, None);
    folder.run_on("plain.safetensors", &["--order", "sorted"]).failure(2, &["needs labels"]);
}

#[test]
fn numpy_files_give_the_same_answers() {
    let folder = Folder::new();
    let file = folder.bytes("features.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let features = npy("<f4", "(300, 8)", tensors.tensor("features").unwrap().data());
    let labels = npy("<i8", "(300,)", tensors.tensor("labels").unwrap().data());
    folder.write("f.npy", &features);
    folder.write("l.npy", &labels);
    for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
        let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        for (name, bytes) in [("features.npy", &features), ("labels.npy", &labels)] {
            archive.start_file(name, options).unwrap();
            archive.write_all(bytes).unwrap();
        }
        folder.write(&format!("{method}.npz"), archive.finish().unwrap().into_inner());
    }
    let answers = |features: &str, flags: &[&str]| {
        let outcome =
            folder.run_on(features, &[flags, &["--out", "%/p.jsonl", "--shuffle", "1"]].concat()).success();
        assert!(outcome.stdout.contains("top-1"), "{features}");
        folder.read("p.jsonl")
    };
    let expected = answers("features.safetensors", &[]);
    assert_eq!(answers("f.npy", &["--labels", "%/l.npy"]), expected);
    assert_eq!(answers("Stored.npz", &[]), expected);
    assert_eq!(answers("Deflated.npz", &[]), expected);
    let facts = ultta(&["inspect", &folder.arg("Stored.npz"), "--json"]).success().json();
    assert_eq!(
        (&facts["kind"], &facts["rows"], &facts["labels"]["distinct"]),
        (&"features".into(), &300.into(), &4.into())
    );
}

#[test]
fn anchors_fold_into_the_head() {
    let folder = Folder::new();
    let answers = |flags: &[&str]| {
        folder.run(&[flags, &["--out", "%/p.jsonl", "--method", "zero-shot"]].concat()).success();
        folder.read("p.jsonl")
    };
    let plain = answers(&[]);
    let exemplars = answers(&["--anchors", "%/features.safetensors:0.5"]);
    assert_ne!(exemplars, plain);
    assert_ne!(exemplars, answers(&["--anchors", "%/features.safetensors"]));
    // The head's own prototypes change nothing but the last bits.
    let own = rows(&answers(&["--anchors", "%/head.safetensors"]));
    for (own, plain) in own.iter().zip(rows(&plain)) {
        assert!((own["prob"].as_f64().unwrap() - plain["prob"].as_f64().unwrap()).abs() < 1e-4);
    }
    folder.raw_head("other.safetensors", r#"["cat", "fish"]"#, 2);
    folder.run(&["--anchors", "%/other.safetensors"]).failure(2, &["fish", "does not have"]);
    folder.features("plain.safetensors", &unit_rows(20, 9), DIM, None);
    folder.run(&["--anchors", "%/plain.safetensors"]).failure(2, &["no labels"]);
    // A state belongs to the head with its anchors.
    folder.run(&["--anchors", "%/features.safetensors", "--save-state", "%/s"]).success();
    folder.run(&["--load-state", "%/s"]).failure(2, &["another head", "--anchors"]);
    folder.run(&["--anchors", "%/features.safetensors", "--load-state", "%/s"]).success();
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_the_state() {
    let folder = Folder::with_rows(5000);
    folder.run(&["--out", "%/whole.jsonl", "--save-state", "%/whole"]).success();
    // A reader that stalls keeps the run in the middle of its work.
    let fifo = folder.arg("fifo.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut command = folder.run_command(
            "features.safetensors",
            &["--out", "%/fifo.jsonl", "--save-state", "%/s", "--block", "16"],
        );
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut reader = BufReader::new(std::fs::File::open(&fifo).unwrap());
        let mut text = String::new();
        reader.read_line(&mut text).unwrap();
        send(signal, child.id());
        std::thread::sleep(std::time::Duration::from_millis(200));
        reader.read_to_string(&mut text).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let answered = text.lines().count();
        assert!(answered > 0 && answered < 5000, "{answered}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(&format!("--rows {answered}..")), "{stderr}");
        let state = State::load(folder.path("s")).unwrap();
        assert_eq!(state.get::<u64>("session.counts").unwrap()[0], answered as u64);
        let rest = format!("{answered}..");
        folder
            .run(&["--load-state", "%/s", "--rows", &rest, "--out", "%/rest.jsonl", "--save-state", "%/s"])
            .success();
        assert!(text + &folder.read("rest.jsonl") == folder.read("whole.jsonl"));
        assert!(folder.bytes("s") == folder.bytes("whole"));
    }
}

#[test]
fn quiet_is_quiet() {
    let folder = Folder::new();
    let outcome = folder.run(&["--quiet"]).success();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""));
}

#[test]
fn settings_come_from_file_and_flags() {
    let folder = Folder::new();
    folder.write("c.toml", "[unknown]\nscore = \"energy\"\n[unknown.advanced]\nquantile = 0.2\n");
    let summary = folder.run(&["--config", "%/c.toml", "--json"]).success().json();
    assert!(summary["unknown_share"].as_f64().unwrap() > 0.0);
    let off = folder.run(&["--config", "%/c.toml", "--set", "unknown.score=off", "--json"]).success().json();
    assert_eq!(off["unknown_share"], 0.0);
    folder.write("typo.toml", "[unknown]\nscroe = \"energy\"\n");
    folder.run(&["--config", "%/typo.toml"]).failure(2, &["typo.toml", "line 2", "scroe"]);
    folder.run(&["--set", "gate.keep=2"]).failure(2, &["gate.keep", "got 2"]);
    folder.run(&["--method", "ul-ta"]).failure(2, &["did you mean ul-tta?"]);
    assert_eq!(folder.run(&["--set", "nonsense"]).code, 2);
}

#[test]
fn small_commands() {
    let folder = Folder::new();
    let default = ultta(&["config", "--default"]).success().stdout;
    assert_eq!(default, ultta::DEFAULT_TOML);
    let paper = ultta(&["config", "--default", "--preset", "paper"]).success().stdout;
    assert_eq!(paper, ultta::internal::PAPER_TOML);
    folder.write("default.toml", default);
    let resolved = ultta(&["config", "--config", &folder.arg("default.toml")]).success().stdout;
    assert_eq!(resolved, ultta(&["config"]).success().stdout);
    ultta(&["config", "--set", "gate.keep=2"])
        .failure(2, &["gate.keep: expected a number from 0 to 1, got 2"]);
    for method in ultta::names() {
        ultta(&["config", "--method", &method]).success();
    }
    assert!(ultta(&["methods"]).success().stdout.contains("zero-shot"));
    assert!(ultta(&["methods", "--json"]).success().json().as_array().unwrap().len() >= 2);
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(ultta(&["completions", shell]).success().stdout.contains("ultta"), "{shell}");
    }
    assert!(ultta(&["run", "--help"]).success().stdout.contains("Examples:"));
    assert_eq!(ultta(&[]).code, 2);
}

#[test]
fn manual_pages_are_written_one_per_command() {
    let folder = Folder::new();
    ultta(&["man", &folder.arg("share/man1")]).success();
    for (page, holds) in
        [("ultta.1", "ultta\\-run(1)"), ("ultta-run.1", "features"), ("ultta-head.1", "labels")]
    {
        let text = std::fs::read_to_string(folder.arg(&format!("share/man1/{page}"))).unwrap();
        assert!(text.contains(".TH") && text.contains(holds), "{page}: {text}");
    }
    let failed = ultta(&["man", "/dev/null/man"]);
    assert!(failed.code != 0 && failed.stderr.contains("/dev/null/man"), "{}", failed.stderr);
}

#[test]
fn inspect_tells_what_a_file_holds() {
    let folder = Folder::new();
    folder.run(&["--save-state", "%/s"]).success();
    let (features, head, state) =
        (folder.arg("features.safetensors"), folder.arg("head.safetensors"), folder.arg("s"));
    let text = ultta(&["inspect", &features, "--head", &head]).success().stdout;
    assert!(text.contains("rows: 300") && text.contains("dtype: F32") && text.ends_with("ok\n"), "{text}");
    let text = ultta(&["inspect", &head]).success().stdout;
    assert!(text.contains("classes: 4") && text.contains("logit_scale: 30"), "{text}");
    let facts = ultta(&["inspect", &state, "--head", &head, "--json"]).success().json();
    assert_eq!((&facts["kind"], &facts["seen"], &facts["ok"]), (&"state".into(), &300.into(), &true.into()));
    folder.raw_head("other.safetensors", r#"["x", "y"]"#, 2);
    ultta(&["inspect", &state, "--head", &folder.arg("other.safetensors")]).failure(2, &["another head"]);
    let mut rows = unit_rows(3, 4);
    rows[9] = f32::NAN;
    folder.features("nan.safetensors", &rows, DIM, None);
    ultta(&["inspect", &folder.arg("nan.safetensors")]).failure(2, &["row 1", "not finite"]);
    folder.write("junk", b"junk that is no file of ours");
    ultta(&["inspect", &folder.arg("junk")]).failure(2, &["junk"]);
}
