// SPDX-License-Identifier: Apache-2.0
// What grouped GEMM faults share: one name for the operands of the three products, and products
// that are put together from parts of their contraction.
#pragma once

#include <functional>

#include "reference/mxfp8.h"
#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {

// Faults of groups, of precision, and of MXFP8 operands.
void add_gemm_groups(std::vector<Fault>& faults);
void add_gemm_precision(std::vector<Fault>& faults);
void add_gemm_mxfp8(std::vector<Fault>& faults);

using Fprop = dropless_gemm_fprop_args;
using Dgrad = dropless_gemm_dgrad_args;
using Wgrad = dropless_gemm_wgrad_args;

// left * right = output; the contraction runs over the columns of left (fprop, dgrad) or over the
// rows of a group (wgrad).
inline const dropless_operand*& left_of(Fprop& a) {
  return a.x;
}
inline const dropless_operand*& left_of(Dgrad& a) {
  return a.dy;
}
inline const dropless_operand*& left_of(Wgrad& a) {
  return a.dy;
}
inline const dropless_operand*& right_of(Fprop& a) {
  return a.w;
}
inline const dropless_operand*& right_of(Dgrad& a) {
  return a.w;
}
inline const dropless_operand*& right_of(Wgrad& a) {
  return a.x;
}
inline const dropless_tensor*& output_of(Fprop& a) {
  return a.y;
}
inline const dropless_tensor*& output_of(Dgrad& a) {
  return a.dx;
}
inline const dropless_tensor*& output_of(Wgrad& a) {
  return a.dw;
}
constexpr bool is_wgrad(const Wgrad&) {
  return true;
}
template <class Args>
constexpr bool is_wgrad(const Args&) {
  return false;
}

// Bias and C, where a product has them.
const dropless_tensor* bias_of(const Fprop& a);
const dropless_tensor* bias_of(const Dgrad& a);
const dropless_tensor* bias_of(const Wgrad& a);
void drop_epilogue(Fprop& a);
void drop_epilogue(Dgrad& a);
void drop_epilogue(Wgrad& a);

// The same fault in fprop and dgrad, or in all three.
template <class F>
void around_row_products(Planted& planted, F fault) {
  planted.around<&Table::gemm_fprop>(fault);
  planted.around<&Table::gemm_dgrad>(fault);
}
template <class F>
void around_products(Planted& planted, F fault) {
  around_row_products(planted, fault);
  planted.around<&Table::gemm_wgrad>(fault);
}

inline bool is_readable(const dropless_operand* operand) {
  return operand != nullptr && operand->struct_size >= sizeof(dropless_operand) &&
         is_readable(operand->values);
}

// Zones of a call that succeeded.
template <class Args>
std::vector<Zone> zones_of_call(Args& a) {
  return zones_of(a.offsets, a.counts, view(left_of(a)->values).shape(0));
}

// Copies the left operand and sets elements of real rows to zero unless keep(k, length), where k
// counts along a contraction of that length.
using Keep = std::function<bool(Index k, Index length)>;
template <class Args>
void mask_left(Args& a, const Copy& copy, const Keep& keep) {
  const TensorView values = copy.elements();
  const Index columns = values.shape(1);
  for (const Zone& zone : zones_of_call(a)) {
    for (Index row = zone.first; row < zone.real_end; ++row) {
      for (Index c = 0; c < columns; ++c) {
        const bool kept =
            is_wgrad(a) ? keep(row - zone.first, zone.real_end - zone.first) : keep(c, columns);
        if (!kept) values.store_integer(0, row, c);
      }
    }
  }
}

// The product over a part of its contraction only.
void contract_partly(Planted& planted, Keep keep);

// y = combine(parts), where the parts are the products over `parts` equal pieces of the
// contraction, in order, in fp32; the epilogue (bias, beta C) is in the first one. Only elements
// that a correct call computes are written.
using Combine = std::function<double(const std::vector<double>& parts, Index position)>;
using PartsOfCall = std::function<Combine(dropless_call* call)>;
void combine_parts(Planted& planted, Index parts, PartsOfCall combine);

// Elements of the output that belong to real rows, or all for wgrad.
template <class Args, class Visit>
void each_result(Args& a, Visit visit) {
  const TensorView output = view(output_of(a));
  if (is_wgrad(a)) {
    for (Index i = 0; i < output.size(); ++i) visit(i, i / (output.shape(1) * output.shape(2)));
    return;
  }
  Index expert = 0;
  for (const Zone& zone : zones_of_call(a)) {
    for (Index i = zone.first * output.shape(1); i < zone.real_end * output.shape(1); ++i) {
      visit(i, expert);
    }
    ++expert;
  }
}

}  // namespace dropless::faults
