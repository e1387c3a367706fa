// SPDX-License-Identifier: Apache-2.0
// Row buffers with zones of experts, behind the contract.
#include "reference/contract/rows.h"

#include <cstring>

#include "reference/checks.h"

namespace dropless::reference::contract {

CallGroups::CallGroups(const dropless_tensor* offsets, const dropless_tensor* counts,
                       Index num_groups, Index rows) {
  const Index entries = num_groups == kAny ? kAny : num_groups + 1;
  if (offsets == nullptr && counts != nullptr) throw Refused("counts are given without offsets");
  const auto offsets_view = optional_tensor(offsets, "offsets", Element::i64, {entries});
  if (offsets_view) {
    const Index count = offsets_view->shape(0) - 1;
    if (count < 0) throw Refused("offsets is empty: it holds one entry more than there are groups");
    counts_ = read_integers(optional_tensor(counts, "counts", Element::i64, {count}));
  }
  offsets_ = read_integers(offsets_view);
  kinds_ = row_kinds(rows, groups());
  end_ = offsets_.empty() ? rows : offsets_.back();
}

namespace {

// Elements of one row of a tensor whose first axis counts rows.
Index row_width(const TensorView& view) {
  return view.shape(0) == 0 ? 0 : view.size() / view.shape(0);
}

void write_zero_row(const TensorView& view, Index row) {
  const Index width = row_width(view);
  const std::size_t element = static_cast<std::size_t>(element_bytes(view.dtype()));
  for (Index i = 0; i < width; ++i) std::memset(view.address_flat(row * width + i), 0, element);
}

}  // namespace

void write_rows(const TensorView& view, Input values, const std::vector<RowKind>& kinds,
                const dropless_profile& profile) {
  const Index width = row_width(view);
  for (Index row = 0; row < view.shape(0); ++row) {
    switch (kinds[at(row)]) {
      case RowKind::real:
        for (Index i = row * width; i < (row + 1) * width; ++i) view.store_flat(values[at(i)], i);
        break;
      case RowKind::padding:
        write_zero_row(view, row);
        break;
      case RowKind::tail:
        if (profile.tail_rows == DROPLESS_TAIL_ZERO) write_zero_row(view, row);
        break;
    }
  }
}

void write_row_bytes(const TensorView& view, std::span<const std::byte> rows,
                     const dropless_profile& profile) {
  const Index width = row_width(view);
  const std::size_t element = static_cast<std::size_t>(element_bytes(view.dtype()));
  if (width == 0) return;
  const Index count = static_cast<Index>(rows.size() / element) / width;
  for (Index i = 0; i < count * width; ++i) {
    std::memcpy(view.address_flat(i), &rows[at(i) * element], element);
  }
  for (Index row = count; row < view.shape(0); ++row) {
    if (profile.tail_rows == DROPLESS_TAIL_ZERO) write_zero_row(view, row);
  }
}

}  // namespace dropless::reference::contract
