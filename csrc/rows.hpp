// The inner loops of `move`: rotate one pair of key dimensions, each dimension being a row that is contiguous over tokens.
//
//     row a   x0 x1 x2 ...  (tokens)          y_a = x_a * cos - x_b * sin
//     row b   x0 x1 x2 ...                    y_b = x_b * cos + x_a * sin
//
// cos and sin depend on the pair only, so they are scalars of the loop over tokens. Nothing here knows blocks or slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "isa.hpp"
#include "lanes.hpp"
#include "numeric.hpp"

namespace acm {

// Dimensions (first, second) of pair i.
struct Pairing {
    int64_t half;
    bool is_neox;
    int64_t first(int64_t i) const { return is_neox ? i : 2 * i; }
    int64_t second(int64_t i) const { return is_neox ? i + half : 2 * i + 1; }
};

template <class Type>
ACM_INLINE void turn_pair_body(const typename Type::Storage* __restrict xa, const typename Type::Storage* __restrict xb,
                               typename Type::Storage* __restrict ya, typename Type::Storage* __restrict yb,
                               int64_t num_tokens, float cos, float sin) {
    for (int64_t t = 0; t < num_tokens; ++t) {
        const float a = Type::load(xa[t]), b = Type::load(xb[t]);
        ya[t] = Type::store(a * cos - b * sin);
        yb[t] = Type::store(b * cos + a * sin);
    }
}

// VNNI rows of the `amx` layout: one 32-bit word holds dimensions (2r, 2r + 1) of one token, low half first. NeoX with
// an even rot_dim / 2 pairs word row r with word row r + rot_dim / 4; cos and sin come per dimension.
ACM_INLINE void rotate_words_neox_body(const uint32_t* src, uint32_t* dst, int64_t row_stride, int64_t num_tokens,
                                       int64_t num_rows, const float* cos, const float* sin) {
    for (int64_t row = 0; row < num_rows; ++row) {
        const float c0 = cos[2 * row], s0 = sin[2 * row], c1 = cos[2 * row + 1], s1 = sin[2 * row + 1];
        const uint32_t* __restrict xa = src + row * row_stride;
        const uint32_t* __restrict xb = src + (row + num_rows) * row_stride;
        uint32_t* __restrict ya = dst + row * row_stride;
        uint32_t* __restrict yb = dst + (row + num_rows) * row_stride;
        for (int64_t t = 0; t < num_tokens; ++t) {
            const float a0 = as_float(xa[t] << 16), a1 = as_float(xa[t] & 0xffff0000u);
            const float b0 = as_float(xb[t] << 16), b1 = as_float(xb[t] & 0xffff0000u);
            ya[t] = BFloat16::store(a0 * c0 - b0 * s0) | uint32_t{BFloat16::store(a1 * c1 - b1 * s1)} << 16;
            yb[t] = BFloat16::store(b0 * c0 + a0 * s0) | uint32_t{BFloat16::store(b1 * c1 + a1 * s1)} << 16;
        }
    }
}

// GPT-J: the pair (2r, 2r + 1) is one word.
ACM_INLINE void rotate_words_gptj_body(const uint32_t* src, uint32_t* dst, int64_t row_stride, int64_t num_tokens,
                                       int64_t num_rows, const float* cos, const float* sin) {
    for (int64_t row = 0; row < num_rows; ++row) {
        const float c = cos[row], s = sin[row];
        const uint32_t* __restrict x = src + row * row_stride;
        uint32_t* __restrict y = dst + row * row_stride;
        for (int64_t t = 0; t < num_tokens; ++t) {
            const float a = as_float(x[t] << 16), b = as_float(x[t] & 0xffff0000u);
            y[t] = BFloat16::store(a * c - b * s) | uint32_t{BFloat16::store(b * c + a * s)} << 16;
        }
    }
}

#if ACM_HAS_AVX2_CLONE
template <class Type>
ACM_AVX2 void turn_pair_avx2(const typename Type::Storage* xa, const typename Type::Storage* xb,
                             typename Type::Storage* ya, typename Type::Storage* yb, int64_t num_tokens, float cos,
                             float sin) {
    int64_t t = 0;
    if constexpr (sizeof(typename Type::Storage) == 2) {
        const __m256 c = _mm256_set1_ps(cos), s = _mm256_set1_ps(sin);
        for (; t + 8 <= num_tokens; t += 8) {
            const __m256 a = Lanes<Type>::load(xa + t), b = Lanes<Type>::load(xb + t);
            Lanes<Type>::store(ya + t, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
            Lanes<Type>::store(yb + t, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
        }
    }
    turn_pair_body<Type>(xa + t, xb + t, ya + t, yb + t, num_tokens - t, cos, sin);
}
ACM_AVX2 inline void rotate_words_avx2(bool neox, const uint32_t* src, uint32_t* dst, int64_t row_stride,
                                       int64_t num_tokens, int64_t num_rows, const float* cos, const float* sin) {
    if (neox)
        rotate_words_neox_body(src, dst, row_stride, num_tokens, num_rows, cos, sin);
    else
        rotate_words_gptj_body(src, dst, row_stride, num_tokens, num_rows, cos, sin);
}
#endif

template <class Type>
void turn_pair(const typename Type::Storage* xa, const typename Type::Storage* xb, typename Type::Storage* ya,
               typename Type::Storage* yb, int64_t num_tokens, float cos, float sin) {
#if ACM_HAS_AVX2_CLONE
    if (use_avx2()) return turn_pair_avx2<Type>(xa, xb, ya, yb, num_tokens, cos, sin);
#endif
    turn_pair_body<Type>(xa, xb, ya, yb, num_tokens, cos, sin);
}

inline void rotate_words(bool neox, const uint32_t* src, uint32_t* dst, int64_t row_stride, int64_t num_tokens,
                         int64_t num_rows, const float* cos, const float* sin) {
#if ACM_HAS_AVX2_CLONE
    if (use_avx2()) return rotate_words_avx2(neox, src, dst, row_stride, num_tokens, num_rows, cos, sin);
#endif
    if (neox)
        rotate_words_neox_body(src, dst, row_stride, num_tokens, num_rows, cos, sin);
    else
        rotate_words_gptj_body(src, dst, row_stride, num_tokens, num_rows, cos, sin);
}

}  // namespace acm
