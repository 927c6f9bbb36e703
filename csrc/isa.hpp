// One source, three instruction sets, and the machine chooses at run time. Loops written once as always-inline
// templates are compiled for the baseline and for AVX2 (with FMA and F16C: Intel Haswell, AMD Zen and later).
// avx512.hpp has them for AVX-512 (Intel Skylake-SP, AMD Zen 4 and later). The build needs no -march flag and the wheel
// stays portable.
//
// `target_clones` would do the same, but GCC does not accept it on templates.
#pragma once

#define ACM_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__)
#define ACM_HAS_AVX2_CLONE 1
#define ACM_AVX2 __attribute__((target("avx2,fma,f16c")))
#define ACM_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define ACM_HAS_AVX2_CLONE 0
#endif

namespace acm {

#if ACM_HAS_AVX2_CLONE
inline const bool kHasAvx2 = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}();
inline const bool kHasAvx512 = [] {
    __builtin_cpu_init();
    return kHasAvx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}();
// For tests, which run every path on one machine; not thread-safe.
inline int& widest() {
    static int bits = 512;
    return bits;
}
inline bool use_avx2() { return kHasAvx2 && widest() >= 256; }
inline bool use_avx512() { return kHasAvx512 && widest() >= 512; }
#else
inline int& widest() {
    static int bits = 0;
    return bits;
}
inline bool use_avx2() { return false; }
inline bool use_avx512() { return false; }
#endif

}  // namespace acm
