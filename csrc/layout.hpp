// One layer of a CPU KV cache as vLLM's backends CPU_ATTN and CPU_MLA store it (vllm/v1/attention/backends).
//
//     [num_blocks, num_kv_heads, block_size, 2 * head_size]: one head of one block is 2 * block_size * head_size
//     contiguous elements, K in the first half and V in the second. Inside a half:
//
//              K(token t, dimension d)                          V(t, d)
//     vec      d * bs + t                                       t * hs + d
//     amx      t/16*16*hs + d/2*32 + t%16*2 + d%2               d/16*16*bs + t/2*32 + d%16*2 + t%2
//
// `vec16` stores as `vec` does. The two differ in the attention kernel only.
//
//     latent   [num_blocks, 1, block_size, value_size + head_size]: row t is V of token t, then its K
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace acm {

constexpr int64_t kLine = 64;  // bytes of a cache line

enum class Dtype { float32, bfloat16, float16, float8_e4m3fn, float8_e5m2 };
enum class Layout { vec, amx, latent };

inline int64_t itemsize(Dtype dtype) {
    if (dtype == Dtype::float32) return 4;
    return dtype == Dtype::bfloat16 || dtype == Dtype::float16 ? 2 : 1;
}

struct Rope {
    int64_t rot_dim;
    bool is_neox;
};

struct Layer {
    char* base;
    Dtype dtype;
    Layout layout;
    int64_t num_blocks, num_kv_heads, block_size, head_size, value_size;
    int64_t block_stride, head_stride;  // bytes
    int64_t rope;                       // index into the mover's ropes; -1: no positions in K, copied as it is

    char* head(int64_t block, int64_t index) const { return base + block * block_stride + index * head_stride; }
};

inline Dtype parse_dtype(const std::string& name) {
    if (name == "float32") return Dtype::float32;
    if (name == "bfloat16") return Dtype::bfloat16;
    if (name == "float16") return Dtype::float16;
    if (name == "float8_e4m3fn") return Dtype::float8_e4m3fn;
    if (name == "float8_e5m2") return Dtype::float8_e5m2;
    throw std::invalid_argument("dtype " + name + " is none of float32, bfloat16, float16, float8_e4m3fn, float8_e5m2");
}

inline Layout parse_layout(const std::string& isa) {
    if (isa == "vec" || isa == "vec16") return Layout::vec;
    if (isa == "amx") return Layout::amx;
    if (isa == "latent") return Layout::latent;
    throw std::invalid_argument("isa " + isa + " is none of vec, vec16, amx, latent");
}

inline void check_layer(const Layer& layer, const Rope* rope) {
    if (layer.base == nullptr) throw std::invalid_argument("layer without memory");
    if (layer.num_kv_heads <= 0 || layer.block_size <= 0 || layer.head_size <= 0 || layer.num_blocks <= 0)
        throw std::invalid_argument("layer with an empty dimension");
    if (layer.layout == Layout::latent ? layer.value_size <= 0 || layer.num_kv_heads != 1
                                       : layer.value_size != layer.head_size)
        throw std::invalid_argument("value_size " + std::to_string(layer.value_size) + " does not fit the layout");
    if (layer.layout == Layout::amx &&
        (layer.dtype != Dtype::bfloat16 || layer.block_size % 16 != 0 || layer.head_size % 16 != 0))
        throw std::invalid_argument("isa amx needs bfloat16, and block_size and head_size divisible by 16");
    if (rope == nullptr) return;
    if (rope->rot_dim <= 0 || rope->rot_dim % 2 != 0 || rope->rot_dim > layer.head_size)
        throw std::invalid_argument("rot_dim " + std::to_string(rope->rot_dim) + " does not fit head_size " +
                                    std::to_string(layer.head_size));
    if (layer.layout == Layout::amx && rope->is_neox && rope->rot_dim % 4 != 0)
        throw std::invalid_argument("isa amx with NeoX rotation needs rot_dim divisible by 4");
}

}  // namespace acm
