// SPDX-License-Identifier: Apache-2.0
// Checks of row maps and copies of rows.
#include "optimized/cpu/row_map.h"

namespace dropless::cpu {

RowMap::RowMap(const dropless_tensor* row_map, Index tokens, Index top_k, Index rows)
    : map_(tensor(row_map, "row_map", {DROPLESS_I64}, {tokens, top_k})) {
  for (Index t = 0; t < map_.shape[0]; ++t) {
    for (Index j = 0; j < map_.shape[1]; ++j) {
      const Index row = (*this)(t, j);
      refuse_if(row < -1 || row >= rows, "row_map: outside -1 .. N_max-1");
    }
  }
}

Padding::Padding(const dropless_tensor* offsets, const dropless_tensor* source, Index rows,
                 Index pairs) {
  const Zones zones = read_zones(offsets, nullptr, rows);
  const Tensor map = tensor(source, "source", {DROPLESS_I64}, {rows});
  for (Index row = 0; row < zones.rows(); ++row) {
    const Index pair = map.as<std::int64_t>(row);
    refuse_if(pair < -1 || pair >= pairs, "source: outside -1 .. T*K-1");
    if (pair < 0) rows_.push_back(row);
  }
}

void copy_row(const Tensor& from, Index from_row, const Tensor& to, Index to_row) {
  const Index width = from.shape[1], bytes = from.element;
  if (width == 0) return;
  const std::byte* in = from.at(from_row, 0);
  std::byte* out = to.at(to_row, 0);
  if (from.inner_stride() == 1 && to.inner_stride() == 1) {
    std::memcpy(out, in, static_cast<std::size_t>(width * bytes));
    return;
  }
  for (Index i = 0; i < width; ++i) {
    std::memcpy(out + i * to.inner_stride() * bytes, in + i * from.inner_stride() * bytes,
                static_cast<std::size_t>(bytes));
  }
}

void zero_row(const Tensor& to, Index row) {
  for (Index i = 0; i < to.shape[1]; ++i) {
    std::byte* out = to.at(row, 0);
    std::memset(out + i * to.inner_stride() * to.element, 0, static_cast<std::size_t>(to.element));
  }
}

}  // namespace dropless::cpu
