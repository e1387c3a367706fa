// SPDX-License-Identifier: Apache-2.0
// activation_forward and activation_backward behind the contract.
#include "reference/activation.h"

#include "reference/contract/call.h"
#include "reference/contract/operations.h"
#include "reference/contract/rows.h"
#include "reference/contract/settings.h"

namespace dropless::reference::contract {
namespace {

Index input_columns(const dropless_activation_settings& settings, Index width) {
  return settings.kind == DROPLESS_RELU2 ? width : 2 * width;
}

}  // namespace

void activation_forward(const dropless_profile& profile, dropless_activation_args* args) {
  const dropless_activation_args a = completed(args, "arguments");
  const dropless_activation_settings settings = activation_settings(a.settings);
  const TensorView h = tensor(a.h, "h", Element::real, {kAny, kAny});
  const Index rows = h.shape(0), width = h.shape(1);
  const TensorView x = tensor(a.x, "x", Element::real, {rows, input_columns(settings, width)});
  const auto weights = optional_tensor(a.row_weights, "row_weights", Element::fp32, {rows});
  const CallGroups groups(a.offsets, a.counts, kAny, rows);

  const Doubles result = activation(settings, rows, width, read_values(x), read_values(weights));
  write_rows(h, result, groups.kinds(), profile);
}

void activation_backward(const dropless_profile& profile, dropless_activation_backward_args* args) {
  const dropless_activation_backward_args a = completed(args, "arguments");
  const dropless_activation_settings settings = activation_settings(a.settings);
  const TensorView dh = tensor(a.dh, "dh", Element::real, {kAny, kAny});
  const Index rows = dh.shape(0), width = dh.shape(1), columns = input_columns(settings, width);
  const TensorView x = tensor(a.x, "x", Element::real, {rows, columns});
  const TensorView d_x = tensor(a.d_x, "d_x", Element::real, {rows, columns});
  check_pair(a.row_weights, "row_weights", a.d_row_weights, "d_row_weights");
  const auto weights = optional_tensor(a.row_weights, "row_weights", Element::fp32, {rows});
  const auto d_weights = optional_tensor(a.d_row_weights, "d_row_weights", Element::fp32, {rows});
  const CallGroups groups(a.offsets, a.counts, kAny, rows);

  const ActivationGradient gradient = reference::activation_backward(
      settings, rows, width, read_values(x), read_values(dh), read_values(weights));
  write_rows(d_x, gradient.d_x, groups.kinds(), profile);
  if (d_weights) write_rows(*d_weights, gradient.d_row_weights.value, groups.kinds(), profile);
}

}  // namespace dropless::reference::contract
