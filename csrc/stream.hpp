// Stores around the caches. A store that misses makes the processor read the line first, so a plain copy moves three
// bytes for two. Lines that are written whole and not read again soon need not be read. memcpy does the same for large
// copies, but keys are written row by row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "prefetch.hpp"
#include "isa.hpp"

#if ACM_HAS_AVX2_CLONE
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace acm {

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

#if ACM_HAS_AVX2_CLONE
// The same in loads and stores of whole lines, a quarter of the instructions: four times as many are under way at once.
// It descends where ascending loads would wait for stores that agree with them in the low 12 address bits.
ACM_AVX512 inline void stream_copy_avx512(char* dst, const char* src, int64_t num_bytes, Ahead& ahead) {
    const int64_t before = std::min(num_bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst) % kLine));
    const int64_t lines = (num_bytes - before) / kLine, done = before + lines * kLine;
    const auto lead = (reinterpret_cast<uintptr_t>(dst) - reinterpret_cast<uintptr_t>(src)) % 4096;
    const bool descends = lead > 0 && lead <= 2048;
    std::memcpy(dst, src, static_cast<size_t>(before));
    const int64_t step = descends ? -kLine : kLine;
    char* to = dst + (descends ? done - kLine : before);
    const char* from = src + (to - dst);
    for (int64_t i = 0; i < lines; ++i, to += step, from += step) {
        if (i % 8 == 0) ahead.ask(std::min<int64_t>(8, lines - i));
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
    }
    std::memcpy(dst + done, src + done, static_cast<size_t>(num_bytes - done));
}
#endif

inline void copy_bytes(char* dst, const char* src, int64_t num_bytes, bool streamed, Ahead& ahead) {
    if (!streamed) {
        std::memcpy(dst, src, static_cast<size_t>(num_bytes));
        return;
    }
#if ACM_HAS_AVX2_CLONE
    if (use_avx512()) return stream_copy_avx512(dst, src, num_bytes, ahead);
#endif
    ahead.ask(num_bytes / kLine);
    stream_copy(dst, src, num_bytes);
}

// Before another thread learns that the data are there.
inline void stream_fence() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace acm
