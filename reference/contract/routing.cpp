// SPDX-License-Identifier: Apache-2.0
// route_forward, route_backward and bias_update behind the contract.
#include "reference/routing.h"

#include "reference/checks.h"
#include "reference/contract/call.h"
#include "reference/contract/operations.h"
#include "reference/contract/settings.h"
#include "reference/contract/tensor.h"
#include "reference/routing_checks.h"

namespace dropless::reference::contract {

void route_forward(const dropless_profile& profile, dropless_route_args* args) {
  const dropless_route_args a = completed(args, "arguments");
  const dropless_route_settings settings = route_settings(a.settings);
  check_route_selection(settings, profile, a.expert_bias != nullptr);
  const Index num_experts = settings.num_experts, k = settings.top_k;

  const TensorView logits = tensor(a.logits, "logits", Element::real, {kAny, num_experts});
  const Index tokens = logits.shape(0);
  const auto bias = optional_tensor(a.expert_bias, "expert_bias", Element::fp32, {num_experts});
  const auto mask = optional_tensor(a.token_mask, "token_mask", Element::u8, {tokens});
  const auto given = optional_tensor(a.given_ids, "given_ids", Element::id, {tokens, k});
  const auto scale = optional_tensor(a.expert_scale, "expert_scale", Element::fp32, {num_experts});
  const TensorView ids = tensor(a.ids, "ids", Element::id, {tokens, k});
  const TensorView weights = tensor(a.weights, "weights", Element::fp32, {tokens, k});
  const auto scores = optional_tensor(a.scores, "scores", Element::fp32, {tokens, num_experts});
  const TensorView counts =
      tensor(a.tokens_per_expert, "tokens_per_expert", Element::i64, {num_experts});

  const Doubles logit_values = read_values(logits), bias_values = read_values(bias),
                scale_values = read_values(scale);
  const std::vector<std::uint8_t> mask_values = read_bytes(mask);
  const std::vector<Index> given_values = read_integers(given);
  const Routing routing =
      route(settings, profile,
            {tokens, logit_values, bias_values, mask_values, given_values, scale_values});

  write_integers(ids, routing.ids);
  write_values(weights, routing.weights);
  if (scores) write_values(*scores, routing.scores);
  write_integers(counts, routing.tokens_per_expert);
}

void route_backward(const dropless_profile&, dropless_route_backward_args* args) {
  const dropless_route_backward_args a = completed(args, "arguments");
  const dropless_route_settings settings = route_settings(a.settings);
  check_route_settings(settings);
  const Index num_experts = settings.num_experts, k = settings.top_k;

  const TensorView logits = tensor(a.logits, "logits", Element::real, {kAny, num_experts});
  const Index tokens = logits.shape(0);
  const auto mask = optional_tensor(a.token_mask, "token_mask", Element::u8, {tokens});
  const auto scale = optional_tensor(a.expert_scale, "expert_scale", Element::fp32, {num_experts});
  const TensorView ids = tensor(a.ids, "ids", Element::id, {tokens, k});
  const TensorView d_weights = tensor(a.d_weights, "d_weights", Element::fp32, {tokens, k});
  const TensorView d_logits = tensor(a.d_logits, "d_logits", Element::fp32, {tokens, num_experts});
  // A gradient that is not wanted may be null; one of something that is not there is refused.
  const auto d_scale =
      optional_tensor(a.d_expert_scale, "d_expert_scale", Element::fp32, {num_experts});
  if (d_scale && !scale) throw Refused("d_expert_scale is given without expert_scale");

  const Doubles logit_values = read_values(logits), scale_values = read_values(scale),
                d_weight_values = read_values(d_weights);
  const std::vector<std::uint8_t> mask_values = read_bytes(mask);
  const std::vector<Index> id_values = read_integers(ids);
  const RoutingGradient gradient = reference::route_backward(
      settings, {tokens, logit_values, mask_values, scale_values, id_values, d_weight_values});

  write_values(d_logits, gradient.d_logits.value);
  if (d_scale) write_values(*d_scale, gradient.d_expert_scale.value);
}

void bias_update(const dropless_profile&, dropless_bias_update_args* args) {
  const dropless_bias_update_args a = completed(args, "arguments");
  const TensorView bias = tensor(a.expert_bias, "expert_bias", Element::fp32, {kAny});
  const Index num_experts = bias.shape(0);
  const TensorView counts = tensor(a.counts, "counts", Element::i64, {kAny, num_experts});
  if (num_experts == 0) return;  // GENERAL-4

  std::vector<float> values;
  for (const double value : read_values(bias)) values.push_back(static_cast<float>(value));
  const std::vector<float> updated =
      reference::bias_update(a.rate, num_experts, read_integers(counts), values);
  write_values(bias, Doubles(updated.begin(), updated.end()));
}

}  // namespace dropless::reference::contract
