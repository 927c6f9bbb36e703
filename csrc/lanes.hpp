// Eight 16-bit values of a KV cache to eight floats and back, with the rounding of numeric.hpp. x86 with AVX2 only:
// GCC vectorises the scalar conversions poorly (bfloat16) or not at all (float16).
#pragma once

#include "isa.hpp"
#include "numeric.hpp"

#if ACM_HAS_AVX2_CLONE
#include <immintrin.h>

namespace acm {

template <class Type>
struct Lanes;

template <>
struct Lanes<BFloat16> {
    ACM_AVX2 static ACM_INLINE __m256 load(const uint16_t* from) {
        const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(stored), 16));
    }
    ACM_AVX2 static ACM_INLINE void store(uint16_t* to, __m256 values) {
        const __m256i bits = _mm256_castps_si256(values);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
        const __m256 nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
        const __m256i chosen = _mm256_castps_si256(
            _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan));
        const __m256i high = _mm256_srli_epi32(chosen, 16);
        const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
    }
};

template <>
struct Lanes<Float16> {
    ACM_AVX2 static ACM_INLINE __m256 load(const uint16_t* from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
    ACM_AVX2 static ACM_INLINE void store(uint16_t* to, __m256 values) {
        const __m128i packed = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
    }
};

}  // namespace acm
#endif
