//! Tells tests whether the real feature packs lie beside the workspace, in `../shared/data`: tests that need them are
//! ignored without them, visibly, instead of passing. `crates/cli` has a link to this file.
//!
//! Cargo looks again when this file is touched: a path that does not exist yet cannot be watched without building
//! everything anew each time.

use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(shared_data)");
    println!("cargo::rerun-if-changed=build.rs");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    if data.is_dir() {
        println!("cargo::rerun-if-changed={}", data.display());
        println!("cargo::rustc-cfg=shared_data");
    }
}
