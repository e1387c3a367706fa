// SPDX-License-Identifier: Apache-2.0
// gemm_fprop, gemm_dgrad and gemm_wgrad behind the contract.
#include "reference/grouped_gemm.h"

#include <cstring>

#include "reference/checks.h"
#include "reference/contract/call.h"
#include "reference/contract/operations.h"
#include "reference/contract/rows.h"
#include "reference/contract/scales.h"

namespace dropless::reference::contract {
namespace {

// One operand of a product: checked first, read later as the values that its elements or codes
// stand for (GROUPED_GEMM-7).
class Operand {
 public:
  Operand(const dropless_operand* argument, const char* name, std::initializer_list<Index> shape)
      : argument_(completed(argument, name, offsetof(dropless_operand, reserved))),
        name_(name),
        view_(tensor(argument_.values, name, Element::value, shape)) {
    has_codes_ = view_.dtype() == DROPLESS_E4M3 || view_.dtype() == DROPLESS_E5M2;
    if (has_codes_ && argument_.scales == nullptr) {
      throw Refused(name_ + " has codes but no scales");
    }
    if (!has_codes_ && argument_.scales != nullptr) {
      throw Refused(name_ + " has scales but no codes");
    }
    if (argument_.scale_layout != DROPLESS_SCALES_LINEAR &&
        argument_.scale_layout != DROPLESS_SCALES_PACKED) {
      throw Refused(name_ + ".scale_layout = " + std::to_string(argument_.scale_layout) +
                    " is neither 0 nor 1");
    }
  }
  [[nodiscard]] Index shape(int axis) const { return view_.shape(axis); }

  // A row operand [rows, columns] with the zones of the experts.
  [[nodiscard]] Doubles read_rows(int direction, const Groups& groups) const {
    if (!has_codes_) return read_values(view_);
    const ScaleMatrix matrix{direction, argument_.scale_layout, view_.shape(0), view_.shape(1),
                             groups};
    return dequantized(matrix, scale_tensor(argument_.scales, scales_name().c_str(), matrix));
  }
  // W [E,O,I], one group per expert. Linear scales are [E,O,blocks] or [E,blocks,I].
  [[nodiscard]] Doubles read_weights(int direction) const {
    if (!has_codes_) return read_values(view_);
    const Index num_experts = view_.shape(0), out = view_.shape(1), in = view_.shape(2);
    const std::vector<Index> offsets = weight_offsets(num_experts, out);
    const ScaleMatrix matrix{
        direction, argument_.scale_layout, num_experts * out, in, {offsets, {}}};
    const std::string name = scales_name();
    if (argument_.scale_layout == DROPLESS_SCALES_PACKED) {
      return dequantized(matrix, scale_tensor(argument_.scales, name.c_str(), matrix));
    }
    const bool row_wise = direction == DROPLESS_BLOCKS_ROW_WISE;
    const Index scale_rows = row_wise ? out : ceil_div(out, kBlock);
    const Index scale_columns = row_wise ? ceil_div(in, kBlock) : in;
    return dequantized(matrix, tensor(argument_.scales, name.c_str(), Element::e8m0,
                                      {num_experts, scale_rows, scale_columns}));
  }

 private:
  [[nodiscard]] std::string scales_name() const { return name_ + ".scales"; }
  [[nodiscard]] Doubles dequantized(const ScaleMatrix& matrix, const TensorView& scales) const {
    return dequantize(matrix.direction, matrix.scale_layout, view_.dtype(), matrix.rows,
                      matrix.columns, read_bytes(view_), read_bytes(scales), matrix.groups);
  }

  dropless_operand argument_;
  std::string name_;
  TensorView view_;
  bool has_codes_;
};

// Zones of the experts, aligned as the profile demands (GROUPED_GEMM-1).
CallGroups expert_groups(const dropless_profile& profile, const dropless_tensor* offsets,
                         const dropless_tensor* counts, Index num_experts, Index rows) {
  if (offsets == nullptr) throw Refused("offsets is null");
  CallGroups groups(offsets, counts, num_experts, rows);
  const Index alignment = profile.gemm_alignment == 0 ? 1 : profile.gemm_alignment;
  const Indices values = groups.groups().offsets;
  for (std::size_t e = 0; e < values.size(); ++e) {
    if (values[e] % alignment != 0) {
      throw Refused("offsets[" + std::to_string(e) + "] = " + std::to_string(values[e]) +
                    " is not a multiple of the declared gemm_alignment " +
                    std::to_string(alignment));
    }
  }
  return groups;
}

}  // namespace

void gemm_fprop(const dropless_profile& profile, dropless_gemm_fprop_args* args) {
  const dropless_gemm_fprop_args a = completed(args, "arguments");
  const Operand w(a.w, "w", {kAny, kAny, kAny});
  const Index num_experts = w.shape(0), out = w.shape(1), in = w.shape(2);
  const Operand x(a.x, "x", {kAny, in});
  const Index rows = x.shape(0);
  const auto bias = optional_tensor(a.bias, "bias", Element::real, {num_experts, out});
  const CallGroups groups = expert_groups(profile, a.offsets, a.counts, num_experts, rows);
  const TensorView y = tensor(a.y, "y", Element::real, {rows, out});

  const int direction = DROPLESS_BLOCKS_ROW_WISE;
  const Gauged result = reference::gemm_fprop({num_experts, out, in, rows}, groups.groups(),
                                              a.alpha, x.read_rows(direction, groups.groups()),
                                              w.read_weights(direction), read_values(bias));
  write_rows(y, result.value, groups.kinds(), profile);
}

void gemm_dgrad(const dropless_profile& profile, dropless_gemm_dgrad_args* args) {
  const dropless_gemm_dgrad_args a = completed(args, "arguments");
  const Operand w(a.w, "w", {kAny, kAny, kAny});
  const Index num_experts = w.shape(0), out = w.shape(1), in = w.shape(2);
  const Operand dy(a.dy, "dy", {kAny, out});
  const Index rows = dy.shape(0);
  const CallGroups groups = expert_groups(profile, a.offsets, a.counts, num_experts, rows);
  const TensorView dx = tensor(a.dx, "dx", Element::real, {rows, in});

  // MXFP8-1: blocks run along the contraction axis O in both operands.
  const Gauged result =
      reference::gemm_dgrad({num_experts, out, in, rows}, groups.groups(), a.alpha,
                            dy.read_rows(DROPLESS_BLOCKS_ROW_WISE, groups.groups()),
                            w.read_weights(DROPLESS_BLOCKS_COLUMN_WISE));
  write_rows(dx, result.value, groups.kinds(), profile);
}

void gemm_wgrad(const dropless_profile& profile, dropless_gemm_wgrad_args* args) {
  const dropless_gemm_wgrad_args a = completed(args, "arguments");
  const TensorView dw = tensor(a.dw, "dw", Element::real, {kAny, kAny, kAny});
  const Index num_experts = dw.shape(0), out = dw.shape(1), in = dw.shape(2);
  const Operand dy(a.dy, "dy", {kAny, out});
  const Index rows = dy.shape(0);
  const Operand x(a.x, "x", {rows, in});
  const CallGroups groups = expert_groups(profile, a.offsets, a.counts, num_experts, rows);
  const auto c = optional_tensor(a.c, "c", Element::real, {num_experts, out, in});
  if (a.beta != 0 && !c) throw Refused("c is null although beta is not 0");

  const int direction = DROPLESS_BLOCKS_COLUMN_WISE;
  const Doubles c_values = a.beta != 0 ? read_values(c) : Doubles{};
  const Gauged result =
      reference::gemm_wgrad({num_experts, out, in, rows}, groups.groups(), a.alpha,
                            dy.read_rows(direction, groups.groups()),
                            x.read_rows(direction, groups.groups()), a.beta, c_values);

  const std::vector<Zone> zone_of = zones(rows, groups.groups());
  for (Index e = 0; e < num_experts; ++e) {
    const Zone& zone = zone_of[at(e)];
    // GROUPED_GEMM-5: an empty expert keeps C bit by bit, NaN payloads included.
    const bool keeps_bits = zone.real_end == zone.first && a.beta == 1 && c->dtype() == dw.dtype();
    for (Index i = e * out * in; i < (e + 1) * out * in; ++i) {
      if (keeps_bits) {
        dw.store_integer_flat(c->load_integer_flat(i), i);
      } else {
        dw.store_flat(result.value[at(i)], i);
      }
    }
  }
}

}  // namespace dropless::reference::contract
