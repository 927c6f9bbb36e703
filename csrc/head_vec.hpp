// Moves the keys and values of one head in the `vec` layout. K rows run over tokens, V rows over dimensions:
//
//     K  [head_size, block_size]   row d: |....[so ... so+n)..|  ->  |..[do ... do+n)....|    head_size pieces
//     V  [block_size, head_size]          one contiguous piece of n * head_size elements
#pragma once

#include <cstring>
#include <vector>

#include "layout.hpp"
#include "cache_lines.hpp"
#include "rows.hpp"
#include "runs.hpp"
#include "stream.hpp"

namespace acm {

constexpr int64_t kMaxRow = 4096;  // tokens of a row that is put together on the stack

// `dst_half` is the K half of the destination head; only the run's slots are written.
template <class Type>
void move_keys_vec(const Layer& layer, const Rope* rope, const Piece& piece, int64_t head, char* dst_half) {
    using Storage = typename Type::Storage;
    const int64_t bs = layer.block_size, hs = layer.head_size, n = piece.run->num_tokens;
    const Storage* src = reinterpret_cast<const Storage*>(piece.src + head) + piece.run->src_offset;
    Storage* dst = reinterpret_cast<Storage*>(dst_half) + piece.run->dst_offset;

    int64_t first_copied = 0;
    if (piece.cos != nullptr) {
        const Pairing pairing{rope->rot_dim / 2, rope->is_neox};
        for (int64_t i = 0; i < pairing.half; ++i) {
            const int64_t a = pairing.first(i) * bs, b = pairing.second(i) * bs;
            turn_pair<Type>(src + a, src + b, dst + a, dst + b, n, piece.cos[i], piece.sin[i]);
        }
        first_copied = rope->rot_dim;
    }
    const int64_t rows_at_once = n == bs ? hs - first_copied : 1;
    for (int64_t d = first_copied; d < hs; d += rows_at_once)
        std::memcpy(dst + d * bs, src + d * bs, static_cast<size_t>(rows_at_once * n) * sizeof(Storage));
}

// The same for pieces that together write every slot of the block: each row is put together in the first-level cache
// and streamed to memory. `can_stream` holds for each row.
template <class Type>
void stream_keys_vec(const Layer& layer, const Rope* rope, const std::vector<Piece>& pieces, int64_t head,
                     char* dst_half, Ahead& ahead) {
    using Storage = typename Type::Storage;
    const int64_t bs = layer.block_size, row_bytes = bs * static_cast<int64_t>(sizeof(Storage));
    alignas(kLine) Storage a[kMaxRow], b[kMaxRow];
    const auto copy = [&](const Piece& piece, int64_t d, Storage* row) {
        const Storage* src = reinterpret_cast<const Storage*>(piece.src + head) + d * bs + piece.run->src_offset;
        std::memcpy(row + piece.run->dst_offset, src, static_cast<size_t>(piece.run->num_tokens) * sizeof(Storage));
    };
    const Pairing pairing{rope == nullptr ? 0 : rope->rot_dim / 2, rope != nullptr && rope->is_neox};
    for (int64_t i = 0; i < pairing.half; ++i) {
        const int64_t first = pairing.first(i), second = pairing.second(i);
        ahead.ask(2 * row_bytes / kLine);
        for (const Piece& piece : pieces) {
            if (piece.cos == nullptr) {
                copy(piece, first, a);
                copy(piece, second, b);
                continue;
            }
            const Storage* src = reinterpret_cast<const Storage*>(piece.src + head) + piece.run->src_offset;
            turn_pair<Type>(src + first * bs, src + second * bs, a + piece.run->dst_offset, b + piece.run->dst_offset,
                            piece.run->num_tokens, piece.cos[i], piece.sin[i]);
        }
        stream(dst_half + first * row_bytes, a, row_bytes);
        stream(dst_half + second * row_bytes, b, row_bytes);
    }
    for (int64_t d = 2 * pairing.half; d < layer.head_size; ++d) {
        ahead.ask(row_bytes / kLine);
        for (const Piece& piece : pieces) copy(piece, d, a);
        stream(dst_half + d * row_bytes, a, row_bytes);
    }
}

// `src` and `dst` are V halves.
inline void move_values_vec(const Layer& layer, const Run& run, const char* src, char* dst, bool streamed,
                            Ahead& ahead) {
    const int64_t token = layer.head_size * itemsize(layer.dtype);
    copy_bytes(dst + run.dst_offset * token, src + run.src_offset * token, run.num_tokens * token, streamed, ahead);
}

}  // namespace acm
