// One source, two instruction sets: a loop written once as an always-inline template is compiled for the baseline and
// for AVX2 (with FMA and F16C: Intel Haswell, AMD Zen and later), and the machine chooses at run time. The build needs
// no -march flag and the wheel stays portable.
//
// `target_clones` would do the same, but GCC does not accept it on templates.
#pragma once

#define ACM_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__)
#define ACM_HAS_AVX2_CLONE 1
#define ACM_AVX2 __attribute__((target("avx2,fma,f16c")))
#else
#define ACM_HAS_AVX2_CLONE 0
#endif

namespace acm {

#if ACM_HAS_AVX2_CLONE
inline const bool kHasAvx2 = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}();
#else
constexpr bool kHasAvx2 = false;
#endif

inline bool use_avx2() { return kHasAvx2; }

}  // namespace acm
