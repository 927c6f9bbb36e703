// Cuts the K half of one destination block into cache lines, for kernels that load, turn and store a line at a time.
//
// Both layouts are stacks of rows in which the tokens run along the row. A line holds the same tokens in every row, so
// one list of cuts serves all rows and all heads of a block:
//
//     source, row r        |. . a a a a|   |b b b b b . .|       two runs, or two tiles
//     destination, row r       |a a a a b b b b|b . . .          a line: 64 bytes
//
//             a row                             tokens of a line       rows lie apart by
//     vec     one dimension, block_size tokens  64 / itemsize          block_size * itemsize
//     amx     two dimensions, one tile          16: the whole row      64
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "prefetch.hpp"
#include "layout.hpp"
#include "runs.hpp"

namespace acm {

constexpr int64_t kTile = 16;  // tokens of an `amx` tile

// A run, the K half of head 0 that it reads, and the angles of its segment; `cos` is null for a plain copy.
struct Piece {
    const Run* run;
    const char* src;
    const float* cos;
    const float* sin;
};

// What one line takes from one or two places, with one rotation. Addresses are those of row 0 in head 0.
//
//     vec     bytes `from_a` of the line at `a` and bytes `from_b` of the line at `b`; both may lie anywhere, even
//             before the block: what is outside of it is masked
//     amx     bytes `from_a` of the 16 words that begin at word `first` of the rows at `a` and `b` put together
struct Cut {
    const char *a, *b;
    int64_t dst;  // of the line, from the start of the K half
    uint64_t from_a, from_b;
    const float *cos, *sin;
    int32_t first;
    bool more;  // the next cut writes the same line
};

inline Cut cut_vec(const Layer& layer, const Piece& piece, int64_t src_token, int64_t lane) {
    const char* from = piece.src + (src_token - lane) * itemsize(layer.dtype);
    return {from, from, 0, 0, 0, piece.cos, piece.sin, 0, false};
}

// Of the two tiles that the line spans, one that is not needed is replaced by the other: it may lie outside.
inline Cut cut_amx(const Layer& layer, const Piece& piece, int64_t src_token, int64_t lane, int64_t num_tokens) {
    const int64_t tile_bytes = kLine * layer.head_size / 2;
    const int64_t first = (src_token - lane + kTile) % kTile, tile_of_lane_0 = (src_token - lane + kTile) / kTile - 1;
    const int64_t last = (src_token + num_tokens - 1) / kTile;
    const int64_t a = src_token / kTile == tile_of_lane_0 ? tile_of_lane_0 : last;
    return {piece.src + a * tile_bytes, piece.src + last * tile_bytes, 0, 0, 0, piece.cos, piece.sin,
            static_cast<int32_t>(first), false};
}

inline void cut_lines(const Layer& layer, const std::vector<Piece>& pieces, std::vector<Cut>& cuts) {
    const bool amx = layer.layout == Layout::amx;
    const int64_t token = amx ? 4 : itemsize(layer.dtype), in_line = kLine / token;
    const int64_t line_stride = amx ? kLine * layer.head_size / 2 : kLine;
    cuts.clear();
    for (const Piece& piece : pieces) {
        const Run& run = *piece.run;
        for (int64_t done = 0, n; done < run.num_tokens; done += n) {
            const int64_t s = run.src_offset + done, d = run.dst_offset + done, lane = d % in_line;
            n = std::min(run.num_tokens - done, in_line - lane);
            Cut cut = amx ? cut_amx(layer, piece, s, lane, n) : cut_vec(layer, piece, s, lane);
            cut.dst = d / in_line * line_stride;
            cut.from_a = ~uint64_t{0} >> (kLine - n * token) << (lane * token);
            if (!cuts.empty() && cuts.back().dst == cut.dst) {
                Cut& last = cuts.back();
                if (!amx && last.cos == cut.cos && last.from_b == 0) {
                    last.b = cut.a;
                    last.from_b = cut.from_a;
                    continue;
                }
                last.more = true;
            }
            cuts.push_back(cut);
        }
    }
}

}  // namespace acm
