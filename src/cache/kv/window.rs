//! The queries that policies ask.

use crate::cache::policy::WINDOW;

/// The last `WINDOW` tokens' queries of one layer, before RoPE.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryWindow {
    /// `[n, H * G, D]`, oldest first.
    pub queries: Vec<f32>,
    /// `[n]`
    pub positions: Vec<u32>,
}

impl QueryWindow {
    /// Takes in the queries of tokens that follow one another, `[n, H * G, D]` before RoPE, the
    /// first at `first_position`; only the last [`WINDOW`] are kept.
    pub fn observe(&mut self, queries: &[f32], n_tokens: usize, first_position: u32) {
        if n_tokens == 0 {
            return;
        }
        let row = queries.len() / n_tokens;
        // Exactly what it will ever hold, so that `bytes` can say so.
        self.queries.reserve_exact((WINDOW - self.positions.len()) * row);
        self.positions.reserve_exact(WINDOW - self.positions.len());
        let n_new = n_tokens.min(WINDOW);
        let n_old = self.positions.len().min(WINDOW - n_new);
        let n_gone = self.positions.len() - n_old;
        self.queries.drain(..n_gone * row);
        self.positions.drain(..n_gone);
        self.queries.extend_from_slice(&queries[(n_tokens - n_new) * row..]);
        self.positions.extend((n_tokens - n_new..n_tokens).map(|i| first_position + i as u32));
    }

    pub(super) fn bytes(&self) -> usize {
        self.queries.capacity() * size_of::<f32>() + self.positions.capacity() * size_of::<u32>()
    }
}
