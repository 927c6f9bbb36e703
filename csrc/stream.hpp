// Stores around the caches. A store that misses makes the processor read the line first, so a plain copy moves three
// bytes for two; lines that are written whole and not read again soon need not be read. memcpy does the same for large
// copies, but keys are written row by row.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>

namespace acm {

constexpr int64_t kLine = 64;

// Asks for the lines of `[from, from + num_bytes)`. Keys are read as many short rows, two halves in turn, which the
// processor's own prefetching does not follow.
inline void prefetch(const void* from, int64_t num_bytes) {
    const char* at = static_cast<const char*>(from);
    for (int64_t i = 0; i < num_bytes; i += kLine) __builtin_prefetch(at + i);
    if (num_bytes > 0) __builtin_prefetch(at + num_bytes - 1);
}

inline bool can_stream(const void* dst, int64_t num_bytes) {
    return reinterpret_cast<uintptr_t>(dst) % kLine == 0 && num_bytes % kLine == 0;
}

// `can_stream(dst, num_bytes)` holds; `src` lies in the first-level cache and is aligned to a line.
inline void stream(void* dst, const void* src, int64_t num_bytes) {
#if defined(__SSE2__)
    auto* to = static_cast<__m128i*>(dst);
    const auto* from = static_cast<const __m128i*>(src);
    for (int64_t i = 0; i < num_bytes / 16; ++i) _mm_stream_si128(to + i, _mm_load_si128(from + i));
#else
    std::memcpy(dst, src, static_cast<size_t>(num_bytes));
#endif
}

// memcpy around the caches, for any addresses: whole lines of the destination are streamed, its ends are not.
inline void stream_copy(char* dst, const char* src, int64_t num_bytes) {
#if defined(__SSE2__)
    const int64_t before = std::min(num_bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst) % kLine));
    const int64_t lines = (num_bytes - before) / kLine;
    std::memcpy(dst, src, static_cast<size_t>(before));
    auto* to = reinterpret_cast<__m128i*>(dst + before);
    const auto* from = reinterpret_cast<const __m128i*>(src + before);
    for (int64_t i = 0; i < lines * kLine / 16; ++i) _mm_stream_si128(to + i, _mm_loadu_si128(from + i));
    const int64_t done = before + lines * kLine;
    std::memcpy(dst + done, src + done, static_cast<size_t>(num_bytes - done));
#else
    std::memcpy(dst, src, static_cast<size_t>(num_bytes));
#endif
}

inline void copy_bytes(char* dst, const char* src, int64_t num_bytes, bool streamed) {
    if (streamed)
        stream_copy(dst, src, num_bytes);
    else
        std::memcpy(dst, src, static_cast<size_t>(num_bytes));
}

// Before another thread is told that the data are there.
inline void stream_fence() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace acm
