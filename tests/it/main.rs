//! One test binary; each module is a chapter.

mod bench;
mod cli;
mod compress;
mod daemon;
mod damaged;
mod decode;
mod eval;
mod formats;
mod golden;
mod ingest;
mod kernels;
mod logs;
mod memory;
mod notes;
mod parity;
mod pull;
mod restart;
mod store;
mod templates;
mod tidy;
mod tiny;
mod wire;
