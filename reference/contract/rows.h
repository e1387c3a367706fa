// SPDX-License-Identifier: Apache-2.0
// Row buffers [N_max, ...] with zones of experts: which rows of an output are written, and how.
#pragma once

#include <dropless/contract.h>

#include <cstddef>
#include <optional>

#include "reference/contract/tensor.h"
#include "reference/grouped_gemm.h"

namespace dropless::reference::contract {

// offsets [G+1] and counts [G] of a call. Null offsets: the whole buffer is one group.
class CallGroups {
 public:
  // num_groups = kAny takes the number from the offsets. Throws Refused for wrong shapes, and for
  // offsets and counts that are no zones of a buffer of `rows` rows (GENERAL-3).
  CallGroups(const dropless_tensor* offsets, const dropless_tensor* counts, Index num_groups,
             Index rows);
  [[nodiscard]] Groups groups() const { return {offsets_, counts_}; }
  [[nodiscard]] const std::vector<RowKind>& kinds() const { return kinds_; }
  [[nodiscard]] Index end() const { return end_; }  // first row beyond the last zone

 private:
  std::vector<Index> offsets_, counts_;
  std::vector<RowKind> kinds_;
  Index end_ = 0;
};

// values has the elements of `view`. Real rows are rounded once to the dtype, padding rows are
// zero, rows beyond the last zone follow the profile's tail rule (GROUPED_GEMM-2 and 4).
void write_rows(const TensorView& view, Input values, const std::vector<RowKind>& kinds,
                const dropless_profile& profile);
// The same for bytes of rows that need no kind: the first rows.size() / row bytes rows are copied,
// those beyond follow the tail rule.
void write_row_bytes(const TensorView& view, std::span<const std::byte> rows,
                     const dropless_profile& profile);

}  // namespace dropless::reference::contract
