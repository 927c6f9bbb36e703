// Keys a cache line at a time, for AVX-512: a line is one register, parts of lines are masks, and a complete line goes
// around the caches in one store.
//
// The 16-bit conversions round as numeric.hpp does. VCVTNEPS2BF16 would be shorter, but takes subnormals for zero.
#pragma once

#include "isa.hpp"
#include "prefetch.hpp"
#include "cache_lines.hpp"
#include "numeric.hpp"
#include "rows.hpp"

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
ACM_AVX512 ACM_INLINE __m512 low_values(__m512i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
ACM_AVX512 ACM_INLINE __m512 high_values(__m512i words) {
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
ACM_AVX512 ACM_INLINE __m512i pack_words(__m512 low, __m512 high) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(round_bf16(low), 16), round_bf16(high));
}

// `pair` turns line `a`, of row i, and line `b`, of row j or of its partner row.
template <class Type>
struct Turn;

template <>
struct Turn<Float32> {
    ACM_AVX512 static ACM_INLINE void pair(__m512i& a, __m512i& b, const float* cos, const float* sin, int64_t i,
                                           int64_t) {
        const __m512 c = _mm512_set1_ps(cos[i]), s = _mm512_set1_ps(sin[i]);
        const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
        a = _mm512_castps_si512(_mm512_fmsub_ps(x, c, _mm512_mul_ps(y, s)));
        b = _mm512_castps_si512(_mm512_fmadd_ps(y, c, _mm512_mul_ps(x, s)));
    }
};

ACM_AVX512 ACM_INLINE void turn_words(__m512i& a, __m512i& b, __m512 c0, __m512 s0, __m512 c1, __m512 s1) {
    const __m512 a0 = low_values(a), a1 = high_values(a), b0 = low_values(b), b1 = high_values(b);
    a = pack_words(_mm512_fmsub_ps(a0, c0, _mm512_mul_ps(b0, s0)), _mm512_fmsub_ps(a1, c1, _mm512_mul_ps(b1, s1)));
    b = pack_words(_mm512_fmadd_ps(b0, c0, _mm512_mul_ps(a0, s0)), _mm512_fmadd_ps(b1, c1, _mm512_mul_ps(a1, s1)));
}

// Two tokens to a word; they turn alike.
template <>
struct Turn<BFloat16> {
    ACM_AVX512 static ACM_INLINE void pair(__m512i& a, __m512i& b, const float* cos, const float* sin, int64_t i,
                                           int64_t) {
        const __m512 c = _mm512_set1_ps(cos[i]), s = _mm512_set1_ps(sin[i]);
        turn_words(a, b, c, s, c, s);
    }
};

template <>
struct Turn<Float16> {
    ACM_AVX512 static ACM_INLINE __m512 low(__m512i x) { return _mm512_cvtph_ps(_mm512_castsi512_si256(x)); }
    ACM_AVX512 static ACM_INLINE __m512 high(__m512i x) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)); }
    ACM_AVX512 static ACM_INLINE __m512i join(__m512 low, __m512 high) {
        constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(low, nearest)), _mm512_cvtps_ph(high, nearest),
                                  1);
    }
    ACM_AVX512 static ACM_INLINE void pair(__m512i& a, __m512i& b, const float* cos, const float* sin, int64_t i,
                                           int64_t) {
        const __m512 c = _mm512_set1_ps(cos[i]), s = _mm512_set1_ps(sin[i]);
        const __m512 a0 = low(a), a1 = high(a), b0 = low(b), b1 = high(b);
        a = join(_mm512_fmsub_ps(a0, c, _mm512_mul_ps(b0, s)), _mm512_fmsub_ps(a1, c, _mm512_mul_ps(b1, s)));
        b = join(_mm512_fmadd_ps(b0, c, _mm512_mul_ps(a0, s)), _mm512_fmadd_ps(b1, c, _mm512_mul_ps(a1, s)));
    }
};

// `amx` words hold two dimensions of one token. NeoX pairs rows, GPT-J the two halves of a word.
struct TurnTileNeox {
    ACM_AVX512 static ACM_INLINE void pair(__m512i& a, __m512i& b, const float* cos, const float* sin, int64_t i,
                                           int64_t) {
        turn_words(a, b, _mm512_set1_ps(cos[2 * i]), _mm512_set1_ps(sin[2 * i]), _mm512_set1_ps(cos[2 * i + 1]),
                   _mm512_set1_ps(sin[2 * i + 1]));
    }
};

struct TurnTileGptj {
    ACM_AVX512 static ACM_INLINE __m512i one(__m512i x, float cos, float sin) {
        const __m512 c = _mm512_set1_ps(cos), s = _mm512_set1_ps(sin), a = low_values(x), b = high_values(x);
        return pack_words(_mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)), _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
    ACM_AVX512 static ACM_INLINE void pair(__m512i& a, __m512i& b, const float* cos, const float* sin, int64_t i,
                                           int64_t j) {
        a = one(a, cos[i], sin[i]);
        b = one(b, cos[j], sin[j]);
    }
};

struct TurnNothing {
    ACM_AVX512 static ACM_INLINE void pair(__m512i&, __m512i&, const float*, const float*, int64_t, int64_t) {}
};

struct LoadVec {
    ACM_AVX512 static ACM_INLINE __m512i line(const Cut& cut, int64_t offset) {
        const __m512i line = _mm512_maskz_loadu_epi8(cut.from_a, cut.a + offset);
        return cut.from_b == 0 ? line : _mm512_mask_loadu_epi8(line, cut.from_b, cut.b + offset);
    }
};

// Whole rows and a permutation, not shifted loads: those would touch lines that have just been written (see Staged).
struct LoadAmx {
    ACM_AVX512 static ACM_INLINE __m512i line(const Cut& cut, int64_t offset) {
        const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i words = _mm512_add_epi32(lanes, _mm512_set1_epi32(cut.first));
        return _mm512_permutex2var_epi32(_mm512_loadu_si512(cut.a + offset), words,
                                         _mm512_loadu_si512(cut.b + offset));
    }
};

// One head: how far its source lies behind head 0, and the K half that is written.
struct Head {
    int64_t src;
    char* dst;
    bool streamed;
    Ahead* ahead;

    ACM_AVX512 ACM_INLINE void store(int64_t offset, __mmask64 bytes, __m512i line) const {
        if (bytes != ~__mmask64{0})
            _mm512_mask_storeu_epi8(dst + offset, bytes, line);
        else if (streamed)
            _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + offset), line);
        else
            _mm512_storeu_si512(dst + offset, line);
    }
};

// Two rows (i and j, or i and its partner), by their distance in bytes from row 0.
struct TwoRows {
    int64_t a, b, i, j;
};

struct TwoLines {
    __m512i a, b;
    __mmask64 bytes;
};

// The line that `cut` begins, in two rows; `cut` is left at the next line.
template <class Load, class Turning>
ACM_AVX512 ACM_INLINE TwoLines turn_line(const Cut*& cut, const Head& head, const TwoRows& rows) {
    TwoLines lines{_mm512_setzero_si512(), _mm512_setzero_si512(), 0};
    for (bool more = true; more; ++cut) {
        __m512i a = Load::line(*cut, head.src + rows.a), b = Load::line(*cut, head.src + rows.b);
        if (cut->cos != nullptr) Turning::pair(a, b, cut->cos, cut->sin, rows.i, rows.j);
        const __mmask64 bytes = cut->from_a | cut->from_b;
        lines = {_mm512_mask_mov_epi8(lines.a, bytes, a), _mm512_mask_mov_epi8(lines.b, bytes, b), lines.bytes | bytes};
        more = cut->more;
    }
    return lines;
}

// Lines are read, all of a row, before the first is written. A load waits for every store under way to an address that
// agrees with its own in the low 12 bits, and these do: blocks are multiples of 4 KiB, so that a row has the same low
// bits in the source as in the destination, and for many shapes both rows of a pair have.
struct Staged {
    static constexpr int kMax = 16;
    alignas(kLine) char a[kMax][kLine], b[kMax][kLine];
    int64_t dst[kMax];
    uint64_t bytes[kMax];
};

template <class Turning>
ACM_AVX512 ACM_INLINE void move_two_rows_vec(const std::vector<Cut>& cuts, const Head& head, const TwoRows& rows,
                                             Staged& staged) {
    const Cut *cut = cuts.data(), *end = cut + cuts.size();
    while (cut < end) {
        int n = 0;
        for (; cut < end && n < Staged::kMax; ++n) {
            staged.dst[n] = cut->dst;
            const TwoLines lines = turn_line<LoadVec, Turning>(cut, head, rows);
            staged.bytes[n] = lines.bytes;
            _mm512_store_si512(staged.a[n], lines.a);
            _mm512_store_si512(staged.b[n], lines.b);
        }
        for (int k = 0; k < n; ++k) {
            head.store(rows.a + staged.dst[k], staged.bytes[k], _mm512_load_si512(staged.a[k]));
            head.store(rows.b + staged.dst[k], staged.bytes[k], _mm512_load_si512(staged.b[k]));
        }
        head.ahead->ask(2 * n);
    }
}

template <class Type>
ACM_AVX512 void move_keys_vec_avx512(const Layer& layer, const Rope* rope, const std::vector<Cut>& cuts,
                                     const Head& head) {
    const int64_t row = layer.block_size * itemsize(layer.dtype), hs = layer.head_size;
    const Pairing pairing{rope == nullptr ? 0 : rope->rot_dim / 2, rope != nullptr && rope->is_neox};
    Staged staged;
    for (int64_t i = 0; i < pairing.half; ++i)
        move_two_rows_vec<Turn<Type>>(cuts, head, {pairing.first(i) * row, pairing.second(i) * row, i, i}, staged);
    for (int64_t d = 2 * pairing.half; d < hs; d += 2)
        move_two_rows_vec<TurnNothing>(cuts, head, {d * row, std::min(d + 1, hs - 1) * row, d, d}, staged);
}

template <class Turning>
ACM_AVX512 ACM_INLINE const Cut* move_two_rows_amx(const Cut* cut, const Head& head, const TwoRows& rows) {
    const int64_t dst = cut->dst;
    const TwoLines lines = turn_line<LoadAmx, Turning>(cut, head, rows);
    head.store(rows.a + dst, lines.bytes, lines.a);
    head.store(rows.b + dst, lines.bytes, lines.b);
    head.ahead->ask(2);
    return cut;
}

ACM_AVX512 inline void move_keys_amx_avx512(const Layer& layer, const Rope* rope, const std::vector<Cut>& cuts,
                                            const Head& head) {
    const Cut *cut = cuts.data(), *end = cut + cuts.size();
    const int64_t num_rows = layer.head_size / 2, num_turned = rope == nullptr ? 0 : rope->rot_dim / 2;
    const auto two = [](int64_t r, int64_t limit) {
        const int64_t next = std::min(r + 1, limit - 1);
        return TwoRows{r * kLine, next * kLine, r, next};
    };
    while (cut < end) {
        const Cut* next = cut;
        if (rope != nullptr && rope->is_neox) {
            for (int64_t r = 0; r < num_turned / 2; ++r)
                next = move_two_rows_amx<TurnTileNeox>(cut, head, {r * kLine, (r + num_turned / 2) * kLine, r, r});
        } else {
            for (int64_t r = 0; r < num_turned; r += 2)
                next = move_two_rows_amx<TurnTileGptj>(cut, head, two(r, num_turned));
        }
        for (int64_t r = num_turned; r < num_rows; r += 2)
            next = move_two_rows_amx<TurnNothing>(cut, head, two(r, num_rows));
        cut = next;
    }
}

// `amx` values between offsets of different parity: a destination word takes the high half of one source word and the
// low half of the word below it. A row is 16 words, one line.
ACM_AVX512 inline void join_tokens_avx512(const uint32_t* from, uint32_t* to, int64_t num_rows, bool streamed,
                                          Ahead& ahead) {
    const Head head{0, reinterpret_cast<char*>(to), streamed && reinterpret_cast<uintptr_t>(to) % kLine == 0, &ahead};
    __m512i row = _mm512_loadu_si512(from);
    for (int64_t r = 0; r < num_rows; ++r) {
        if (r % 8 == 0) ahead.ask(std::min<int64_t>(8, num_rows - r));
        const __m512i below = _mm512_loadu_si512(from + (r + 1) * kTile);
        const __m512i words = _mm512_or_si512(_mm512_srli_epi32(row, 16), _mm512_slli_epi32(below, 16));
        head.store(r * kLine, ~__mmask64{0}, words);
        row = below;
    }
}

}  // namespace acm

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
