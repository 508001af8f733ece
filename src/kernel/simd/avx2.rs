//! Lanes as AVX2 registers, with FMA and F16C.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Kernel, Simd};

/// The proof that AVX2, FMA and F16C are there: only [`Avx2::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    #[inline]
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }

    /// Runs a kernel compiled for these instructions.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn with_features<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves the features.
        unsafe { with_features(self, kernel) }
    }
}

// SAFETY of every block below: `self` proves the features, and memory is only touched through
// references to arrays of the width that is loaded or stored.
impl Simd for Avx2 {
    type Floats = __m256;
    type Bytes = __m256i;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; 8]) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, value: __m256, to: &mut [f32; 8]) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), value) }
    }

    #[inline(always)]
    fn widen_f16(self, from: &[f16; 8]) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn widen_bf16(self, from: &[bf16; 8]) -> __m256 {
        // SAFETY: see above.
        unsafe {
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high))
        }
    }

    #[inline(always)]
    fn widen_i8(self, from: &[i8; 8]) -> __m256 {
        // SAFETY: see above.
        unsafe {
            let bytes = _mm_loadl_epi64(from.as_ptr().cast());
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
        }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sums(self, [a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        // SAFETY: see above; the store goes to an array of four floats.
        unsafe {
            let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
            let low = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
            let high = _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd));
            let halves = _mm256_add_ps(low, high);
            let sums =
                _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        }
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 32]) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_bytes(self, value: __m256i, to: &mut [u8; 32]) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) }
    }

    #[inline(always)]
    fn bits(self, bytes: __m256i, shift: i32, mask: u8) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let shifted = if shift < 0 {
                _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(-shift))
            } else {
                _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift))
            };
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    fn dot<const L: usize>(self, bits: usize, weights: [__m256i; L], x: &[[i8; 4]; L]) -> __m256 {
        // Lanes whose products are added in 16 bits, as many as fit: 8 * 2 * 15 * 127,
        // 4 * 2 * 31 * 127, 2 * 2 * 63 * 127.
        let n_narrow = match bits {
            ..=4 => 8,
            5 => 4,
            6 => 2,
            _ => 1,
        };
        // SAFETY: see above.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut total = _mm256_setzero_si256();
            for first in (0..L).step_by(n_narrow) {
                let mut sum = _mm256_setzero_si256();
                for lane in first..L.min(first + n_narrow) {
                    sum = _mm256_add_epi16(sum, products(self, bits, weights[lane], &x[lane]));
                }
                total = _mm256_add_epi32(total, _mm256_madd_epi16(sum, ones));
            }
            _mm256_cvtepi32_ps(total)
        }
    }

    #[inline(always)]
    fn round(self, values: &[f32; 32], quants: &mut [[i8; 4]; 8]) -> (f32, [i32; 2]) {
        let values = values.as_chunks::<8>().0;
        let [a, b, c, d] = [&values[0], &values[1], &values[2], &values[3]].map(|x| self.load(x));
        // SAFETY: see above; the last store goes to 32 bytes.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            let (ab, cd) = (
                _mm256_max_ps(_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b)),
                _mm256_max_ps(_mm256_andnot_ps(sign, c), _mm256_andnot_ps(sign, d)),
            );
            let top = _mm256_max_ps(ab, cd);
            let top = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps::<1>(top));
            let top = _mm_max_ps(top, _mm_movehl_ps(top, top));
            let top = _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
            let inverse = self.splat(if top > 0.0 { 127.0 / top } else { 0.0 });
            let a = _mm256_cvtps_epi32(_mm256_mul_ps(a, inverse));
            let b = _mm256_cvtps_epi32(_mm256_mul_ps(b, inverse));
            let c = _mm256_cvtps_epi32(_mm256_mul_ps(c, inverse));
            let d = _mm256_cvtps_epi32(_mm256_mul_ps(d, inverse));
            let sums = _mm256_hadd_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
            let sums = _mm256_hadd_epi32(sums, sums);
            let sums =
                _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let sums = [_mm_extract_epi32::<0>(sums), _mm_extract_epi32::<1>(sums)];
            // Packing goes by halves of registers; the permutation puts fours back in order.
            let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm256_storeu_si256(quants.as_mut_ptr().cast(), bytes);
            (top / 127.0, sums)
        }
    }
}

/// The products of four columns of each row with four activations, added in pairs: sixteen sums
/// of 16 bits, 2 * 128 * 127 at most.
#[inline(always)]
fn products(_: Avx2, bits: usize, weights: __m256i, x: &[i8; 4]) -> __m256i {
    let x = i32::from_ne_bytes([x[0] as u8, x[1] as u8, x[2] as u8, x[3] as u8]);
    // SAFETY: the first argument proves the features.
    unsafe {
        let x = _mm256_set1_epi32(x);
        if bits == 8 {
            _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights))
        } else {
            _mm256_maddubs_epi16(weights, x)
        }
    }
}
