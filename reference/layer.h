// SPDX-License-Identifier: Apache-2.0
// The MoE layer, text-book form: LAYER-1 onward. It calls the other stages and adds nothing but
// their order. Where the experts are spread over ranks, the rows come and go by a LayerExchange.
#pragma once

#include <dropless/contract.h>

#include <memory>
#include <optional>

#include "reference/routing.h"
#include "reference/value.h"

namespace dropless::reference {

// Dimensions and parameters. Empty where the model has none. Shapes as in
// dropless_layer_parameters: those of the experts hold the experts of this rank.
struct LayerParameters {
  Index hidden = 0, intermediate = 0, shared_intermediate = 0;
  Input router_weight, router_bias, expert_bias, expert_scale;
  Input gate_up, gate_up_bias, down, down_bias;
  Input shared_gate_up, shared_down, shared_gate;
};

struct LayerInput {
  Index tokens = 0;
  Input x;            // [T,H]
  Mask token_mask;    // [T] or empty
  Indices given_ids;  // [T,K] or empty
};

// What the permutation sees: the rank's own tokens with the experts of its routing, or the rows
// that came from all ranks with the experts of this one.
struct RoutedTokens {
  Index tokens = 0, top_k = 0, num_experts = 0;
  Doubles x;               // [tokens,H]
  std::vector<Index> ids;  // [tokens,top_k], -1 none
  Doubles weights;         // [tokens,top_k]
};

// The other ranks, as the layer of one rank sees them. Every function is one or more collective
// calls: all ranks make the same ones in the same order, also a rank without tokens (EXCHANGE-8).
class LayerExchange {
 public:
  virtual ~LayerExchange() = default;
  // The plan of ids [T,K], and the rows of x [T,H] with their weights [T,K] to their experts.
  virtual RoutedTokens dispatch(Indices ids, Input x, Input weights) = 0;
  // The sum of each token's rows [T,H] from what its experts made of them [tokens,H].
  virtual Doubles combine(Input rows) = 0;
  // Backward of combine: d_y [T,H] at the rows [tokens,H].
  virtual Doubles combine_backward(Input d_y) = 0;
  struct Home {
    Doubles d_x, d_weights;  // [T,H], [T,K]
  };
  // Backward of dispatch, and the way home of the weight gradients [tokens,top_k].
  virtual Home dispatch_backward(Input d_rows, Input d_weights) = 0;
};

// What the stages saw, kept so that the backward pass and the judge can look at every step.
struct LayerTrace {
  Doubles logits;  // [T,E]
  Routing routing;
  std::optional<RoutedTokens> received;  // with an exchange: what came from all ranks
  // Of the own tokens, or of those received:
  Doubles rows;             // [N,H] permuted input (times weight for input placement)
  Doubles gate_up, hidden;  // [N,2I], [N,I] (hidden after early weights)
  Doubles expert_out;       // [N,H]
  std::vector<Index> counts, offsets, row_map, source;  // of the rows, as in PermutePlan
  Doubles shared_gate_up, shared_hidden, shared_out, shared_gate;
};

struct LayerOutput {
  Doubles y;  // [T,H]
  LayerTrace trace;
};

// Element format of every stored intermediate: the reference can round what a real implementation
// stores, so that bf16 layers are compared with the same roundings (fp32: no rounding at all).
struct LayerArithmetic {
  dropless_dtype storage = DROPLESS_FP32;
};

// Throws Refused for unknown settings and for sizes that do not fit. Rounded to the storage format
// are gate-up, hidden and expert output of routed and shared experts, the weighted input rows of
// input placement, and in the backward pass the gradients of the same tensors; logits are rounded
// to settings.logits_dtype (fp32: not at all). y and all results of the backward pass are not
// rounded: that is the judge's last step.
//
// With an exchange, x and its gradient travel as they are and every rounding and quantisation is
// made where the experts are: the results are those of one rank with all tokens and all experts
// (EXCHANGE-13), each rank's y its part of them. Routing and the shared expert see own tokens only.
LayerOutput layer(const dropless_layer_settings& settings, const dropless_profile& profile,
                  const LayerParameters& parameters, const LayerInput& input,
                  const LayerArithmetic& arithmetic = {}, LayerExchange* exchange = nullptr);

struct LayerGradient {
  Doubles d_x;
  Doubles router_weight, router_bias, expert_scale;
  Doubles gate_up, gate_up_bias, down, down_bias;
  Doubles shared_gate_up, shared_down, shared_gate;
};

// d_logits [T,E] or empty: gradient of further losses on the logits, added to the routing's own.
// With an exchange: the one, with the plan, of the forward pass. Gradients of experts are then sums
// over the tokens of all ranks, those of the router and the shared expert over the own tokens.
LayerGradient layer_backward(const dropless_layer_settings& settings,
                             const dropless_profile& profile, const LayerParameters& parameters,
                             const LayerInput& input, const LayerTrace& trace, Input d_y,
                             const LayerArithmetic& arithmetic = {}, Input d_logits = {},
                             LayerExchange* exchange = nullptr);

}  // namespace dropless::reference
