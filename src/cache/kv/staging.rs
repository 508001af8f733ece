//! Keys and values on their way into the cache.

use super::{CacheShape, KvElement, Slots};

/// A prefill block's keys and values before they find their slots; one for all sessions.
#[derive(Default)]
pub struct Staging<E> {
    /// Rotated keys, `[H, n_tokens, D]`.
    pub keys: Vec<E>,
    /// Values, `[H, n_tokens, D]`.
    pub values: Vec<E>,
    /// Attention received within the block, `[H, n_tokens]`.
    pub importance: Vec<f32>,
    pub n_tokens: usize,
}

impl<E: KvElement> Staging<E> {
    /// Takes in a block's keys and values as the projections give them, both `[T, H, D]`.
    pub fn fill(&mut self, shape: &CacheShape, keys: &[f32], values: &[f32], n_tokens: usize) {
        let (n_heads, dim) = (shape.n_kv_heads, shape.head_dim);
        self.n_tokens = n_tokens;
        self.keys.resize(n_heads * n_tokens * dim, E::default());
        self.values.resize(n_heads * n_tokens * dim, E::default());
        self.importance.clear();
        self.importance.resize(n_heads * n_tokens, 0.0);
        for head_idx in 0..n_heads {
            for token_idx in 0..n_tokens {
                let from = (token_idx * n_heads + head_idx) * dim;
                let to = (head_idx * n_tokens + token_idx) * dim;
                E::narrow(&keys[from..from + dim], &mut self.keys[to..to + dim]);
                E::narrow(&values[from..from + dim], &mut self.values[to..to + dim]);
            }
        }
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        (self.keys.capacity() + self.values.capacity()) * size_of::<E>()
            + self.importance.capacity() * size_of::<f32>()
    }

    /// The most bytes that blocks of `n_tokens` come to hold.
    pub fn most_bytes(shape: &CacheShape, n_tokens: usize) -> usize {
        // A buffer that has to grow doubles.
        2 * n_tokens * shape.layer_slot_bytes::<E>()
    }

    pub fn slots(&self) -> Slots<'_, E> {
        Slots {
            keys: &self.keys,
            values: &self.values,
            n_slots: self.n_tokens,
            stride: self.n_tokens,
        }
    }
}
