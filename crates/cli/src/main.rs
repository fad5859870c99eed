//! The binary `ultta`; the Python package calls the same function.

use std::process::ExitCode;

fn main() -> ExitCode {
    // candle's own pool for element-wise work waits by spinning: on a busy machine that costs more than it saves.
    if std::env::var_os("CANDLE_NUM_THREADS").is_none() {
        // SAFETY: no other thread runs yet that could read the environment.
        unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
    }
    ultta_cli::main_from(std::env::args_os())
}
