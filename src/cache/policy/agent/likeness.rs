//! Redundancy: keys that lie where most others lie.
//!
//! Unit keys after their mean is taken out, which all of them share and which dominates a raw
//! cosine; a slot's redundancy is the sum of its cosines with all others, and costs one inner
//! product with the sum of all unit keys (as KeyDiff's anchor does).

use super::super::HeadView;
use crate::kernel::panels::dot;

/// Buffers of [`likeness`], reused.
#[derive(Default)]
pub struct LikenessWork {
    /// Unit keys, `[S, D]`.
    unit: Vec<f32>,
    /// `[D]`
    mean: Vec<f32>,
    /// `[D]`
    sum: Vec<f32>,
    /// `[S]`
    result: Vec<f32>,
}

impl LikenessWork {
    /// Bytes that the buffers hold.
    pub(in crate::cache) fn bytes(&self) -> usize {
        let Self { unit, mean, sum, result } = self;
        let numbers: usize = [unit, mean, sum, result].map(Vec::capacity).iter().sum();
        numbers * size_of::<f32>()
    }
}

/// Each slot's redundancy, `[S]`, in no particular unit.
pub fn likeness<'a>(head: &HeadView<'_>, work: &'a mut LikenessWork) -> &'a mut [f32] {
    let LikenessWork { unit, mean, sum, result } = work;
    let dim = head.head_dim;
    let add = |to: &mut [f32], key: &[f32]| to.iter_mut().zip(key).for_each(|(to, x)| *to += x);
    mean.clear();
    mean.resize(dim, 0.0);
    head.keys.chunks_exact(dim).for_each(|key| add(mean, key));
    mean.iter_mut().for_each(|x| *x /= head.n_slots.max(1) as f32);

    unit.clear();
    unit.extend_from_slice(head.keys);
    sum.clear();
    sum.resize(dim, 0.0);
    for key in unit.chunks_exact_mut(dim) {
        key.iter_mut().zip(&*mean).for_each(|(x, mean)| *x -= mean);
        let scale = 1.0 / (dot(key, key).sqrt() + 1e-8);
        key.iter_mut().for_each(|x| *x *= scale);
        add(sum, key);
    }
    result.clear();
    result.extend(unit.chunks_exact(dim).map(|key| dot(key, sum)));
    result
}
