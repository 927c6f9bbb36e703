// `move` over all layers of a model at once: a table of layers, built once because KV caches do not move, and one call
// per scheduler step. Work is handed out as (layer, destination block) items. Heads and runs are the inner loops.
//
// It checks addresses (a slot outside of the cache never becomes a pointer). That source and destination blocks are
// disjoint is checked by the Python side for every implementation alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "prefetch.hpp"
#include "head_amx.hpp"
#include "head_latent.hpp"
#include "head_vec.hpp"
#include "layout.hpp"
#include "cache_lines.hpp"
#include "pool.hpp"
#include "runs.hpp"
#include "stream.hpp"
#include "avx512.hpp"

namespace acm {

// cos and sin of one rope, [num_segments, rot_dim / 2] each.
struct Angles {
    const float* cos;
    const float* sin;
};

struct Segments {
    const int64_t* ends;
    const int64_t* deltas;
    int64_t count;
};

class Mover {
  public:
    Mover(std::vector<Layer> layers, std::vector<Rope> ropes) : layers_(std::move(layers)), ropes_(std::move(ropes)) {
        if (layers_.empty()) throw std::invalid_argument("no layers");
        for (const Layer& layer : layers_) {
            if (layer.rope < -1 || layer.rope >= static_cast<int64_t>(ropes_.size()))
                throw std::invalid_argument("rope index " + std::to_string(layer.rope) + " out of range");
            if (layer.block_size != block_size())
                throw std::invalid_argument("layers of one mover share their block_size");
            check_layer(layer, rope_of(layer));
        }
    }

    int64_t block_size() const { return layers_.front().block_size; }
    const std::vector<Rope>& ropes() const { return ropes_; }

    void move(const int64_t* src_slots, const int64_t* dst_slots, int64_t num_slots, const Segments& segments,
              const std::vector<Angles>& angles, int num_threads, const std::vector<int>& cpus) const {
        const std::vector<Run> runs =
            cut_runs(src_slots, dst_slots, num_slots, segments.ends, segments.count, block_size());
        int64_t num_bytes = 0;
        for (const Layer& layer : layers_) {
            check_blocks(layer, runs);
            num_bytes += num_slots * layer.num_kv_heads * (layer.head_size + layer.value_size) * itemsize(layer.dtype);
        }
        const std::vector<size_t> groups = group_by_destination(runs);
        const auto num_groups = static_cast<int64_t>(groups.size()) - 1;
        const auto num_layers = static_cast<int64_t>(layers_.size());
        const bool large = num_bytes >= kStreamBytes;
        // Waking a helper costs tens of microseconds, about what one thread needs for this many bytes.
        if (num_bytes < (int64_t{1} << 19)) num_threads = 1;
        Pool::of_process().run(num_layers * num_groups, num_threads, cpus, [&](int64_t item) {
            const Layer& layer = layers_[static_cast<size_t>(item / num_groups)];
            const auto group = static_cast<size_t>(item % num_groups);
            const Angles* turn = layer.rope < 0 ? nullptr : &angles[static_cast<size_t>(layer.rope)];
            const bool streamed = large && layer.layout != Layout::latent;
            const Span<Run> span{runs.data() + groups[group], runs.data() + groups[group + 1]};
            Ahead ahead(layer, rope_of(layer), span, {runs.data(), runs.data() + runs.size()}, streamed);
            move_block(layer, span, segments, turn, streamed, ahead);
            stream_fence();
        });
    }

  private:
    const Rope* rope_of(const Layer& layer) const {
        return layer.rope < 0 ? nullptr : &ropes_[static_cast<size_t>(layer.rope)];
    }

    static void check_blocks(const Layer& layer, const std::vector<Run>& runs) {
        for (const Run& run : runs)
            if (run.src_block >= layer.num_blocks || run.dst_block >= layer.num_blocks)
                throw std::invalid_argument("block " + std::to_string(std::max(run.src_block, run.dst_block)) +
                                            " outside of a cache of " + std::to_string(layer.num_blocks) + " blocks");
    }

    // All runs that write one destination block. A whole block that is merely copied is one piece of memory per head.
    void move_block(const Layer& layer, Span<Run> runs, const Segments& segments, const Angles* angles, bool streamed,
                    Ahead& ahead) const {
        thread_local std::vector<Piece> pieces;
        thread_local std::vector<Cut> cuts;
        pieces.clear();
        cuts.clear();
        int64_t num_tokens = 0;
        bool turns = false;
        for (const Run& run : runs) {
            Piece piece{&run, layer.head(run.src_block, 0), nullptr, nullptr};
            if (angles != nullptr && segments.deltas[run.segment] != 0) {
                const int64_t row = run.segment * (rope_of(layer)->rot_dim / 2);
                piece.cos = angles->cos + row;
                piece.sin = angles->sin + row;
                turns = true;
            }
            pieces.push_back(piece);
            num_tokens += run.num_tokens;
        }
        char* dst = layer.head(runs.first->dst_block, 0);
        if (layer.layout == Layout::latent) {
            for (const Piece& piece : pieces)
                with_type(layer, [&](auto type) { move_rows_latent<decltype(type)>(layer, rope_of(layer), piece, dst); });
            return;
        }
        const int64_t half = layer.block_size * layer.head_size * itemsize(layer.dtype);
        const bool whole = num_tokens == layer.block_size, one_piece = whole && !turns && runs.size() == 1;
        if (!one_piece && by_lines(layer)) cut_lines(layer, pieces, cuts);
        for (int64_t index = 0; index < layer.num_kv_heads; ++index) {
            const int64_t head = index * layer.head_stride;
            if (one_piece) {
                copy_bytes(dst + head, pieces.front().src + head, 2 * half, streamed, ahead);
                continue;
            }
            move_keys(layer, pieces, cuts, head, dst + head, whole, streamed, ahead);
            for (const Piece& piece : pieces) {
                const char* src = piece.src + head + half;
                if (layer.layout == Layout::amx)
                    move_values_amx(layer, *piece.run, src, dst + head + half, streamed, ahead);
                else
                    move_values_vec(layer, *piece.run, src, dst + head + half, streamed, ahead);
            }
        }
    }

    // The keys of one head: `head` bytes behind head 0 of the sources. `whole`: every slot of the block is written.
    void move_keys(const Layer& layer, const std::vector<Piece>& pieces, const std::vector<Cut>& cuts, int64_t head,
                   char* dst, bool whole, bool streamed, Ahead& ahead) const {
        const Rope* rope = rope_of(layer);
        const bool amx = layer.layout == Layout::amx;
        streamed = streamed && can_stream(dst, amx ? kLine : layer.block_size * itemsize(layer.dtype));
#if ACM_HAS_AVX2_CLONE
        if (by_lines(layer)) {
            const Head target{head, dst, streamed, &ahead};
            if (amx)
                move_keys_amx_avx512(layer, rope, cuts, target);
            else
                with_type(layer, [&](auto type) {
                    if constexpr (sizeof(typename decltype(type)::Storage) > 1)
                        move_keys_vec_avx512<decltype(type)>(layer, rope, cuts, target);
                });
            return;
        }
#endif
        if (!amx && whole && streamed && layer.block_size <= kMaxRow) {
            with_type(layer,
                      [&](auto type) { stream_keys_vec<decltype(type)>(layer, rope, pieces, head, dst, ahead); });
            return;
        }
        for (const Piece& piece : pieces) {
            if (amx)
                move_keys_amx(layer, rope, *piece.run, piece.src + head, dst, piece.cos, piece.sin);
            else
                with_type(layer, [&](auto type) { move_keys_vec<decltype(type)>(layer, rope, piece, head, dst); });
        }
    }

    template <class Function>
    static void with_type(const Layer& layer, Function&& function) {
        if (layer.dtype == Dtype::float32)
            function(Float32{});
        else if (layer.dtype == Dtype::bfloat16)
            function(BFloat16{});
        else if (layer.dtype == Dtype::float16)
            function(Float16{});
        else if (layer.dtype == Dtype::float8_e4m3fn)
            function(Float8E4M3{});
        else
            function(Float8E5M2{});
    }

    // avx512.hpp knows no 8-bit types.
    static bool by_lines(const Layer& layer) { return use_avx512() && itemsize(layer.dtype) > 1; }

    // Below, the moved KV fits the caches, where the forward pass that follows reads it.
    static constexpr int64_t kStreamBytes = int64_t{8} << 20;

    std::vector<Layer> layers_;
    std::vector<Rope> ropes_;
};

}  // namespace acm
