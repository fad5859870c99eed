//! The corpus of the fuzz target `body` through the binary body parser.

use ultta_server::body::from_file;

#[test]
fn the_body_parser_takes_or_refuses_every_input_of_the_corpus() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/body");
    let (mut taken, mut refused) = (0, 0);
    for entry in std::fs::read_dir(corpus).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        match from_file(bytes.clone(), None, false) {
            Ok(samples) => {
                assert!(samples.learn().is_none_or(|marks| marks.len() == samples.len()));
                taken += 1;
            }
            Err(_) => refused += 1,
        }
        let _ = from_file(bytes.clone(), None, true);
    }
    assert!(taken >= 4 && refused >= 4, "{taken} taken, {refused} refused");
}
