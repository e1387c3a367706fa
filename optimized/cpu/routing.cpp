// SPDX-License-Identifier: Apache-2.0
// Routing: scores, selection, weights, counts. ROUTING-1 to 10, 13 and 16. Each token is computed
// by itself, in double.
#include <cmath>
#include <limits>
#include <mutex>

#include "optimized/cpu/operations.h"
#include "optimized/cpu/scores.h"
#include "optimized/cpu/selection.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

struct Route {
  RouteSettings settings;
  Tensor logits, token_mask, given_ids, expert_scale;
  Tensor ids, weights, scores;
  std::vector<float> bias;  // empty: none
};

// Weights of the ids of one token (ROUTING-6); an id of -1 weighs 0 and stands outside every sum.
void weigh(const Route& route, const float* logits, const double* scores,
           const std::vector<Index>& ids, std::vector<double>& weights) {
  const RouteSettings& s = route.settings;
  double sum = 0, most = -std::numeric_limits<double>::infinity();
  for (const Index id : ids) {
    if (id >= 0) most = std::max(most, static_cast<double>(logits[id]));
  }
  for (std::size_t j = 0; j < ids.size(); ++j) {
    const Index id = ids[j];
    weights[j] = id < 0          ? 0
                 : s.after_top_k ? std::exp(static_cast<double>(logits[id]) - most)
                                 : scores[id];
    sum += weights[j];
  }
  double divisor = 1;
  if (s.after_top_k) divisor = sum;
  if (s.renormalize) divisor = s.eps_maximum ? std::max(sum, s.eps) : sum + s.eps;
  for (std::size_t j = 0; j < ids.size(); ++j) {
    const Index id = ids[j];
    // A masked expert weighs 0 even where all of them are masked (ROUTING-7).
    if (id < 0 || logits[id] == -std::numeric_limits<float>::infinity()) {
      weights[j] = 0;
      continue;
    }
    weights[j] = weights[j] / divisor * s.scale;
    if (route.expert_scale) {
      weights[j] *= static_cast<double>(route.expert_scale.as<float>(id));
    }
  }
}

// Buffers for one token after the other.
struct Scratch {
  explicit Scratch(const RouteSettings& s)
      : logits(static_cast<std::size_t>(s.experts)),
        scores(static_cast<std::size_t>(s.experts)),
        weights(static_cast<std::size_t>(s.top_k)),
        ids(static_cast<std::size_t>(s.top_k)) {}
  std::vector<float> logits;
  std::vector<double> scores, weights;
  std::vector<Index> ids;
};

void route_token(const Route& route, Selector& selector, Scratch& scratch, Index t) {
  const RouteSettings& s = route.settings;
  load_run(route.logits.at(t, 0), route.logits.dtype, route.logits.inner_stride(), s.experts,
           scratch.logits.data());
  const float* logits = scratch.logits.data();
  const bool masked = route.token_mask && route.token_mask.as<std::uint8_t>(t) == 0;
  if (!masked || route.scores) {
    score_row(s.score_function, logits, s.experts, scratch.scores.data());
  }
  if (route.scores) {
    for (Index e = 0; e < s.experts; ++e) {
      route.scores.as<float>(t, e) =
          static_cast<float>(scratch.scores[static_cast<std::size_t>(e)]);
    }
  }
  const bool nan_row = !masked && is_nan_row(s.score_function, logits, s.experts);
  std::vector<Index>& ids = scratch.ids;
  if (masked) {
    std::fill(ids.begin(), ids.end(), -1);
  } else if (route.given_ids) {
    for (Index j = 0; j < s.top_k; ++j) {
      ids[static_cast<std::size_t>(j)] = route.given_ids.integer(t, j);
    }
  } else if (nan_row) {
    for (Index j = 0; j < s.top_k; ++j) ids[static_cast<std::size_t>(j)] = j;  // any choice
  } else {
    selector.select(logits, scratch.scores.data(), route.bias, ids);
  }
  weigh(route, logits, scratch.scores.data(), ids, scratch.weights);
  for (Index j = 0; j < s.top_k; ++j) {
    const std::size_t slot = static_cast<std::size_t>(j);
    const bool nan = nan_row && ids[slot] >= 0;
    route.ids.store_integer(ids[slot], t, j);
    route.weights.as<float>(t, j) =
        nan ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(scratch.weights[slot]);
  }
}

}  // namespace

void route_forward(Call& call, const dropless_route_args& args) {
  Route route = {};
  route.settings = read_route_settings(args.settings, args.expert_bias != nullptr);
  const Index experts = route.settings.experts, top_k = route.settings.top_k;
  route.logits = tensor(args.logits, "logits", floats, {any, experts});
  const Index tokens = route.logits.shape[0];
  const Tensor bias = optional_tensor(args.expert_bias, "expert_bias", {DROPLESS_FP32}, {experts});
  route.token_mask = optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {tokens});
  route.given_ids = optional_tensor(args.given_ids, "given_ids", integers, {tokens, top_k});
  route.expert_scale =
      optional_tensor(args.expert_scale, "expert_scale", {DROPLESS_FP32}, {experts});
  route.ids = tensor(args.ids, "ids", integers, {tokens, top_k});
  route.weights = tensor(args.weights, "weights", {DROPLESS_FP32}, {tokens, top_k});
  route.scores = optional_tensor(args.scores, "scores", {DROPLESS_FP32}, {tokens, experts});
  const Tensor counts =
      tensor(args.tokens_per_expert, "tokens_per_expert", {DROPLESS_I64}, {experts});
  if (route.given_ids) check_ids(route.given_ids, experts, "given_ids");
  for (Index e = 0; bias && e < experts; ++e) route.bias.push_back(bias.as<float>(e));

  std::vector<Index> total(static_cast<std::size_t>(experts), 0);
  std::mutex total_mutex;
  const Index grain = rows_per_task(experts * 16);
  parallel_ranges(call.threads(), tokens, grain, [&](Index begin, Index end) {
    Selector selector(route.settings);
    Scratch scratch(route.settings);
    std::vector<Index> here(static_cast<std::size_t>(experts), 0);
    for (Index t = begin; t < end; ++t) {
      route_token(route, selector, scratch, t);
      for (const Index id : scratch.ids) {
        if (id >= 0) ++here[static_cast<std::size_t>(id)];
      }
    }
    const std::lock_guard lock(total_mutex);  // integers: any order gives the same sums
    for (std::size_t e = 0; e < here.size(); ++e) total[e] += here[e];
  });
  for (Index e = 0; e < experts; ++e) {
    counts.as<std::int64_t>(e) = total[static_cast<std::size_t>(e)];
  }
  call.ran_simd();
}

void bias_update(Call& call, const dropless_bias_update_args& args) {
  const Tensor bias = tensor(args.expert_bias, "expert_bias", {DROPLESS_FP32}, {any});
  const Index experts = bias.shape[0];
  const Tensor counts = tensor(args.counts, "counts", {DROPLESS_I64}, {any, experts});
  std::vector<Index> sums(static_cast<std::size_t>(experts), 0);
  Index total = 0;
  for (Index i = 0; i < counts.shape[0]; ++i) {
    for (Index e = 0; e < experts; ++e) {
      sums[static_cast<std::size_t>(e)] += counts.as<std::int64_t>(i, e);
      total += counts.as<std::int64_t>(i, e);
    }
  }
  for (Index e = 0; e < experts; ++e) {
    const Index above = total - experts * sums[static_cast<std::size_t>(e)];
    const double sign = above > 0 ? 1.0 : above < 0 ? -1.0 : 0.0;
    float& value = bias.as<float>(e);
    if (sign != 0) value = static_cast<float>(static_cast<double>(value) + args.rate * sign);
  }
  call.ran("cpu");
}

}  // namespace dropless::cpu
