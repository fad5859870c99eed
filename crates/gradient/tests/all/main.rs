//! The gradient methods from outside: one test binary.

mod methods;
mod parity;
