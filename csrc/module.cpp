// acmserve._native: the C++ inner loops. Tensors cross as addresses and sizes. Nothing here includes torch.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "isa.hpp"
#include "match.hpp"
#include "mover.hpp"

namespace py = pybind11;

namespace {

using Int64Array = py::array_t<int64_t, py::array::c_style>;
using FloatArray = py::array_t<float, py::array::c_style>;

acm::Layer make_layer(uintptr_t base, const std::string& dtype, const std::string& isa, int64_t num_blocks,
                      int64_t num_kv_heads, int64_t block_size, int64_t head_size, int64_t value_size,
                      int64_t block_stride, int64_t head_stride, int64_t rope) {
    acm::Layer layer{};
    layer.base = reinterpret_cast<char*>(base);
    layer.dtype = acm::parse_dtype(dtype);
    layer.layout = acm::parse_layout(isa);
    layer.num_blocks = num_blocks;
    layer.num_kv_heads = num_kv_heads;
    layer.block_size = block_size;
    layer.head_size = head_size;
    layer.value_size = value_size;
    layer.block_stride = block_stride * acm::itemsize(layer.dtype);
    layer.head_stride = head_stride * acm::itemsize(layer.dtype);
    layer.rope = rope;
    return layer;
}

std::vector<acm::Angles> check_tables(const acm::Mover& mover, const std::vector<FloatArray>& cos,
                                      const std::vector<FloatArray>& sin, int64_t num_segments) {
    const size_t num_ropes = mover.ropes().size();
    if (cos.size() != num_ropes || sin.size() != num_ropes)
        throw std::invalid_argument("one cos and one sin table per rope is needed");
    std::vector<acm::Angles> angles;
    for (size_t i = 0; i < num_ropes; ++i) {
        for (const FloatArray* table : {&cos[i], &sin[i]})
            if (table->ndim() != 2 || table->shape(0) != num_segments ||
                table->shape(1) != mover.ropes()[i].rot_dim / 2)
                throw std::invalid_argument("an angle table is not [num_segments, rot_dim / 2]");
        angles.push_back({cos[i].data(), sin[i].data()});
    }
    return angles;
}

void move(const acm::Mover& mover, const Int64Array& src_slots, const Int64Array& dst_slots,
          const Int64Array& segment_ends, const Int64Array& deltas, const std::vector<FloatArray>& cos,
          const std::vector<FloatArray>& sin, int num_threads, const std::vector<int>& cpus) {
    if (src_slots.ndim() != 1 || dst_slots.ndim() != 1 || src_slots.size() != dst_slots.size())
        throw std::invalid_argument("src_slots and dst_slots must be one-dimensional and of one length");
    if (segment_ends.ndim() != 1 || deltas.ndim() != 1 || segment_ends.size() != deltas.size())
        throw std::invalid_argument("one delta per segment is needed");
    if (num_threads < 1) throw std::invalid_argument("num_threads must be at least 1");
    const std::vector<acm::Angles> angles = check_tables(mover, cos, sin, deltas.size());
    const acm::Segments segments{segment_ends.data(), deltas.data(), deltas.size()};
    const int64_t *src = src_slots.data(), *dst = dst_slots.data();
    const int64_t num_slots = src_slots.size();
    py::gil_scoped_release nogil;
    mover.move(src, dst, num_slots, segments, angles, num_threads, cpus);
}

using TokenArray = py::array_t<int32_t, py::array::c_style>;

acm::Tokens as_tokens(const TokenArray& array) {
    if (array.ndim() != 1) throw std::invalid_argument("token arrays are one-dimensional");
    return {array.data(), array.size()};
}

int64_t common_prefix(const TokenArray& prompt, const TokenArray& source) {
    const acm::Tokens a = as_tokens(prompt), b = as_tokens(source);
    return acm::common_length(a.data, b.data, std::min(a.size, b.size));
}

std::vector<acm::Tokens> as_views(const std::vector<TokenArray>& sources) {
    std::vector<acm::Tokens> views;
    for (const TokenArray& source : sources) views.push_back(as_tokens(source));
    return views;
}

// The longest look-up among the grams of k tokens of these sources under a key; for tests of the key.
int64_t num_probes(const std::vector<TokenArray>& sources, int64_t k, uint64_t base, uint64_t mix) {
    if (k < 1) throw std::invalid_argument("k must be at least 1");
    const std::vector<acm::Tokens> views = as_views(sources);
    return acm::GramIndex(views, k, {base, mix}).num_probes(views, k);
}

std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> find_matches(const TokenArray& prompt,
                                                                         const std::vector<TokenArray>& sources,
                                                                         int64_t start, int64_t stop,
                                                                         int64_t min_tokens, uint64_t base,
                                                                         uint64_t mix) {
    const std::vector<acm::Tokens> views = as_views(sources);
    const acm::Tokens tokens = as_tokens(prompt);
    std::vector<acm::Match> matches;
    {
        py::gil_scoped_release nogil;
        matches = acm::find_matches(tokens, views, start, stop, min_tokens, {base, mix});
    }
    std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> rows;
    for (const acm::Match& m : matches) rows.emplace_back(m.dst_start, m.source, m.src_start, m.num_tokens);
    return rows;
}

py::dict build_info() {
    py::dict info;
#if defined(__clang__)
    info["compiler"] = "clang";
#else
    info["compiler"] = "gcc";
#endif
    info["compiler_version"] = __VERSION__;
    info["cxx_standard"] = static_cast<long>(__cplusplus);
    info["instructions"] = acm::use_avx512() ? "avx512" : acm::use_avx2() ? "avx2" : "baseline";
    return info;
}

// Returns the width that was allowed before.
int limit_vectors(int bits) {
    if (bits < 0) throw std::invalid_argument("bits must not be negative");
    return std::exchange(acm::widest(), bits);
}

}  // namespace

PYBIND11_MODULE(_native, m) {
    m.doc() = "C++ inner loops of acmserve; use acmserve.kernels and acmserve.plan instead.";
    m.def("build_info", &build_info);
    m.def("limit_vectors", &limit_vectors, py::arg("bits"));
    m.def("common_prefix", &common_prefix, py::arg("prompt"), py::arg("source"));
    m.def("find_matches", &find_matches, py::arg("prompt"), py::arg("sources"), py::arg("start"), py::arg("stop"),
          py::arg("min_tokens"), py::arg("base"), py::arg("mix"));
    m.def("num_probes", &num_probes, py::arg("sources"), py::arg("k"), py::arg("base"), py::arg("mix"));

    py::class_<acm::Layer>(m, "Layer")
        .def(py::init(&make_layer), py::kw_only(), py::arg("base"), py::arg("dtype"), py::arg("isa"),
             py::arg("num_blocks"), py::arg("num_kv_heads"), py::arg("block_size"), py::arg("head_size"),
             py::arg("value_size"), py::arg("block_stride"), py::arg("head_stride"), py::arg("rope"));
    py::class_<acm::Mover>(m, "Mover")
        .def(py::init([](const std::vector<acm::Layer>& layers, const std::vector<std::pair<int64_t, bool>>& ropes) {
                 std::vector<acm::Rope> table;
                 for (const auto& [rot_dim, is_neox] : ropes) table.push_back({rot_dim, is_neox});
                 return std::make_unique<acm::Mover>(layers, std::move(table));
             }),
             py::arg("layers"), py::arg("ropes"))
        .def("move", &move, py::arg("src_slots"), py::arg("dst_slots"), py::arg("segment_ends"), py::arg("deltas"),
             py::arg("cos"), py::arg("sin"), py::arg("num_threads"), py::arg("cpus"));
}
