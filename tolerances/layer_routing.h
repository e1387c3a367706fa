// SPDX-License-Identifier: Apache-2.0
// Routing weights and their backward pass for approximate logits, the selection given.
#pragma once

#include "tolerances/layer.h"

namespace dropless::tolerances {

// weights [T,K] from logits [T,E]; 0 where the id is -1.
Approximate layer_weights(const LayerCall& call, const Approximate& logits);

struct LayerRoutingBackward {
  Approximate d_logits;      // [T,E]
  Approximate expert_scale;  // [E]
};
LayerRoutingBackward layer_routing_backward(const LayerCall& call, const Approximate& logits,
                                            const Approximate& d_weights);

}  // namespace dropless::tolerances
