// SPDX-License-Identifier: Apache-2.0
// adamw behind the contract.
#include "reference/optimizer.h"

#include "reference/checks.h"
#include "reference/contract/call.h"
#include "reference/contract/operations.h"
#include "reference/contract/stochastic_rounding.h"
#include "reference/contract/tensor.h"

namespace dropless::reference::contract {
namespace {

// Bits of the weight tensor's element for a new weight p.
Index weight_bits(const dropless_adamw_args& a, const TensorView& weight, double p, Index i) {
  if (weight.dtype() == DROPLESS_BF16 && a.weight_rounding == DROPLESS_ROUND_STOCHASTIC) {
    const auto step = static_cast<std::uint64_t>(a.step);
    return round_stochastically(p, counter_uniform(a.seed, step, static_cast<std::uint64_t>(i)));
  }
  return encode_bits(weight.dtype(), p);
}

}  // namespace

void adamw(const dropless_profile&, dropless_adamw_args* args) {
  const dropless_adamw_args a = completed(args, "arguments");
  if (a.weight_rounding != DROPLESS_ROUND_NEAREST_EVEN &&
      a.weight_rounding != DROPLESS_ROUND_STOCHASTIC) {
    throw Refused("weight_rounding = " + std::to_string(a.weight_rounding) + " is neither 0 nor 1");
  }
  const TensorView gradient = tensor(a.gradient, "gradient", Element::real, {kAny});
  const Index n = gradient.shape(0);
  const TensorView first = tensor(a.first_moment, "first_moment", Element::real, {n});
  const TensorView second = tensor(a.second_moment, "second_moment", Element::fp32, {n});
  const auto master = optional_tensor(a.master, "master", Element::fp32, {n});
  const TensorView weight = tensor(a.weight, "weight", Element::real, {n});
  const auto scale =
      optional_tensor(a.gradient_scale_tensor, "gradient_scale_tensor", Element::fp32, {1});

  const AdamwSettings settings{a.learning_rate, a.beta1,
                               a.beta2,         a.eps,
                               a.weight_decay,  scale ? scale->load(0) : a.gradient_scale,
                               a.step};
  check_adamw_settings(settings);
  for (Index i = 0; i < n; ++i) {
    const double old_weight = master ? master->load(i) : weight.load(i);
    const AdamwElement result =
        reference::adamw(settings, gradient.load(i), first.load(i), second.load(i), old_weight);
    first.store(result.first_moment, i);
    second.store(result.second_moment, i);
    double p = result.weight;
    if (master) {
      // OPTIMIZER-1: the weight is the rounding of what the master holds.
      master->store(p, i);
      p = master->load(i);
    }
    weight.store_integer(weight_bits(a, weight, p, i), i);
  }
}

}  // namespace dropless::reference::contract
