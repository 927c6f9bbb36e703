// Moves rows of the `latent` layout. A row is one token: the latent, which is copied, and the rotary key behind it.
//
//     |latent, value_size ..........|key, head_size|     one piece of memory for each token
//                copy                     turn
#pragma once

#include <cstring>

#include "cache_lines.hpp"
#include "isa.hpp"
#include "layout.hpp"
#include "numeric.hpp"
#include "rows.hpp"

namespace acm {

// `src` and `dst` are the first rows, with `stride` elements from a row to the next.
template <class Type>
ACM_INLINE void turn_rows_body(const typename Type::Storage* src, typename Type::Storage* dst, int64_t num_tokens,
                               int64_t stride, const Pairing& pairing, const float* cos, const float* sin) {
    for (int64_t t = 0; t < num_tokens; ++t) {
        const typename Type::Storage* __restrict from = src + t * stride;
        typename Type::Storage* __restrict to = dst + t * stride;
        for (int64_t i = 0; i < pairing.half; ++i) {
            const int64_t first = pairing.first(i), second = pairing.second(i);
            const float a = Type::load(from[first]), b = Type::load(from[second]);
            to[first] = Type::store(a * cos[i] - b * sin[i]);
            to[second] = Type::store(b * cos[i] + a * sin[i]);
        }
    }
}

#if ACM_HAS_AVX2_CLONE
template <class Type>
ACM_AVX2 void turn_rows_avx2(const typename Type::Storage* src, typename Type::Storage* dst, int64_t num_tokens,
                             int64_t stride, const Pairing& pairing, const float* cos, const float* sin) {
    turn_rows_body<Type>(src, dst, num_tokens, stride, pairing, cos, sin);
}
#endif

template <class Type>
void turn_rows(const typename Type::Storage* src, typename Type::Storage* dst, int64_t num_tokens, int64_t stride,
               const Pairing& pairing, const float* cos, const float* sin) {
#if ACM_HAS_AVX2_CLONE
    if (use_avx2()) return turn_rows_avx2<Type>(src, dst, num_tokens, stride, pairing, cos, sin);
#endif
    turn_rows_body<Type>(src, dst, num_tokens, stride, pairing, cos, sin);
}

// `dst_block` is the destination block. Only the run's slots are written: all of each row, then its turned numbers anew.
template <class Type>
void move_rows_latent(const Layer& layer, const Rope* rope, const Piece& piece, char* dst_block) {
    using Storage = typename Type::Storage;
    const int64_t stride = layer.value_size + layer.head_size, n = piece.run->num_tokens;
    const Storage* src = reinterpret_cast<const Storage*>(piece.src) + piece.run->src_offset * stride;
    Storage* dst = reinterpret_cast<Storage*>(dst_block) + piece.run->dst_offset * stride;
    std::memcpy(dst, src, static_cast<size_t>(n * stride) * sizeof(Storage));
    if (piece.cos == nullptr) return;
    const Pairing pairing{rope->rot_dim / 2, rope->is_neox};
    turn_rows<Type>(src + layer.value_size, dst + layer.value_size, n, stride, pairing, piece.cos, piece.sin);
}

}  // namespace acm
