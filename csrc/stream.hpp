// Stores around the caches. A store that misses makes the processor read the line first, so a plain copy moves three
// bytes for two; lines that are written whole and not read again soon need not be read. memcpy does the same for large
// copies, but keys are written row by row.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace acm {

constexpr int64_t kLine = 64;

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

// Before another thread is told that the data are there.
inline void stream_fence() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace acm
