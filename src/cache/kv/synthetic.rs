//! Caches of sessions that never were.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{KvCache, KvElement, Staging};
use crate::cache::policy::WINDOW;
use crate::cache::redundancy::NONE;

/// Tokens that are made at a time.
const BLOCK: usize = 256;

impl<E: KvElement> KvCache<E> {
    /// Goes on by `n_tokens` tokens with seeded random keys, values and queries: for measuring
    /// speed at a depth that would take too long to reach by reading. What a model says from such
    /// a cache means nothing.
    ///
    /// As many slots are live afterwards as in a session that decoded its way there, at most the
    /// budget and its buffer. Where that asks for compactions none is made: all slots are the
    /// newest tokens', and no key is taken to match another, as is nearly always true of random
    /// ones.
    pub fn fill_synthetic(&mut self, n_tokens: usize, seed: u64) {
        let logical = self.logical + n_tokens;
        let (mut n_new, limit) = (n_tokens, self.limit());
        let is_past_limit = self.kept() + n_tokens > limit;
        if is_past_limit {
            let n_slots = self.budget.n_slots;
            n_new = n_slots + (logical - n_slots) % self.budget.n_buffer.max(1);
            self.layers.iter_mut().for_each(|layer| layer.n_slots = 0);
        }
        let (shape, mut staging) = (self.shape, Staging::default());
        let width = shape.n_kv_heads * shape.head_dim;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut noise =
            |n: usize| -> Vec<f32> { (0..n).map(|_| random.random_range(-1.0..1.0)).collect() };
        let n_queries = WINDOW.min(n_tokens);
        let queries = noise(n_queries * shape.n_heads() * shape.head_dim);
        for layer in &mut self.layers {
            layer.observe(&queries, n_queries, (logical - n_queries) as u32);
            layer.reserve(&shape, layer.n_slots + n_new, limit);
            for start in (0..n_new).step_by(BLOCK) {
                let n = BLOCK.min(n_new - start);
                staging.fill(&shape, &noise(n * width), &noise(n * width), n);
                layer.append(&shape, &staging, (logical - n_new + start) as u32);
            }
            if is_past_limit {
                layer.matches.fill(NONE);
            }
        }
        self.logical = logical;
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::cache::policy::by_name;
    use crate::cache::{Budget, CacheShape};

    const SHAPE: CacheShape = CacheShape { n_layers: 2, n_kv_heads: 2, n_groups: 2, head_dim: 4 };

    fn filled(policy: &str, steps: &[usize]) -> KvCache<f16> {
        let budget = Budget { n_slots: 300, n_buffer: 50 };
        let mut cache = KvCache::new(SHAPE, budget, by_name(policy).unwrap());
        steps.iter().for_each(|&n_tokens| cache.fill_synthetic(n_tokens, 1));
        cache
    }

    #[test]
    fn slots_are_as_many_as_in_a_session_that_decoded_its_way_there() {
        let by_depth = [0, 7, 300, 350, 351, 400, 1_024];
        let kept = by_depth.map(|depth| filled("rkv", &[depth]).kept());
        assert_eq!(kept, [0, 7, 300, 350, 301, 300, 324]);
        assert_eq!(by_depth.map(|depth| filled("full", &[depth]).kept()), by_depth);
        assert_eq!(filled("rkv", &[1_024, 26]).kept(), 350);
    }

    #[test]
    fn the_newest_tokens_stand_in_the_slots_of_every_layer() {
        let cache = filled("rkv", &[1_020, 4]);
        assert_eq!(cache.logical(), 1_024);
        for layer in cache.layers() {
            assert!(layer.positions(1).iter().copied().eq(700..1_024));
            assert!(layer.window().positions.iter().copied().eq(1_016..1_024));
        }
    }
}
