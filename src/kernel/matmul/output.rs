//! Where products go: one matrix that many tasks write to.

use std::marker::PhantomData;

use super::GROUP;

/// Outputs `[n_tokens, n_rows]` into which tasks write different columns at the same time.
pub(super) struct Output<'a> {
    start: *mut f32,
    n_tokens: usize,
    pub n_rows: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: tasks write to columns that no other task writes to, and none reads.
unsafe impl Send for Output<'_> {}
// SAFETY: as above.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    pub fn new(out: &'a mut [f32], n_rows: usize) -> Self {
        let n_tokens = out.len() / n_rows;
        Self { start: out.as_mut_ptr(), n_tokens, n_rows, borrowed: PhantomData }
    }

    /// Writes what one group of rows gives for one token. A group belongs to one task.
    #[inline(always)]
    pub fn write(&self, token_idx: usize, group_idx: usize, values: &[f32; GROUP]) {
        let first_row = group_idx * GROUP;
        assert!(token_idx < self.n_tokens && first_row < self.n_rows, "output out of range");
        let n = GROUP.min(self.n_rows - first_row);
        // SAFETY: `n` numbers from here on lie within the token's row, and only this group's task
        // writes to them.
        unsafe {
            let to = self.start.add(token_idx * self.n_rows + first_row);
            to.copy_from_nonoverlapping(values.as_ptr(), n);
        }
    }

    /// Writes the products of `x`, `[n_tokens, n_cols]`, with `weights`, `[n_rows, n_cols]`, to
    /// the columns from `first_row` on. A tile of rows belongs to one task.
    pub fn gemm(
        &self,
        first_row: usize,
        n_rows: usize,
        weights: &[f32],
        x: &[f32],
        n_tokens: usize,
    ) {
        if n_tokens == 0 {
            return;
        }
        let n_cols = x.len() / n_tokens;
        assert!(n_tokens <= self.n_tokens && first_row + n_rows <= self.n_rows);
        assert!(weights.len() == n_rows * n_cols && x.len() == n_tokens * n_cols);
        // SAFETY: the three matrices lie within their slices by the lengths asserted above, and
        // only this tile's task writes to its columns.
        unsafe {
            gemm::gemm(
                n_tokens,
                n_rows,
                n_cols,
                self.start.add(first_row),
                1,
                self.n_rows as isize,
                false,
                x.as_ptr(),
                1,
                n_cols as isize,
                weights.as_ptr(),
                n_cols as isize,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
}
