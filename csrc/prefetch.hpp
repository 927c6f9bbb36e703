// Asks for the source of a move before its use. The processor follows reads that ascend through memory. But a move
// between different offsets reads the end of one block and then the start of another, in two rows of keys at a time. At
// each change of block, and at each 4-KiB page, the processor would wait for memory.
//
//     source blocks          |.......a.......|.......b.......|.......c.......|
//     destination blocks           |.......1.......|.......2.......|            1 opens b, 2 finds it and opens c
//
// The destination block that opens a source block asks for all of it, head by head, in the order in which its lines are
// read. Nearly all of it is needed, now or by the next destination block. A block of which a move takes less than half
// is left to the processor.
#pragma once

#include <algorithm>
#include <cstdint>

#include "isa.hpp"
#include "layout.hpp"
#include "runs.hpp"

namespace acm {

class Ahead {
  public:
    // `runs` of one destination block among `all` of the move. Inactive where `active` is false.
    Ahead(const Layer& layer, const Rope* rope, Span<Run> runs, Span<Run> all, bool active)
        : layer_(layer), all_(all), run_(runs.begin()), end_(active ? runs.end() : runs.begin()) {
        const int64_t row = layer.block_size * itemsize(layer.dtype);
        head_bytes_ = 2 * row * layer.head_size;
        if (layer.layout == Layout::vec && rope != nullptr && rope->is_neox) half_ = rope->rot_dim / 2 * row;
        open_block();
        ask(kDistance / kLine);
    }

    // To be called as lines are written, with their number.
    ACM_INLINE void ask(int64_t num_lines) {
        while (num_lines > 0 && head_ != nullptr) {
            const bool in_pairs = at_ < 2 * half_;
            const int64_t end = std::min(at_ + num_lines * kLine, in_pairs ? 2 * half_ : head_bytes_);
            num_lines -= (end - at_ + kLine - 1) / kLine;
            if (in_pairs) {  // a line of row i, then one of row i + rot_dim / 2
                for (; at_ < end; at_ += 2 * kLine) {
                    __builtin_prefetch(head_ + at_ / 2);
                    __builtin_prefetch(head_ + at_ / 2 + half_);
                }
                continue;
            }
            for (; at_ < end; at_ += kLine) __builtin_prefetch(head_ + at_);
            if (at_ < head_bytes_) continue;
            at_ = 0;
            head_ += layer_.head_stride;
            if (--num_heads_ == 0) open_block();
        }
    }

  private:
    static constexpr int64_t kDistance = 4096;

    // The next block that no run before reads, if the move takes enough of it.
    void open_block() {
        head_ = nullptr;
        while (run_ < end_) {
            const Run* first = run_;
            int64_t num_tokens = 0;
            for (; run_ < all_.end() && run_->src_block == first->src_block; ++run_) num_tokens += run_->num_tokens;
            const bool opened = first != all_.begin() && first[-1].src_block == first->src_block;
            if (opened || 2 * num_tokens < layer_.block_size) continue;
            head_ = layer_.head(first->src_block, 0);
            num_heads_ = layer_.num_kv_heads;
            return;
        }
    }

    const Layer& layer_;
    const Span<Run> all_;
    const Run *run_, *end_;
    const char* head_ = nullptr;
    int64_t num_heads_ = 0, at_ = 0, head_bytes_ = 0, half_ = 0;
};

}  // namespace acm
