// SPDX-License-Identifier: Apache-2.0
// A router in fp32, backward: ROUTING-12.
#include "tests/honest/router.h"

namespace dropless::honest {
namespace {

using faults::view;

float at(const Floats& values, Index i) {
  return values[static_cast<std::size_t>(i)];
}

// d_s of the selected experts from the cotangents of their unscaled weights.
Floats selected_gradient(const RouterToken& token, const Floats& d_unscaled, const Style& style) {
  const Floats s = selected_values(token.scores, token.ids, 0);
  const Divisor divisor = divisor_of(token.settings, s, style);
  Floats terms, d_s;
  for (std::size_t j = 0; j < s.size(); ++j)
    terms.push_back(d_unscaled[j] * (s[j] / divisor.value));
  const float common = divisor.moves ? sum_of(terms, style.order) : 0;
  for (std::size_t j = 0; j < s.size(); ++j)
    d_s.push_back((d_unscaled[j] - common) / divisor.value);
  return d_s;
}

// d_x_i = p_i (d_p_i - sum_j p_j d_p_j), where only some d_p are not zero.
Floats softmax_gradient(const Floats& p, const Floats& d_p, const Style& style) {
  Floats terms, d_x;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (d_p[i] != 0) terms.push_back(p[i] * d_p[i]);
  }
  const float dot = sum_of(terms, style.order);
  for (std::size_t i = 0; i < p.size(); ++i) d_x.push_back(p[i] * (d_p[i] - dot));
  return d_x;
}

Floats spread_over_experts(const RouterToken& token, const Floats& of_slot) {
  Floats values(token.logits.size(), 0);
  for (std::size_t j = 0; j < of_slot.size(); ++j) {
    if (token.ids[j] >= 0) values[static_cast<std::size_t>(token.ids[j])] = of_slot[j];
  }
  return values;
}

Floats d_logits_of(const RouterToken& token, const Floats& d_unscaled, const Style& style) {
  const dropless_route_settings& s = token.settings;
  if (s.score_function == DROPLESS_SCORE_SOFTMAX &&
      s.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K) {
    return spread_over_experts(token,
                               softmax_gradient(unscaled_weights(token, style), d_unscaled, style));
  }
  Floats d_s = spread_over_experts(token, selected_gradient(token, d_unscaled, style));
  if (s.score_function == DROPLESS_SCORE_SOFTMAX) {
    return softmax_gradient(token.scores, d_s, style);
  }
  for (std::size_t e = 0; e < d_s.size(); ++e) {
    if (d_s[e] == 0) continue;
    d_s[e] *= pointwise_slope(s.score_function, token.logits[e], token.scores[e], style);
  }
  return d_s;
}

}  // namespace

void route_back(const dropless_route_backward_args& a, const Style& style) {
  const TensorView logits = view(a.logits), ids = view(a.ids), d_weights = view(a.d_weights);
  const dropless_route_settings s = completed(a.settings);
  const auto factor = static_cast<float>(s.scaling_factor);
  std::vector<Floats> scale_terms(static_cast<std::size_t>(s.num_experts));
  bool all_defined = true;
  for (Index t = 0; t < logits.shape(0); ++t) {
    if (a.token_mask != nullptr && view(a.token_mask).load_integer(t) == 0) continue;
    RouterToken token = router_token(s, logits, t, style);
    token.ids = selected_of(ids, t);
    if (token.undefined) {
      all_defined = false;
      continue;
    }
    const Floats unscaled = unscaled_weights(token, style);
    Floats d_unscaled;
    for (Index j = 0; j < s.top_k; ++j) {
      const Index e = token.ids[static_cast<std::size_t>(j)];
      float d = static_cast<float>(d_weights.load(t, j)) * factor;
      if (e >= 0) scale_terms[static_cast<std::size_t>(e)].push_back(d * at(unscaled, j));
      if (e >= 0 && a.expert_scale != nullptr) {
        d *= static_cast<float>(view(a.expert_scale).load(e));
      }
      d_unscaled.push_back(e < 0 ? 0 : d);
    }
    const Floats d = d_logits_of(token, d_unscaled, style);
    for (Index e = 0; e < s.num_experts; ++e) view(a.d_logits).store(at(d, e), t, e);
  }
  if (a.d_expert_scale == nullptr || !all_defined) return;
  for (Index e = 0; e < s.num_experts; ++e) {
    view(a.d_expert_scale).store(sum_of(scale_terms[static_cast<std::size_t>(e)], style.order), e);
  }
}

}  // namespace dropless::honest
