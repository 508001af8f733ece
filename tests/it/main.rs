//! One test binary; each module is a chapter.

mod compress;
mod damaged;
mod decode;
mod formats;
mod golden;
mod kernels;
mod parity;
mod pull;
mod store;
mod templates;
mod tidy;
mod tiny;
mod wire;
