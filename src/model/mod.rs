//! Weights, decoder, tokenizer, and where model files come from.

pub mod config;
pub mod decoder;
mod error;
pub mod gguf;
mod layer;
pub mod registry;
pub mod rope;
mod safetensors;
mod tensors;
pub mod tokenizer;

pub use config::{Family, ModelConfig};
pub use decoder::{BLOCK, Decoder, Workspace};
pub use error::ModelError;
pub use rope::Rope;
