//! `random`: a control that any policy with a signal must beat.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{HeadMemory, HeadView, Policy, Protection, Work};

/// Uniform scores. A slot's score is a pure function of seed, layer, head and position, so it
/// stays the same from one compaction to the next.
#[derive(Default)]
pub struct Random {
    pub seed: u64,
}

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn score(&self, head: &HeadView<'_>, _: HeadMemory<'_>, _: &mut Work, scores: &mut [f32]) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream((head.layer_idx as u64) << 32 | head.head_idx as u64);
        for (score, &position) in scores.iter_mut().zip(head.positions) {
            rng.set_word_pos(position.into());
            *score = rng.next_u32() as f32;
        }
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection::default()
    }
}
