// Cuts a list of slot pairs into runs: the largest pieces that are contiguous in one source block, in one destination
// block and in one segment, so that the kernels loop over tokens with unit stride.
//
//     source block      |......[so ....... so+n)|                 slots src_slots[i .. i+n)
//                              |  |  |  |  |  |
//     destination block    |...[do ....... do+n)....|             slots dst_slots[i .. i+n)
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace acm {

template <class T>
struct Span {
    const T *first, *last;
    const T* begin() const { return first; }
    const T* end() const { return last; }
    size_t size() const { return static_cast<size_t>(last - first); }
};

struct Run {
    int64_t src_block, src_offset, dst_block, dst_offset, num_tokens;
    int64_t segment;
};

// `segment_ends`: exclusive ends in increasing order, the last one equal to `num_slots`.
inline std::vector<Run> cut_runs(const int64_t* src_slots, const int64_t* dst_slots, int64_t num_slots,
                                 const int64_t* segment_ends, int64_t num_segments, int64_t block_size) {
    std::vector<Run> runs;
    int64_t start = 0;
    for (int64_t segment = 0; segment < num_segments; ++segment) {
        const int64_t end = segment_ends[segment];
        if (end < start || end > num_slots)
            throw std::invalid_argument("segment " + std::to_string(segment) + " ends at " + std::to_string(end) +
                                        ", outside of [" + std::to_string(start) + ", " + std::to_string(num_slots) +
                                        "]");
        for (int64_t i = start; i < end; ++i) {
            const int64_t src = src_slots[i], dst = dst_slots[i];
            if (src < 0 || dst < 0)
                throw std::invalid_argument("negative slot at index " + std::to_string(i));
            const bool extends = i > start && src == src_slots[i - 1] + 1 && dst == dst_slots[i - 1] + 1 &&
                                 src % block_size != 0 && dst % block_size != 0;
            if (extends)
                ++runs.back().num_tokens;
            else
                runs.push_back({src / block_size, src % block_size, dst / block_size, dst % block_size, 1, segment});
        }
        start = end;
    }
    if (start != num_slots)
        throw std::invalid_argument("segments cover " + std::to_string(start) + " of " + std::to_string(num_slots) +
                                    " slots");
    return runs;
}

// First index of each group of consecutive runs that write one destination block, and the number of runs at the end.
// Treated together, head by head, they find each other's partly written cache lines still in the first-level cache.
inline std::vector<size_t> group_by_destination(const std::vector<Run>& runs) {
    std::vector<size_t> first;
    for (size_t i = 0; i < runs.size(); ++i)
        if (i == 0 || runs[i].dst_block != runs[i - 1].dst_block) first.push_back(i);
    first.push_back(runs.size());
    return first;
}

}  // namespace acm
