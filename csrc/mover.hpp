// `move` over all layers of a model at once: a table of layers, built once because KV caches do not move, and one call
// per scheduler step. Work is handed out as (layer, destination block) items; heads and runs are the inner loops.
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

#include "head_amx.hpp"
#include "head_vec.hpp"
#include "layout.hpp"
#include "pool.hpp"
#include "runs.hpp"

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

template <class T>
struct Span {
    const T *first, *last;
    const T* begin() const { return first; }
    const T* end() const { return last; }
    size_t size() const { return static_cast<size_t>(last - first); }
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
            num_bytes += 2 * num_slots * layer.num_kv_heads * layer.head_size * itemsize(layer.dtype);
        }
        const std::vector<size_t> groups = group_by_destination(runs);
        const auto num_groups = static_cast<int64_t>(groups.size()) - 1;
        const auto num_layers = static_cast<int64_t>(layers_.size());
        // Waking a helper costs tens of microseconds, about what one thread needs for this many bytes.
        if (num_bytes < (int64_t{1} << 19)) num_threads = 1;
        Pool::of_process().run(num_layers * num_groups, num_threads, cpus, [&](int64_t item) {
            const Layer& layer = layers_[static_cast<size_t>(item / num_groups)];
            const auto group = static_cast<size_t>(item % num_groups);
            const Angles* turn = layer.rope < 0 ? nullptr : &angles[static_cast<size_t>(layer.rope)];
            const Span<Run> span{runs.data() + groups[group], runs.data() + groups[group + 1]};
            for (int64_t head = 0; head < layer.num_kv_heads; ++head)
                move_head(layer, head, span, segments, turn, num_bytes >= kStreamBytes);
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

    // All runs that write one head of one destination block. Keys are streamed where the runs write the whole block
    // in more than one piece per row or turned (a plain copy of a block is one memcpy).
    void move_head(const Layer& layer, int64_t head, Span<Run> runs, const Segments& segments, const Angles* angles,
                   bool stream_large) const {
        char* dst = layer.head(runs.first->dst_block, head);
        const int64_t half = layer.block_size * layer.head_size * itemsize(layer.dtype);
        const Rope* rope = rope_of(layer);
        thread_local std::vector<Piece> pieces;
        pieces.clear();
        int64_t num_tokens = 0;
        bool turns = false;
        for (const Run& run : runs) {
            Piece piece{&run, layer.head(run.src_block, head), nullptr, nullptr};
            if (angles != nullptr && segments.deltas[run.segment] != 0) {
                piece.cos = angles->cos + run.segment * (rope->rot_dim / 2);
                piece.sin = angles->sin + run.segment * (rope->rot_dim / 2);
                turns = true;
            }
            pieces.push_back(piece);
            num_tokens += run.num_tokens;
        }
        const bool whole = num_tokens == layer.block_size && (turns || runs.size() > 1);
        const bool streamed = stream_large && whole && layer.layout == Layout::vec && layer.block_size <= kMaxRow &&
                              can_stream(dst, layer.block_size * itemsize(layer.dtype));
        if (streamed) with_type(layer, [&](auto type) { stream_keys_vec<decltype(type)>(layer, rope, pieces, dst); });
        for (const Piece& piece : pieces) {
            if (layer.layout == Layout::amx) {
                move_keys_amx(layer, rope, *piece.run, piece.src, dst, piece.cos, piece.sin, stream_large);
                move_values_amx(layer, *piece.run, piece.src + half, dst + half, stream_large);
                continue;
            }
            if (!streamed)
                with_type(layer, [&](auto type) { move_keys_vec<decltype(type)>(layer, rope, piece, dst); });
            move_values_vec(layer, *piece.run, piece.src + half, dst + half, stream_large);
        }
    }

    template <class Function>
    static void with_type(const Layer& layer, Function&& function) {
        if (layer.dtype == Dtype::float32)
            function(Float32{});
        else if (layer.dtype == Dtype::bfloat16)
            function(BFloat16{});
        else
            function(Float16{});
    }

    // Below, the moved KV fits the caches, where the forward pass that follows reads it.
    static constexpr int64_t kStreamBytes = int64_t{8} << 20;

    std::vector<Layer> layers_;
    std::vector<Rope> ropes_;
};

}  // namespace acm
