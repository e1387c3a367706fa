// SPDX-License-Identifier: Apache-2.0
// What every operation is given: its input tensors and its real numbers, by name, so that one of
// them can be exchanged for a changed copy.
//
//     Loose loose;
//     for (const Input& input : inputs_of(args, loose)) ...   "x", "w.scales", "offsets", "alpha"
#pragma once

#include <dropless/contract.h>

#include <string>
#include <vector>

namespace dropless::sensitivity {

// What the numbers of an input mean; decides which changes of it stay legal.
enum class Role {
  values,   // floating-point numbers, codes, bytes that are copied
  scales,   // E8M0
  ids,      // experts of a token, -1 = none
  labels,   // classes, negative = ignored
  mask,     // 0 or 1
  counts,   // real rows of a zone
  totals,   // counts that are added up
  offsets,  // ends of zones
  map,      // row of a (token, slot), or (token, slot) of a row; -1 = none
  number    // a real number of the argument struct
};

using Partners = std::vector<const dropless_tensor*>;

struct Input {
  std::string name;
  Role role = Role::values;
  const dropless_tensor** tensor = nullptr;  // null for a number
  double* number = nullptr;
  bool in_place = false;      // the operation writes it too
  bool of_all_ranks = false;  // changed on every rank alike: they must agree about it
  // Inputs that must agree with this one, and how they are made to after it was changed.
  std::vector<const dropless_tensor**> partners = {};
  void (*agree)(const dropless_tensor& changed, const Partners& partners) = nullptr;
};

// Copies of the structs that arguments point to, so that their members can be exchanged.
struct Loose {
  dropless_operand left{}, right{};
  dropless_layer_parameters parameters{};
  dropless_layer_args forward{};
  dropless_route_settings route{};
  dropless_exchange_settings exchange{};
  dropless_tensor max_tokens{};  // a view of exchange.max_tokens
  const dropless_tensor* max_tokens_view = nullptr;
};

// Only inputs that are there. `args` must be a copy that may be changed; it points into `loose`
// afterwards. Nothing for operations on a whole model.
std::vector<Input> inputs_of(dropless_route_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_route_backward_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_balance_loss_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_z_loss_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_bias_update_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_permute_plan_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_permute_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_permute_backward_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_unpermute_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_unpermute_backward_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_quantize_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_dequantize_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_gemm_fprop_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_gemm_dgrad_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_gemm_wgrad_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_activation_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_activation_backward_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_cross_entropy_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_adamw_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_layer_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_layer_backward_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_exchange_open_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_exchange_capacity_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_exchange_plan_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_exchange_dispatch_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_exchange_combine_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_exchange_dispatch_backward_args& args, Loose& loose);
std::vector<Input> inputs_of(dropless_exchange_combine_backward_args& args, Loose& loose);
template <class Args>
std::vector<Input> inputs_of(Args&, Loose&) {
  return {};
}

}  // namespace dropless::sensitivity
