// The inner loops of rows.hpp and head_amx.hpp for AVX-512: sixteen values at once, ends by masks instead of a scalar
// rest. A row of an `amx` tile is 16 words, so it is one register and one cache line.
//
// The 16-bit conversions round as numeric.hpp does. VCVTNEPS2BF16 would be shorter, but takes subnormals for zero.
#pragma once

#include "isa.hpp"
#include "numeric.hpp"

#if ACM_HAS_AVX2_CLONE
#include <immintrin.h>

#if !defined(__clang__)
// GCC before 13 warns of its own _mm512_undefined_epi32 (bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace acm {

// bf16 of each value in the high half of its word; the low half is rubbish. NaN needs no care here: the values come from
// products of bf16 numbers, and the NaN of such a product has an empty low half, so that rounding cannot carry.
ACM_AVX512 ACM_INLINE __m512i round_bf16(__m512 values) {
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

template <class Type>
struct Wide;

template <>
struct Wide<Float32> {
    ACM_AVX512 static ACM_INLINE __m512 load(__mmask16 lanes, const float* from) {
        return _mm512_maskz_loadu_ps(lanes, from);
    }
    ACM_AVX512 static ACM_INLINE void store(__mmask16 lanes, float* to, __m512 values) {
        _mm512_mask_storeu_ps(to, lanes, values);
    }
};

template <>
struct Wide<BFloat16> {
    ACM_AVX512 static ACM_INLINE __m512 load(__mmask16 lanes, const uint16_t* from) {
        const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
        return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    }
    ACM_AVX512 static ACM_INLINE void store(__mmask16 lanes, uint16_t* to, __m512 values) {
        const __m256i packed = _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(values), 16));
        _mm256_mask_storeu_epi16(to, lanes, packed);
    }
};

template <>
struct Wide<Float16> {
    ACM_AVX512 static ACM_INLINE __m512 load(__mmask16 lanes, const uint16_t* from) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, from));
    }
    ACM_AVX512 static ACM_INLINE void store(__mmask16 lanes, uint16_t* to, __m512 values) {
        _mm256_mask_storeu_epi16(to, lanes, _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
};

template <class Type>
ACM_AVX512 void turn_pair_avx512(const typename Type::Storage* xa, const typename Type::Storage* xb,
                                 typename Type::Storage* ya, typename Type::Storage* yb, int64_t num_tokens, float cos,
                                 float sin) {
    const __m512 c = _mm512_set1_ps(cos), s = _mm512_set1_ps(sin);
    for (int64_t t = 0; t < num_tokens; t += 16) {
        const int64_t left = num_tokens - t;
        const __mmask16 lanes = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
        const __m512 a = Wide<Type>::load(lanes, xa + t), b = Wide<Type>::load(lanes, xb + t);
        Wide<Type>::store(lanes, ya + t, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        Wide<Type>::store(lanes, yb + t, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

// The keys of up to 16 tokens that fill lanes of one destination tile; they come from one or two source tiles.
//
//     source tiles        |. . . A A A|B B . . . .|          a row of each is 16 words
//     destination tile        |. A A A B B|                  lanes `from_a`, `from_b`; both together are written
struct TileMove {
    const uint32_t *a, *b;  // so that lane l of row r is a[16 r + l], b[16 r + l]
    uint32_t* dst;
    __mmask16 from_a, from_b;
    bool streamed;

    ACM_AVX512 ACM_INLINE __m512i load(int64_t row) const {
        if (from_a == 0xffff) return _mm512_loadu_si512(a + row * 16);
        return _mm512_mask_loadu_epi32(_mm512_maskz_loadu_epi32(from_a, a + row * 16), from_b, b + row * 16);
    }
    ACM_AVX512 ACM_INLINE void store(int64_t row, __m512i words) const {
        if (streamed)
            _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + row * 16), words);
        else
            _mm512_mask_storeu_epi32(dst + row * 16, static_cast<__mmask16>(from_a | from_b), words);
    }
};

ACM_AVX512 ACM_INLINE __m512 low_values(__m512i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
ACM_AVX512 ACM_INLINE __m512 high_values(__m512i words) {
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
ACM_AVX512 ACM_INLINE __m512i pack_words(__m512 low, __m512 high) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(round_bf16(low), 16), round_bf16(high));
}

// Rows `[0, rot_dim / 2)` turn, the others up to `num_rows` are copied; `rot_dim` 0 copies all.
ACM_AVX512 inline void move_tile_avx512(const TileMove& tile, int64_t num_rows, int64_t rot_dim, bool is_neox,
                                        const float* cos, const float* sin) {
    if (is_neox) {
        const int64_t half = rot_dim / 4;
        for (int64_t row = 0; row < half; ++row) {
            const __m512i xa = tile.load(row), xb = tile.load(row + half);
            const __m512 c0 = _mm512_set1_ps(cos[2 * row]), c1 = _mm512_set1_ps(cos[2 * row + 1]);
            const __m512 s0 = _mm512_set1_ps(sin[2 * row]), s1 = _mm512_set1_ps(sin[2 * row + 1]);
            const __m512 a0 = low_values(xa), a1 = high_values(xa), b0 = low_values(xb), b1 = high_values(xb);
            tile.store(row, pack_words(_mm512_fmsub_ps(a0, c0, _mm512_mul_ps(b0, s0)),
                                       _mm512_fmsub_ps(a1, c1, _mm512_mul_ps(b1, s1))));
            tile.store(row + half, pack_words(_mm512_fmadd_ps(b0, c0, _mm512_mul_ps(a0, s0)),
                                              _mm512_fmadd_ps(b1, c1, _mm512_mul_ps(a1, s1))));
        }
    } else {
        for (int64_t row = 0; row < rot_dim / 2; ++row) {
            const __m512i x = tile.load(row);
            const __m512 c = _mm512_set1_ps(cos[row]), s = _mm512_set1_ps(sin[row]);
            const __m512 a = low_values(x), b = high_values(x);
            tile.store(row, pack_words(_mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)),
                                       _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s))));
        }
    }
    for (int64_t row = rot_dim / 2; row < num_rows; ++row) tile.store(row, tile.load(row));
}

}  // namespace acm

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
