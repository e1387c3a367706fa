// SPDX-License-Identifier: Apache-2.0
// Judgement of the layer cases. Ids first; everything else on the ids that the layer chose, so that
// two experts within rounding of each other have no consequence.
#include <algorithm>
#include <cmath>

#include "conformance/cases/layer/setup.h"
#include "conformance/cases/routing/setup.h"
#include "conformance/judge/trust.h"
#include "tolerances/bounds.h"
#include "tolerances/layer.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

reference::LayerInput input_of(const LayerData& data) {
  return {data.tokens, data.x, data.mask, data.given_ids};
}

bool is_masked(const LayerData& data, Index token) {
  return !data.mask.empty() && data.mask[at(token)] == 0;
}

// The layer that a tolerance sees: the same spans under the names of that folder.
struct BoundInputs {
  std::vector<Index> counts;
  tolerances::LayerCall call;
};

BoundInputs bound_inputs(const CaseRun& run, const LayerData& data, const Replay& replay) {
  const reference::LayerTrace& trace = replay.output.trace;
  tolerances::LayerModel model;
  model.hidden = data.hidden, model.intermediate = data.intermediate;
  model.shared_intermediate = data.shared_intermediate;
  model.router_weight = data.router_weight, model.router_bias = data.router_bias;
  model.expert_bias = data.expert_bias, model.expert_scale = data.expert_scale;
  model.gate_up = data.gate_up, model.gate_up_bias = data.gate_up_bias;
  model.down = data.down, model.down_bias = data.down_bias;
  model.shared_gate_up = data.shared_gate_up, model.shared_down = data.shared_down;
  model.shared_gate = data.shared_gate;
  return {{},
          {data.settings,
           run.profile(),
           model,
           {trace.routing.ids, trace.offsets, trace.counts, trace.source},
           data.tokens,
           data.x,
           data.dtype,
           tolerances::Operands::fp32,
           data.over_ranks}};
}

// Tokens whose set of experts cannot change when every logit moves by its error: the smallest gap
// of compared values is larger than what such a move can do to it (scores have slope at most 1, a
// softmax at most 2 in the largest move; a group score adds up w of them).
std::vector<bool> clear_tokens(const CaseRun& run, const LayerData& data,
                               const reference::Routing& routing, double logit_error) {
  const Index experts = data.experts(), k = data.route.top_k;
  std::vector<bool> clear(at(data.tokens), false);
  for (Index t = 0; t < data.tokens; ++t) {
    if (is_masked(data, t)) continue;
    std::vector<double> values(routing.selection.begin() + t * experts,
                               routing.selection.begin() + (t + 1) * experts);
    const double move = 2 * logit_error + 0x1p-20;
    bool ok = true;
    if (data.route.num_groups > 1) {
      const Index groups = data.route.num_groups, size = experts / groups;
      std::vector<double> kept, others;
      for (Index g = 0; g < groups; ++g) {
        const bool in = routing.group_kept[at(t * groups + g)] != 0;
        (in ? kept : others).push_back(routing.group_scores[at(t * groups + g)]);
        if (!in) {
          std::fill_n(values.begin() + g * size, size, -std::numeric_limits<double>::infinity());
        }
      }
      const double width = static_cast<double>(group_width(data.route, run.profile()));
      if (!others.empty()) {
        ok = *std::min_element(kept.begin(), kept.end()) -
                 *std::max_element(others.begin(), others.end()) >
             2 * width * move;
      }
    }
    std::sort(values.begin(), values.end(), std::greater<>());
    if (k < experts) ok = ok && values[at(k - 1)] - values[at(k)] > 2 * move;
    clear[at(t)] = ok;
  }
  return clear;
}

bool valid_ids(std::span<const Index> ids, Index experts, bool may_be_empty) {
  std::vector<Index> order(ids.begin(), ids.end());
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] < (may_be_empty ? -1 : 0) || order[i] >= experts) return false;
    if (i > 0 && order[i] >= 0 && order[i] == order[i - 1]) return false;
  }
  return true;
}

}  // namespace

Replay judge_routing(CaseRun& run, const LayerData& data, const LayerCall& call) {
  Judge& judge = run.judge();
  const Index k = data.route.top_k;
  Replay replay;
  replay.ids = call.ids->integers();
  const auto own = reference::layer(data.settings, run.profile(), data.parameters(), input_of(data),
                                    {data.dtype});
  if (!data.given_ids.empty()) {
    judge.exact("LAYER-1a", "ids", *call.ids, own.trace.routing.ids);
  } else {
    double gauge = 0;  // of the largest logit
    for (Index t = 0; t < data.tokens; ++t) {
      for (Index e = 0; e < data.experts(); ++e) {
        double sum = 0;
        for (Index h = 0; h < data.hidden; ++h) {
          sum += std::fabs(data.x[at(t * data.hidden + h)] *
                           data.router_weight[at(e * data.hidden + h)]);
        }
        gauge = std::max(gauge, sum);
      }
    }
    // Declared bf16 partials are those of the grouped products (LAYER-1a).
    dropless_profile router_profile = run.profile();
    router_profile.partials = DROPLESS_PARTIALS_FP32;
    const double logit_error =
        tolerances::gemm(router_profile, tolerances::Operands::fp32, data.hidden, gauge, 1);
    const auto clear = clear_tokens(run, data, own.trace.routing, logit_error);
    Index decided = 0, unmasked = 0;
    for (Index t = 0; t < data.tokens; ++t) {
      const auto ids = std::span(replay.ids).subspan(at(t * k), at(k));
      const auto wanted = std::span(own.trace.routing.ids).subspan(at(t * k), at(k));
      const std::string row = "[" + std::to_string(t) + "]";
      const bool masked = is_masked(data, t);
      unmasked += masked ? 0 : 1;
      const bool valid = valid_ids(ids, data.experts(), masked);
      judge.holds("LAYER-1a", "ids", valid, "distinct ids in range", list_of(ids), row);
      if (!valid) throw CaseEnded{};
      if (!clear[at(t)] && !masked) continue;
      decided += masked ? 0 : 1;
      judge.holds("LAYER-1a", "selected experts", sorted_ids(ids) == sorted_ids(wanted),
                  list_of(wanted), list_of(ids), row);
    }
    judge.require(unmasked < 4 || decided * 2 > unmasked,
                  "more than half of the tokens have one right set of experts");
  }
  std::vector<Index> counts(at(data.experts()), 0);
  for (const Index id : replay.ids) {
    if (id >= data.experts() || id < -1) throw CaseEnded{};  // said above
    if (id >= 0) ++counts[at(id)];
  }
  judge.exact("LAYER-1a", "tokens_per_expert", *call.counts, counts);
  return replay_with(run, data, replay.ids);
}

Replay replay_with(const CaseRun& run, const LayerData& data, std::vector<Index> ids) {
  reference::LayerInput input = input_of(data);
  input.given_ids = ids;
  auto output =
      reference::layer(data.settings, run.profile(), data.parameters(), input, {data.dtype});
  return {std::move(ids), std::move(output)};
}

void judge_output(CaseRun& run, const LayerData& data, const LayerCall& call, const Replay& replay,
                  const std::string& clause) {
  const BoundInputs bounds = bound_inputs(run, data, replay);
  const tolerances::LayerForward forward = tolerances::layer_forward(bounds.call);
  Judged routed(replay.output.y.size()), shared(replay.output.y.size());
  const Index k = data.route.top_k;
  for (Index t = 0; t < data.tokens; ++t) {
    bool any = false;
    for (Index j = 0; j < k; ++j) any = any || replay.ids[at(t * k + j)] >= 0;
    for (Index h = 0; h < data.hidden; ++h) (any ? routed : shared)[at(t * data.hidden + h)] = true;
  }
  run.judge().bounded(clause, "y", *call.y, replay.output.y, forward.y.error, routed);
  run.judge().bounded(data.shared_intermediate > 0 ? "LAYER-1b" : "LAYER-1g",
                      "y of tokens without routed experts", *call.y, replay.output.y,
                      forward.y.error, shared);
}

ExpectedGradients expected_gradients(const CaseRun& run, const LayerData& data,
                                     const Replay& replay, std::span<const double> d_y,
                                     std::span<const double> d_logits) {
  const BoundInputs bounds = bound_inputs(run, data, replay);
  const auto forward = tolerances::layer_forward(bounds.call);
  reference::LayerInput input = input_of(data);
  input.given_ids = replay.ids;
  return {reference::layer_backward(data.settings, run.profile(), data.parameters(), input,
                                    replay.output.trace, d_y, {data.dtype}, d_logits),
          tolerances::layer_backward(bounds.call, forward, d_y, d_logits),
          replay.output.trace.counts};
}

std::vector<GradientOf> parameter_gradients(const ExpectedGradients& expected) {
  const reference::LayerGradient& v = expected.value;
  const tolerances::LayerBackward& b = expected.bound;
  return {{"d_router_weight", v.router_weight, b.router_weight, false},
          {"d_router_bias", v.router_bias, b.router_bias, false},
          {"d_expert_scale", v.expert_scale, b.expert_scale, false},
          {"d_gate_up", v.gate_up, b.gate_up, true},
          {"d_gate_up_bias", v.gate_up_bias, b.gate_up_bias, true},
          {"d_down", v.down, b.down, true},
          {"d_down_bias", v.down_bias, b.down_bias, true},
          {"d_shared_gate_up", v.shared_gate_up, b.shared_gate_up, false},
          {"d_shared_down", v.shared_down, b.shared_down, false},
          {"d_shared_gate", v.shared_gate, b.shared_gate, false}};
}

void judge_gradients(CaseRun& run, const LayerData& data, const LayerCall& call,
                     const Replay& replay, std::span<const double> d_y, const std::string& clause) {
  const ExpectedGradients expected = expected_gradients(run, data, replay, d_y, call.d_logits);
  Judge& judge = run.judge();
  judge.require(d_y.size() < 16 || trust::distinct(d_y) > 1, "the cotangent is not uniform");
  judge.bounded(clause, "d_x", *call.d_x, expected.value.d_x, expected.bound.d_x.error);
  for (const GradientOf& one : parameter_gradients(expected)) {
    for (const LayerCall::Gradient& gradient : call.gradients) {
      if (std::string_view(gradient.name) != one.name) continue;
      judge.bounded(clause, one.name, *gradient.buffer, one.value, one.bound.error);
      if (gradient.per_expert == 0) continue;
      Judged idle(one.value.size(), false);
      for (std::size_t i = 0; i < idle.size(); ++i) {
        idle[i] = expected.counts[i / at(gradient.per_expert)] == 0;
      }
      judge.exact("LAYER-1f", std::string(one.name) + " of experts without tokens",
                  *gradient.buffer, std::vector<double>(one.value.size(), 0.0), idle);
    }
  }
}

}  // namespace dropless::conformance
