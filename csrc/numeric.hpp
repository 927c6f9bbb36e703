// Storage types of a KV cache and their conversion to float and back: round to nearest, ties to even, one rounding.
//
// Scalar code without branches, for every target. lanes.hpp has the 16-bit types for eight values at once. NaN stays
// NaN, and subnormals are exact. The 8-bit types saturate at their largest number, as vLLM's quantisation does.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa.hpp"

namespace acm {

ACM_INLINE float as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

ACM_INLINE uint32_t as_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

struct Float32 {
    using Storage = float;
    static ACM_INLINE float load(float stored) { return stored; }
    static ACM_INLINE float store(float value) { return value; }
};

struct BFloat16 {
    using Storage = uint16_t;
    static ACM_INLINE float load(uint16_t stored) { return as_float(uint32_t{stored} << 16); }
    static ACM_INLINE uint16_t store(float value) {
        const uint32_t bits = as_bits(value);
        const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
        // Rounding a NaN's payload up could carry into the exponent and the sign.
        const uint32_t quiet = bits | 0x00400000u;
        return static_cast<uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
    }
};

struct Float16 {
    using Storage = uint16_t;
    static ACM_INLINE float load(uint16_t stored) {
        const uint32_t magnitude = (uint32_t{stored} & 0x7fffu) << 13;
        const uint32_t sign = (uint32_t{stored} & 0x8000u) << 16;
        // A subnormal is mantissa * 2^-24; a normal number only needs its exponent rebiased by 127 - 15.
        const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude >> 13)) * 0x1p-24f;
        const uint32_t rebias = magnitude >= 0x0f800000u ? 0x70000000u : 0x38000000u;
        return as_float((magnitude < 0x00800000u ? as_bits(subnormal) : magnitude + rebias) | sign);
    }
    static ACM_INLINE uint16_t store(float value) {
        const uint32_t bits = as_bits(value);
        const uint32_t magnitude = bits & 0x7fffffffu;
        // Below 2^-14 the sum with 0.5 leaves the rounded fp16 mantissa in the low bits of the float.
        const uint32_t subnormal = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000u;
        const uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
        const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
        uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
        half = magnitude >= 0x47800000u ? special : half;
        return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
    }
};

// e4m3 (3 bits of mantissa, no infinity) and e5m2 (2 bits).
template <int kMantissa>
struct Float8 {
    using Storage = uint8_t;
    static constexpr uint32_t kBias = (1u << (6 - kMantissa)) - 1, kShift = 23 - kMantissa;
    static constexpr float kLargest = kMantissa == 3 ? 448.0f : 57344.0f;
    static constexpr float kSmallestNormal = kMantissa == 3 ? 0x1p-6f : 0x1p-14f;
    // Added to this power of two, a float is rounded to multiples of the smallest 8-bit number.
    static constexpr float kMagic = kMantissa == 3 ? 0x1p14f : 0x1p7f;

    static ACM_INLINE float load(uint8_t stored) {
        // The same fields in fp16. E4m3 has a smaller exponent bias (7, not 15), hence the factor.
        const uint32_t magnitude = stored & 0x7fu, sign = stored & 0x80u;
        const float half = Float16::load(static_cast<uint16_t>(sign << 8 | magnitude << (10 - kMantissa)));
        if (kMantissa == 2) return half;
        return magnitude == 0x7fu ? as_float(0x7fc00000u) : half * 256.0f;
    }
    static ACM_INLINE uint8_t store(float value) {
        const uint32_t sign = as_bits(value) >> 24 & 0x80u;
        const float absolute = as_float(as_bits(value) & 0x7fffffffu);
        const float magnitude = absolute < kLargest ? absolute : kLargest;
        const uint32_t bits = as_bits(magnitude);
        const uint32_t rounded = (bits + (1u << (kShift - 1)) - 1 + (bits >> kShift & 1u)) >> kShift;
        const uint32_t normal = rounded - ((127 - kBias) << kMantissa);
        const uint32_t subnormal = as_bits(magnitude + kMagic) - as_bits(kMagic);
        const uint32_t code = magnitude < kSmallestNormal ? subnormal : normal;
        return static_cast<uint8_t>((value != value ? 0x7fu : code) | sign);
    }
};
using Float8E4M3 = Float8<3>;
using Float8E5M2 = Float8<2>;

}  // namespace acm
