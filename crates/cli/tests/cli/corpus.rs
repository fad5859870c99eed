//! Every file of the fuzzers' corpus through the functions they fuzz.

use crate::support::root;

#[path = "../../../../fuzz/readers.rs"]
mod readers;

#[test]
fn the_corpus_is_read_without_a_panic() {
    let mut names: Vec<&str> = Vec::new();
    for (name, read) in readers::READERS {
        let folder = root().join("fuzz/corpus").join(name);
        let mut files = 0;
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{e}: {}", folder.display())) {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            read(&bytes);
            // Cut short and with single bytes changed, each is a file that nobody wrote.
            for at in (0..bytes.len()).step_by(1 + bytes.len() / 64) {
                read(&bytes[..at]);
                let mut changed = bytes.clone();
                changed[at] ^= 0x55;
                read(&changed);
            }
            files += 1;
        }
        assert!(files > 0, "no seeds in {}", folder.display());
        names.push(name);
    }
    names.sort();
    let targets = std::fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap();
    let mut targets: Vec<String> =
        targets.map(|e| e.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned()).collect();
    targets.sort();
    assert_eq!(names, targets, "each reader has its target");
}
