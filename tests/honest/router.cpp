// SPDX-License-Identifier: Apache-2.0
// A router in fp32, forward: ROUTING-1 to 10 and 13 as a kernel writes them.
#include "tests/honest/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/honest/arithmetic.h"

namespace dropless::honest {
namespace {

using faults::view;

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

bool has_groups(const dropless_route_settings& s) {
  return s.num_groups > 1;
}

// The best `count` of those allowed, larger values first, equal ones by index; masked values last.
std::vector<Index> best(const Floats& values, const std::vector<bool>& allowed, Index count) {
  std::vector<Index> order;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (allowed[i]) order.push_back(static_cast<Index>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(std::min<Index>(count, static_cast<Index>(order.size()))));
  return order;
}

// ROUTING-4.
std::vector<bool> allowed_experts(const dropless_route_settings& s, const Floats& selection) {
  std::vector<bool> allowed(selection.size(), true);
  if (!has_groups(s)) return allowed;
  const Index size = s.num_experts / s.num_groups,
              width = std::max<Index>(1, s.top_k / s.kept_groups);
  Floats scores;
  for (Index g = 0; g < s.num_groups; ++g) {
    Floats members(selection.begin() + g * size, selection.begin() + (g + 1) * size);
    std::sort(members.begin(), members.end(), std::greater<>());
    float score = members[0];
    if (s.group_score == DROPLESS_GROUP_SCORE_TOP_SUM) {
      for (Index i = 1; i < std::min(width, size); ++i)
        score += members[static_cast<std::size_t>(i)];
    }
    scores.push_back(score);
  }
  allowed.assign(selection.size(), false);
  for (const Index g : best(scores, std::vector<bool>(scores.size(), true), s.kept_groups)) {
    std::fill_n(allowed.begin() + g * size, size, true);
  }
  return allowed;
}

Floats selection_scores(const RouterToken& token, const TensorView* bias, const Style& style) {
  const dropless_route_settings& s = token.settings;
  const bool on_logits =
      s.score_function == DROPLESS_SCORE_SOFTMAX && bias == nullptr && !has_groups(s) &&
      (style.selects_on_logits || s.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K);
  Floats values = on_logits ? token.logits : token.scores;
  for (std::size_t e = 0; e < values.size(); ++e) {
    if (bias != nullptr) values[e] += static_cast<float>(bias->load(static_cast<Index>(e)));
    if (std::isinf(token.logits[e]) && token.logits[e] < 0) values[e] = minus_infinity;
  }
  return values;
}

void route(const dropless_route_args& a, const Style& style) {
  const TensorView logits = view(a.logits), ids = view(a.ids), weights = view(a.weights);
  const dropless_route_settings s = completed(a.settings);
  const TensorView bias = a.expert_bias == nullptr ? ids : view(a.expert_bias);
  for (Index t = 0; t < logits.shape(0); ++t) {
    if (a.token_mask != nullptr && view(a.token_mask).load_integer(t) == 0) continue;
    RouterToken token = router_token(s, logits, t, style);
    if (token.undefined) continue;
    for (Index e = 0; a.scores != nullptr && e < s.num_experts; ++e) {
      view(a.scores).store(token.scores[static_cast<std::size_t>(e)], t, e);
    }
    if (a.given_ids == nullptr) {
      const Floats selection =
          selection_scores(token, a.expert_bias == nullptr ? nullptr : &bias, style);
      token.ids = best(selection, allowed_experts(s, selection), s.top_k);
      for (Index j = 0; j < s.top_k; ++j) {
        ids.store_integer(token.ids[static_cast<std::size_t>(j)], t, j);
      }
    } else {
      token.ids = selected_of(ids, t);
    }
    const Floats values = unscaled_weights(token, style);
    for (Index j = 0; j < s.top_k; ++j) {
      const Index e = token.ids[static_cast<std::size_t>(j)];
      float weight = values[static_cast<std::size_t>(j)] * static_cast<float>(s.scaling_factor);
      if (a.expert_scale != nullptr && e >= 0) {
        weight *= static_cast<float>(view(a.expert_scale).load(e));
      }
      weights.store(e < 0 ? 0 : weight, t, j);
    }
  }
  std::vector<Index> counts(static_cast<std::size_t>(s.num_experts));
  for (const Index id : faults::integers_of(a.ids)) {
    if (id >= 0) ++counts[static_cast<std::size_t>(id)];
  }
  for (Index e = 0; e < s.num_experts; ++e) {
    view(a.tokens_per_expert).store_integer(counts[static_cast<std::size_t>(e)], e);
  }
}

}  // namespace

RouterToken router_token(const dropless_route_settings& settings, const TensorView& logits, Index t,
                         const Style& style) {
  RouterToken token{settings, row_of(logits, t), {}, {}, false};
  token.undefined = is_undefined(settings.score_function, token.logits);
  if (token.undefined) return token;
  if (settings.score_function == DROPLESS_SCORE_SOFTMAX) {
    token.scores = softmax(token.logits, style);
  } else {
    for (const float l : token.logits) {
      token.scores.push_back(pointwise(settings.score_function, l, style));
    }
  }
  return token;
}

std::vector<Index> selected_of(const TensorView& ids, Index t) {
  std::vector<Index> selected;
  for (Index j = 0; j < ids.shape(1); ++j) selected.push_back(ids.load_integer(t, j));
  return selected;
}

bool renormalizes(const dropless_route_settings& settings) {
  return (settings.top_k == 1 ? settings.renormalize_single : settings.renormalize) != 0;
}

Floats selected_values(const Floats& of_expert, const std::vector<Index>& ids, float missing) {
  Floats values;
  for (const Index id : ids) {
    values.push_back(id < 0 ? missing : of_expert[static_cast<std::size_t>(id)]);
  }
  return values;
}

Divisor divisor_of(const dropless_route_settings& settings, const Floats& selected,
                   const Style& style) {
  if (!renormalizes(settings)) return {1, false};
  const float sum = sum_of(selected, style.order),
              eps = static_cast<float>(settings.renormalize_eps);
  if (settings.eps_form == DROPLESS_EPS_ADDED) return {sum + eps, true};
  return {std::max(sum, eps), sum >= eps};
}

Floats unscaled_weights(const RouterToken& token, const Style& style) {
  const dropless_route_settings& s = token.settings;
  if (s.score_function == DROPLESS_SCORE_SOFTMAX &&
      s.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K) {
    const Floats selected = selected_values(token.logits, token.ids, minus_infinity);
    if (*std::max_element(selected.begin(), selected.end()) == minus_infinity) {
      return Floats(selected.size(), 0);
    }
    return softmax(selected, style);
  }
  Floats values = selected_values(token.scores, token.ids, 0);
  const float divisor = divisor_of(s, values, style).value;
  for (float& value : values) value /= divisor;
  return values;
}

void route_in_fp32(Planted& variant, Style style) {
  variant.after<&Table::route_forward>([style](auto& a) { route(a, style); });
  variant.after<&Table::route_backward>([style](auto& a) { route_back(a, style); });
}

}  // namespace dropless::honest
