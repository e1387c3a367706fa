// SPDX-License-Identifier: Apache-2.0
// The exemptions, family by family.
#include "tests/sensitivity/exemptions.h"

namespace dropless::sensitivity {
namespace {

constexpr const char* refused =
    "judges refusals: the input is legal in every call, and no result of the control is judged";
constexpr const char* empty = "there is no element that the input could change";
constexpr const char* told =
    "the dispatch only tells the order of the rows; what it delivers is exchange.dispatch's";
constexpr const char* kept =
    "the backward pass takes it from what the forward call has kept; layer_forward's flips";

}  // namespace

const std::vector<Exemption>& exemptions() {
  static const std::vector<Exemption> all = {
      // ---- routing
      {"routing.given_ids", "route_forward.expert_bias",
       "ROUTING-13: with given ids the bias plays no part, and the case proves it"},
      {"routing.few_experts", "route_forward.expert_bias",
       "fewer unmasked experts than K: all of them are selected under every bias"},
      {"routing.bias_update_empty", "bias_update.rate", "without counts no bias moves"},
      {"routing.empty", "*", empty},
      {"routing.refused_settings", "*", refused},
      {"routing.refused_ids", "*", refused},
      {"routing.refused_shapes", "*", refused},
      // ---- mxfp8
      {"mxfp8.refusals", "quantize.x", refused},
      {"mxfp8.no_elements", "*", empty},
      // ---- grouped_gemm
      {"grouped_gemm.nothing", "*", empty},
      {"grouped_gemm.alpha_zero", "*", "with alpha 0 no finite product counts"},
      {"grouped_gemm.beta_zero", "gemm_wgrad.c",
       "GROUPED_GEMM-5: with beta 0 the old contents must not be read, and the case proves it"},
      // ---- activation
      {"activation.nothing", "*", empty},
      // ---- losses
      {"losses.balance_uniform", "balance_loss_forward.logits",
       "with equal counts the loss is the same for all probabilities"},
      {"losses.balance_uniform", "balance_loss_backward.logits",
       "with equal counts the gradient is zero for all probabilities"},
      {"losses.balance_uniform", "balance_loss_backward.coeff", "a factor of a gradient of zero"},
      {"losses.balance_uniform", "balance_loss_backward.d_loss", "a factor of a gradient of zero"},
      {"losses.empty", "*", empty},
      {"losses.switched_off", "*", "without a coefficient the loss is zero for every routing"},
      // ---- optimizer
      {"optimizer.stochastic", "adamw.beta1",
       "judges how weights are rounded; moments and updates are judged by optimizer.adamw"},
      {"optimizer.stochastic", "adamw.beta2",
       "judges how weights are rounded; moments and updates are judged by optimizer.adamw"},
      {"optimizer.nan", "adamw.eps", "compares two runs; a part of eps moves no weight by a bit"},
      {"optimizer.nan", "adamw.weight_decay",
       "compares two runs; a part of the decay moves no weight by a bit"},
      {"optimizer.neutral", "adamw.eps", "its smoke case has a learning rate of zero"},
      {"optimizer.neutral", "adamw.weight_decay", "its smoke case has a learning rate of zero"},
      {"optimizer.empty", "*", empty},
      {"optimizer.refused_shapes", "*", refused},
      // ---- layer
      {"layer.bounded", "layer_backward.gate_up_bias", kept},
      {"layer.bounded", "layer_backward.down_bias", kept},
      {"layer.bounded", "layer_backward.router_bias", kept},
      {"layer.bounded", "layer_backward.expert_bias", kept},
      {"layer.bounded", "layer_backward.given_ids", kept},
      {"layer.nothing_routed", "*", "no token is routed: no expert has anything to compute"},
      {"layer.further_losses", "*",
       "with a cotangent of zero only x and the router's weight of the backward call matter"},
      {"layer.state", "*", "the release reads no tensor"},
      {"layer.over_ranks_state", "*", "the release reads no tensor"},
      {"layer.over_ranks_exact", "layer_backward.gate_up_bias", kept},
      {"layer.over_ranks_exact", "layer_backward.down_bias", kept},
      {"layer.over_ranks_exact", "layer_backward.given_ids", kept},
      {"layer.over_ranks_steps", "layer_backward.gate_up_bias", kept},
      {"layer.over_ranks_steps", "layer_backward.down_bias", kept},
      {"layer.over_ranks_steps", "layer_backward.given_ids", kept},
      {"layer.over_ranks_in_flight", "layer_backward.gate_up_bias", kept},
      {"layer.over_ranks_in_flight", "layer_backward.down_bias", kept},
      {"layer.over_ranks_in_flight", "layer_backward.given_ids", kept},
      // ---- exchange
      {"exchange.combine", "exchange_dispatch.x", told},
      {"exchange.combine", "exchange_dispatch.weights", told},
      {"exchange.dispatch_backward", "exchange_dispatch.x", told},
      {"exchange.dispatch_backward", "exchange_dispatch.weights", told},
      {"exchange.combine_backward", "exchange_dispatch.x", told},
      {"exchange.combine_backward", "exchange_dispatch.weights", told},
      {"exchange.adjoint", "exchange_dispatch.weights", "the identities have no weights"},
      {"exchange.open_refusals", "exchange_open.placement", refused},
      {"exchange.call_refusals", "*", refused},
  };
  return all;
}

}  // namespace dropless::sensitivity
