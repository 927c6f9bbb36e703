// Storage types of a KV cache and their conversion to float and back: round to nearest, ties to even, one rounding.
//
// Scalar code without branches, for every target. lanes.hpp has the same for eight values at once. NaN stays NaN, and
// fp16 subnormals are exact.
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

}  // namespace acm
