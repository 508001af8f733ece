//! The hot loops over plain slices.
//!
//! Each loop is written once over [`simd::Simd`] and compiled for every instruction set that
//! implements it; [`simd::dispatch`] picks one at run time. Results do not depend on the number
//! of threads, nor on what else is computed in the same call. Callers that make many short calls
//! should run inside the rayon pool (`ThreadPool::install`), where waking a thread is cheapest.

pub mod attention;
pub mod matmul;
pub mod norm;
pub mod panels;
pub mod simd;

/// Instruction sets of this CPU that the kernels use, by name; none where they run portably.
pub fn cpu_features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let known = [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("f16c", is_x86_feature_detected!("f16c")),
        ];
        known.into_iter().filter_map(|(name, is_there)| is_there.then_some(name)).collect()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let has_dot = std::arch::is_aarch64_feature_detected!("dotprod");
        ["neon"].into_iter().chain(has_dot.then_some("dotprod")).collect()
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    Vec::new()
}
