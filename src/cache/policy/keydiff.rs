//! `keydiff`: keys unlike the others.
//!
//! KeyDiff (arXiv 2504.15364): the negated cosine of a key with the mean of the unit keys. It asks
//! no query and protects nothing.

use super::{HeadMemory, HeadView, Policy, Protection, Work};
use crate::kernel::panels::dot;

/// Distance from the mean direction.
pub struct KeyDiff;

impl Policy for KeyDiff {
    fn name(&self) -> &'static str {
        "keydiff"
    }

    fn score(&self, head: &HeadView<'_>, _: HeadMemory<'_>, work: &mut Work, scores: &mut [f32]) {
        let anchor = &mut work.anchor;
        anchor.clear();
        anchor.resize(head.head_dim, 0.0);
        for key in head.keys.chunks_exact(head.head_dim) {
            let scale = 1.0 / norm(key);
            anchor.iter_mut().zip(key).for_each(|(sum, x)| *sum += x * scale);
        }
        // The mean is the sum over `S`, and a cosine does not ask for lengths.
        let anchor_norm = norm(anchor);
        for (score, key) in scores.iter_mut().zip(head.keys.chunks_exact(head.head_dim)) {
            *score = -dot(key, anchor) / (norm(key) * anchor_norm);
        }
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection::default()
    }
}

fn norm(key: &[f32]) -> f32 {
    dot(key, key).sqrt() + 1e-8
}
