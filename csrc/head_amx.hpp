// Moves one run of one head in the `amx` layout (bf16, VNNI): two values share a 32-bit word.
//
//     K  tiles of 16 tokens; a tile is head_size/2 rows of 16 words; word (row r, token t) = dimensions 2r, 2r+1 of t
//     V  panels of 16 dimensions; a panel is block_size/2 rows of 16 words; word (row r, dim d) = tokens 2r, 2r+1 of d
//
// K words belong to one token. A run is cut where the source or the destination enters a new tile, and then handled
// like `vec` (with AVX-512: cache_lines.hpp). V words belong to two tokens. Where source and destination offsets differ
// in parity, each destination word takes the high half of one source word and the low half of the next.
#pragma once

#include <algorithm>
#include <cstring>

#include "layout.hpp"
#include "cache_lines.hpp"
#include "rows.hpp"
#include "runs.hpp"
#include "stream.hpp"
#include "avx512.hpp"

namespace acm {

// `cos` is null for a plain copy. `src_half` and `dst_half` are the K halves of two heads.
inline void move_keys_amx(const Layer& layer, const Rope* rope, const Run& run, const char* src_half, char* dst_half,
                          const float* cos, const float* sin) {
    const uint32_t* src = reinterpret_cast<const uint32_t*>(src_half);
    uint32_t* dst = reinterpret_cast<uint32_t*>(dst_half);
    const int64_t num_rows = layer.head_size / 2, tile_words = kTile * num_rows;
    for (int64_t done = 0; done < run.num_tokens;) {
        const int64_t s = run.src_offset + done, d = run.dst_offset + done;
        const int64_t n = std::min({run.num_tokens - done, kTile - s % kTile, kTile - d % kTile});
        const uint32_t* from = src + s / kTile * tile_words + s % kTile;
        uint32_t* to = dst + d / kTile * tile_words + d % kTile;
        int64_t first_copied = 0;
        if (cos != nullptr) {
            rotate_words(rope->is_neox, from, to, kTile, n, rope->rot_dim / (rope->is_neox ? 4 : 2), cos, sin);
            first_copied = rope->rot_dim / 2;
        }
        for (int64_t row = first_copied; row < num_rows; ++row)
            std::memcpy(to + row * kTile, from + row * kTile, static_cast<size_t>(n) * sizeof(uint32_t));
        done += n;
    }
}

// `src_half` and `dst_half` are the V halves.
inline void move_values_amx(const Layer& layer, const Run& run, const char* src_half, char* dst_half, bool streamed,
                            Ahead& ahead) {
    const uint16_t* src = reinterpret_cast<const uint16_t*>(src_half);
    uint16_t* dst = reinterpret_cast<uint16_t*>(dst_half);
    const int64_t panel = kTile * layer.block_size, num_panels = layer.head_size / kTile;
    const int64_t begin = run.dst_offset, end = run.dst_offset + run.num_tokens;
    const int64_t shift = run.src_offset - run.dst_offset;
    const auto copy_token = [&](int64_t t) {
        const int64_t s = t + shift;
        for (int64_t d = 0; d < kTile; ++d)
            dst[t / 2 * 32 + d * 2 + t % 2] = src[s / 2 * 32 + d * 2 + s % 2];
    };
    for (int64_t p = 0; p < num_panels; ++p, src += panel, dst += panel) {
        const int64_t first_pair = (begin + 1) / 2, last_pair = end / 2;  // destination words that are written whole
        if (begin % 2 != 0) copy_token(begin);
        if (end % 2 != 0 && end - 1 >= begin + begin % 2) copy_token(end - 1);
        if (first_pair >= last_pair) continue;
        const size_t num_words = static_cast<size_t>(last_pair - first_pair) * kTile;
        const uint32_t* from = reinterpret_cast<const uint32_t*>(src) + (2 * first_pair + shift) / 2 * kTile;
        uint32_t* to = reinterpret_cast<uint32_t*>(dst) + first_pair * kTile;
        if (shift % 2 == 0) {
            copy_bytes(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from),
                       static_cast<int64_t>(num_words * sizeof(uint32_t)), streamed, ahead);
        } else {
#if ACM_HAS_AVX2_CLONE
            if (use_avx512()) {
                join_tokens_avx512(from, to, last_pair - first_pair, streamed, ahead);
                continue;
            }
#endif
            const uint32_t* next = from + kTile;
            for (size_t w = 0; w < num_words; ++w) to[w] = from[w] >> 16 | next[w] << 16;
        }
    }
}

}  // namespace acm
