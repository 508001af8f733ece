//! Scores and survivors equal those of the R-KV authors' released code.

use std::path::{Path, PathBuf};

use attar::cache::budget::{Ranked, SurvivorWork, survivors};
use attar::cache::policy::rkv::Rkv;
use attar::cache::policy::snapkv::SnapKv;
use attar::cache::policy::{HeadMemory, HeadView, Policy, Protection, WINDOW, Work};
use attar::cache::redundancy::{self, redundancy, redundancy_pairwise};
use attar::cache::{Notes, SpanPlan, policy};
use safetensors::SafeTensors;

/// One file: made inputs and what the authors' scorers answer to them.
struct Case {
    name: String,
    lambda: f32,
    budget: usize,
    n_heads: usize,
    n_groups: usize,
    n_slots: usize,
    dim: usize,
    keys: Vec<f32>,
    /// `[H, W, G, D]`
    queries: Vec<f32>,
    importance: Vec<f32>,
    redundancy: Vec<f32>,
    score: Vec<f32>,
    rkv_kept: Vec<u32>,
    snapkv_kept: Vec<u32>,
}

impl Case {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let settings = header.metadata().clone().unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let numbers = |name: &str| -> Vec<f32> {
            let words = tensors.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
            words.into_iter().map(f32::from_le_bytes).collect()
        };
        let indices = |name: &str| -> Vec<u32> {
            let words = tensors.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
            words.into_iter().map(u32::from_le_bytes).collect()
        };
        let shape = tensors.tensor("keys").unwrap().shape().to_vec();
        let [n_heads, n_slots, dim] = shape[..] else { panic!("keys have shape {shape:?}") };
        let n_groups: usize = settings["groups"].parse().unwrap();
        assert_eq!(settings["window"], WINDOW.to_string());
        let by_head = numbers("queries");
        let mut queries = Vec::with_capacity(by_head.len());
        for head_idx in 0..n_heads {
            for token_idx in 0..WINDOW {
                for group_idx in 0..n_groups {
                    let row = (head_idx * n_groups + group_idx) * WINDOW + token_idx;
                    queries.extend_from_slice(&by_head[row * dim..(row + 1) * dim]);
                }
            }
        }
        Self {
            name: path.file_name().unwrap().to_string_lossy().into_owned(),
            lambda: settings["lambda"].parse().unwrap(),
            budget: settings["budget"].parse().unwrap(),
            n_heads,
            n_groups,
            n_slots,
            dim,
            keys: numbers("keys"),
            queries,
            importance: numbers("importance_pooled"),
            redundancy: numbers("redundancy"),
            score: numbers("rkv_score"),
            rkv_kept: indices("rkv_kept"),
            snapkv_kept: indices("snapkv_kept"),
        }
    }

    fn keys(&self, head_idx: usize) -> &[f32] {
        let len = self.n_slots * self.dim;
        &self.keys[head_idx * len..(head_idx + 1) * len]
    }

    fn scores(&self, policy: &dyn Policy, head_idx: usize) -> Vec<f32> {
        let positions: Vec<u32> = (0..self.n_slots as u32).collect();
        let group = WINDOW * self.n_groups * self.dim;
        let view = HeadView {
            keys: self.keys(head_idx),
            values: &[],
            queries: &self.queries[head_idx * group..(head_idx + 1) * group],
            query_positions: &positions[self.n_slots - WINDOW..],
            positions: &positions,
            n_slots: self.n_slots,
            n_groups: self.n_groups,
            head_dim: self.dim,
            n_queries: WINDOW,
            bank: &[],
            plan: &SpanPlan::default(),
            notes: &Notes::default(),
            layer_idx: 0,
            head_idx,
        };
        let memory = HeadMemory {
            importance: &mut vec![0.0; self.n_slots],
            matches: &mut vec![redundancy::UNKNOWN; self.n_slots],
        };
        let mut scores = vec![f32::NAN; self.n_slots];
        policy.score(&view, memory, &mut Work::default(), &mut scores);
        scores
    }

    /// Fails where the survivors differ by more than the order of equals.
    fn check_survivors(&self, policy: &dyn Policy, head_idx: usize, expected: &[u32]) {
        let scores = self.scores(policy, head_idx);
        let expected = &expected[head_idx * self.budget..(head_idx + 1) * self.budget];
        let mut kept = Vec::new();
        let positions: Vec<u32> = (0..self.n_slots as u32).collect();
        let ranked = Ranked {
            scores: &scores,
            positions: &positions,
            protection: policy.protection(self.budget),
            plan: &SpanPlan::default(),
        };
        survivors(ranked, self.budget, &mut SurvivorWork::default(), &mut kept);
        let only = |a: &[u32], b: &[u32]| -> Vec<f32> {
            a.iter().filter(|slot| !b.contains(slot)).map(|&slot| scores[slot as usize]).collect()
        };
        for (ours, theirs) in only(&kept, expected).iter().zip(only(expected, &kept)) {
            let close = (ours - theirs).abs() <= 1e-5 * theirs.abs();
            assert!(close, "{} {}: {ours} is kept, not {theirs}", self.name, policy.name());
        }
    }
}

/// The committed cases, and those in the folder that `ATTAR_GOLDEN` names.
fn cases() -> Vec<Case> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden");
    let folders = [Some(committed), std::env::var_os("ATTAR_GOLDEN").map(PathBuf::from)];
    let mut paths: Vec<PathBuf> = folders
        .iter()
        .flatten()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no golden files");
    paths.iter().map(|path| Case::read(path)).collect()
}

#[track_caller]
fn check_close(what: &str, case: &Case, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{} {what}", case.name);
    for (slot, (found, expected)) in found.iter().zip(expected).enumerate() {
        let close = (found - expected).abs() <= 1e-5 * expected.abs();
        assert!(close, "{} {what} of slot {slot}: {found} instead of {expected}", case.name);
    }
}

#[test]
fn importance_is_the_authors() {
    for case in cases() {
        let n_past = case.n_slots - WINDOW;
        for (head_idx, expected) in case.importance.chunks_exact(n_past).enumerate() {
            let found = case.scores(&SnapKv::default(), head_idx);
            check_close("importance", &case, &found[..n_past], expected);
        }
    }
}

#[test]
fn redundancy_is_the_authors_in_linear_time_and_by_pairs() {
    for case in cases() {
        for (head_idx, expected) in case.redundancy.chunks_exact(case.n_slots).enumerate() {
            let mut matches = vec![redundancy::UNKNOWN; case.n_slots];
            let mut work = Work::default();
            let keys = case.keys(head_idx);
            let found = redundancy(keys, case.dim, &mut matches, &mut work.redundancy);
            check_close("redundancy", &case, found, expected);
            let found = redundancy_pairwise(keys, case.dim);
            check_close("redundancy by pairs", &case, &found, expected);
        }
    }
}

#[test]
fn rkv_scores_and_survivors_are_the_authors() {
    for case in cases() {
        let rkv = Rkv { lambda: case.lambda, ..Rkv::default() };
        let n_past = case.n_slots - WINDOW;
        for (head_idx, expected) in case.score.chunks_exact(n_past).enumerate() {
            // Two terms of either sign: what is left of them is as exact as they were.
            let importance = &case.importance[head_idx * n_past..];
            let redundancy = &case.redundancy[head_idx * case.n_slots..];
            for (slot, found) in case.scores(&rkv, head_idx)[..n_past].iter().enumerate() {
                let terms = case.lambda * importance[slot] + (1.0 - case.lambda) * redundancy[slot];
                let close = (found - expected[slot]).abs() <= 1e-5 * terms;
                assert!(close, "{} slot {slot}: {found}, not {}", case.name, expected[slot]);
            }
            case.check_survivors(&rkv, head_idx, &case.rkv_kept);
        }
    }
}

#[test]
fn snapkv_survivors_are_the_authors() {
    for case in cases() {
        for head_idx in 0..case.n_heads {
            case.check_survivors(&SnapKv::default(), head_idx, &case.snapkv_kept);
        }
    }
}

#[test]
fn rkv_has_the_papers_lambda_and_protects_its_window() {
    assert_eq!(Rkv::default().lambda, 0.1);
    let rkv = policy::by_name("rkv").unwrap();
    assert_eq!(rkv.protection(1024), Protection { n_sinks: 0, n_recent: WINDOW });
}
