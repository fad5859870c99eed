//! Tells tests whether the real feature packs lie beside the workspace, in `../shared/data`: tests that need them are
//! ignored without them, visibly, instead of passing. `crates/cli` uses this file, too.
//!
//! Cargo looks again when this file is touched: a path that does not exist yet cannot be watched without building
//! everything anew each time.

use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(shared_data)");
    let own = if Path::new("build.rs").exists() { "build.rs" } else { "../core/build.rs" };
    println!("cargo::rerun-if-changed={own}");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    if data.is_dir() {
        println!("cargo::rerun-if-changed={}", data.display());
        println!("cargo::rustc-cfg=shared_data");
    }
}
