"""Runs every fuzz target for some seconds: python3 fuzz/fuzz.py [SECONDS] [TARGET…].

cargo-fuzz asks for a nightly toolchain; RUSTC_BOOTSTRAP lets a stable one take its flags. New inputs go to a
scratch folder, so that the committed corpus stays small; a crash stays in fuzz/artifacts and fails the run.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
seconds = sys.argv[1] if len(sys.argv) > 1 else "60"
targets = sys.argv[2:] or sorted(path.stem for path in (ROOT / "fuzz/fuzz_targets").glob("*.rs"))
environment = dict(os.environ, RUSTC_BOOTSTRAP="1")
with tempfile.TemporaryDirectory() as scratch:
    for target in targets:
        found = Path(scratch) / target
        found.mkdir()
        command = ["cargo", "fuzz", "run", target, str(found), f"fuzz/corpus/{target}"]
        options = [f"-max_total_time={seconds}", "-max_len=65536", "-rss_limit_mb=2048", "-timeout=10"]
        subprocess.run(command + ["--"] + options, cwd=ROOT, env=environment, check=True)
