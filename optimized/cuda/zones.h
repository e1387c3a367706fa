// SPDX-License-Identifier: Apache-2.0
// Zones of rows whose offsets and counts live in device memory: the real rows of group g are
// first(g) .. real_end(g), padding follows up to end(g).
#pragma once

#include "optimized/cuda/call.h"

namespace dropless::cuda {

// Kernels take it by value. Without offsets the whole buffer is one group; without counts all rows
// of a zone are real.
struct Zones {
  const std::int64_t* offsets = nullptr;
  const std::int64_t* counts = nullptr;
  Index offset_stride = 1, count_stride = 1;
  Index groups = 1;
  Index rows = 0;  // of the buffer

  [[nodiscard]] DROPLESS_HOST_DEVICE Index first(Index g) const {
    return offsets == nullptr ? (g == 0 ? 0 : rows) : offsets[g * offset_stride];
  }
  [[nodiscard]] DROPLESS_HOST_DEVICE Index end(Index g) const { return first(g + 1); }
  [[nodiscard]] DROPLESS_HOST_DEVICE Index real_end(Index g) const {
    return counts == nullptr ? end(g) : first(g) + counts[g * count_stride];
  }
};

// Offsets i64 [G+1] and counts i64 [G] of a buffer of `rows` rows; groups = any takes the length of
// offsets. Enqueues a check of their values (GENERAL-3) unless the call is trusted: kernels that
// follow must look at call.refusal_word(). Throws Refusal for wrong shapes.
Zones read_zones(Call& call, const dropless_tensor* offsets, const dropless_tensor* counts,
                 Index rows, Index groups = any);

}  // namespace dropless::cuda
