// SPDX-License-Identifier: Apache-2.0
// Inputs of the routing cases: settings, biases, and rows whose margins leave one right answer.
#include "conformance/cases/routing/setup.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "conformance/cases/replaced_data.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

bool has_groups(const dropless_route_settings& settings) {
  return settings.num_groups > 1;
}

// Are the kept groups of one token more than 2d above the others?
bool groups_are_clear(const dropless_profile& profile, const RoutingData& data,
                      const reference::Routing& routing, std::span<const double> d, Index token,
                      Ties ties) {
  const Index groups = data.settings.num_groups;
  const Index size = data.experts() / groups;
  const bool summed = data.settings.group_score == DROPLESS_GROUP_SCORE_TOP_SUM;
  const Index width = summed ? std::min(group_width(data.settings, profile), size) : size;
  std::vector<double> distance(at(groups));
  for (Index g = 0; g < groups; ++g) {
    std::vector<Index> members(at(size));
    std::iota(members.begin(), members.end(), token * data.experts() + g * size);
    std::sort(members.begin(), members.end(), [&](Index a, Index b) {
      return routing.selection[at(a)] > routing.selection[at(b)];
    });
    std::vector<double> ds, values;
    for (Index i = 0; i < width; ++i) {
      ds.push_back(d[at(members[at(i)])]);
      values.push_back(routing.selection[at(members[at(i)])]);
    }
    distance[at(g)] = tolerances::group_distance(data.settings, ds, values);
  }
  for (Index g = 0; g < groups; ++g) {
    for (Index h = 0; h < groups; ++h) {
      const auto of = [&](Index group) { return at(token * groups + group); };
      if (!routing.group_kept[of(g)] || routing.group_kept[of(h)]) continue;
      const double margin = routing.group_scores[of(g)] - routing.group_scores[of(h)];
      if (ties == Ties::allowed && margin == 0) continue;
      if (!(margin > 2 * std::max(distance[at(g)], distance[at(h)]))) return false;
    }
  }
  return true;
}

bool row_is_clear(const dropless_profile& profile, const RoutingData& data,
                  const reference::Routing& routing, std::span<const double> d, Index token,
                  Ties ties) {
  if (has_groups(data.settings) && !groups_are_clear(profile, data, routing, d, token, ties)) {
    return false;
  }
  const Index size = has_groups(data.settings) ? data.experts() / data.settings.num_groups : 0;
  std::vector<std::size_t> candidates;
  for (Index e = 0; e < data.experts(); ++e) {
    const std::size_t i = at(token * data.experts() + e);
    if (std::isnan(routing.selection[i])) return false;
    const bool kept =
        size == 0 || routing.group_kept[at(token * data.settings.num_groups + e / size)];
    if (kept && std::isfinite(routing.selection[i])) candidates.push_back(i);
  }
  const auto k = at(data.top_k());
  if (candidates.size() < k) return false;
  std::sort(candidates.begin(), candidates.end(), [&](std::size_t a, std::size_t b) {
    return routing.selection[a] > routing.selection[b];
  });
  for (std::size_t j = 1; j < candidates.size(); ++j) {
    const std::size_t above = candidates[std::min(j, k) - 1], below = candidates[j];
    const double margin = routing.selection[above] - routing.selection[below];
    if (ties == Ties::allowed && margin == 0) continue;
    if (!(margin > 2 * std::max(d[above], d[below]))) return false;
  }
  return true;
}

}  // namespace

bool RoutingData::is_masked(Index token) const {
  return !mask.empty() && mask[at(token)] == 0;
}

std::span<const double> RoutingData::row(Index token) const {
  return std::span(logits).subspan(at(token * experts()), at(experts()));
}

const std::vector<std::string>& score_words() {
  static const std::vector<std::string> words = {"softmax", "softmax_selected", "sigmoid",
                                                 "sqrt_softplus"};
  return words;
}

bool is_softmax(const dropless_route_settings& settings) {
  return settings.score_function == DROPLESS_SCORE_SOFTMAX;
}

bool over_selected(const dropless_route_settings& settings) {
  return is_softmax(settings) && settings.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
}

dropless_route_settings route_settings(Index experts, Index top_k, std::string_view score,
                                       bool renormalize) {
  dropless_route_settings settings{};
  settings.struct_size = sizeof settings;
  settings.struct_version = DROPLESS_STRUCT_VERSION;
  settings.num_experts = experts;
  settings.top_k = top_k;
  settings.score_function = score == "sigmoid"         ? DROPLESS_SCORE_SIGMOID
                            : score == "sqrt_softplus" ? DROPLESS_SCORE_SQRT_SOFTPLUS
                                                       : DROPLESS_SCORE_SOFTMAX;
  settings.softmax_order =
      score == "softmax_selected" ? DROPLESS_SOFTMAX_AFTER_TOP_K : DROPLESS_SOFTMAX_BEFORE_TOP_K;
  settings.renormalize = renormalize ? 1 : 0;
  settings.renormalize_single = settings.renormalize;
  settings.eps_form = DROPLESS_EPS_ADDED;
  settings.num_groups = 1;
  settings.kept_groups = 1;
  settings.renormalize_eps = 1e-20;
  settings.scaling_factor = 1;
  return settings;
}

dropless_dtype logits_dtype(std::string_view word) {
  return word == "bf16" ? DROPLESS_BF16 : DROPLESS_FP32;
}

std::vector<double> matching_bias(const dropless_route_settings& settings, Random& random) {
  // Leading softmax scores differ by a few times 1/E, the other scores by a few tenths.
  const double size = is_softmax(settings) ? 6.0 / static_cast<double>(settings.num_experts) : 0.4;
  std::vector<double> bias(at(settings.num_experts));
  for (double& b : bias) {
    b = tolerances::round_to(DROPLESS_FP32, size * (2 * random.uniform() - 1));
  }
  return bias;
}

RoutingData model_data(const Model& model, Index tokens, dropless_dtype dtype, Random& random) {
  RoutingData data;
  data.settings = model.route;
  data.tokens = tokens;
  data.dtype = dtype;
  if (model.expert_bias) data.bias = matching_bias(model.route, random);
  if (model.expert_scale) {
    data.scale.resize(at(model.experts));
    for (double& s : data.scale) {
      s = tolerances::round_to(DROPLESS_FP32, 0.5 + random.uniform());
    }
  }
  return data;
}

DrawRow normal_row(const RoutingData& data, Random& random, double deviation) {
  return [dtype = data.dtype, &random, deviation](std::span<double> row) {
    for (double& l : row) l = tolerances::round_to(dtype, deviation * random.normal());
  };
}

void draw_clear_rows(CaseRun& run, RoutingData& data, const DrawRow& own, Ties ties) {
  const Replacement* replacement = ReplacedData::of_thread();
  const DrawRow draw = replacement != nullptr && replacement->logits ? replacement->logits : own;
  const auto experts = at(data.experts());
  data.logits.resize(at(data.tokens) * experts);
  std::vector<Index> pending(at(data.tokens));
  std::iota(pending.begin(), pending.end(), 0);
  for (int round = 0; round < 200 && !pending.empty(); ++round) {
    RoutingData part = data;
    part.tokens = static_cast<Index>(pending.size());
    part.mask.clear();
    part.logits.resize(pending.size() * experts);
    for (std::size_t i = 0; i < pending.size(); ++i) {
      const std::span<double> row = std::span(part.logits).subspan(i * experts, experts);
      draw(row);
      std::copy(row.begin(), row.end(), data.logits.begin() + pending[i] * data.experts());
    }
    const std::vector<bool> clear =
        clear_rows(run.profile(), part, expected_routing(run, part), ties);
    std::vector<Index> left;
    for (std::size_t i = 0; i < pending.size(); ++i) {
      if (!clear[i]) left.push_back(pending[i]);
    }
    pending = left;
  }
  run.judge().require(pending.empty(), "every row has one right answer (margins above 2d)");
}

reference::RoutingInput reference_input(const RoutingData& data) {
  reference::RoutingInput input;
  input.tokens = data.tokens;
  input.logits = data.logits;
  input.expert_bias = data.bias;
  input.token_mask = data.mask;
  input.given_ids = data.given_ids;
  input.expert_scale = data.scale;
  return input;
}

reference::Routing expected_routing(const CaseRun& run, const RoutingData& data) {
  return reference::route(data.settings, run.profile(), reference_input(data));
}

double spread_of(const RoutingData& data, Index token, Index expert,
                 std::span<const Index> selected) {
  const std::span<const double> row = data.row(token);
  const double own = row[at(expert)];
  if (!is_softmax(data.settings)) return std::abs(own);
  double largest = -std::numeric_limits<double>::infinity();
  if (selected.empty()) {
    for (const double l : row) largest = std::max(largest, l);
  } else {
    for (const Index e : selected) {
      if (e >= 0) largest = std::max(largest, row[at(e)]);
    }
  }
  return std::abs(own - largest);
}

std::vector<double> distances(const dropless_profile& profile, const RoutingData& data,
                              const reference::Routing& routing) {
  std::vector<double> out(routing.selection.size());
  for (Index t = 0; t < data.tokens; ++t) {
    const std::span<const double> row = data.row(t);
    const double largest = *std::max_element(row.begin(), row.end());
    for (Index e = 0; e < data.experts(); ++e) {
      const std::size_t i = at(t * data.experts() + e);
      const double l = data.logits[i];
      const double spread = is_softmax(data.settings) ? std::abs(l - largest) : std::abs(l);
      out[i] = tolerances::selection_distance(data.settings, profile, routing.scores[i],
                                              routing.selection[i], spread, !data.bias.empty());
    }
  }
  return out;
}

std::vector<bool> clear_rows(const dropless_profile& profile, const RoutingData& data,
                             const reference::Routing& routing, Ties ties) {
  const std::vector<double> d = distances(profile, data, routing);
  std::vector<bool> out(at(data.tokens));
  for (Index t = 0; t < data.tokens; ++t) {
    out[at(t)] = !data.is_masked(t) && row_is_clear(profile, data, routing, d, t, ties);
  }
  return out;
}

double share_of_other_selections(const CaseRun& run, const RoutingData& data,
                                 const RoutingData& other) {
  const std::vector<Index> a = expected_routing(run, data).ids;
  const std::vector<Index> b = expected_routing(run, other).ids;
  const auto k = at(data.top_k());
  Index different = 0;
  for (std::size_t i = 0; i + k <= a.size(); i += k) {
    different += sorted_ids(std::span(a).subspan(i, k)) != sorted_ids(std::span(b).subspan(i, k));
  }
  return static_cast<double>(different) / static_cast<double>(std::max<Index>(data.tokens, 1));
}

Index group_width(const dropless_route_settings& settings, const dropless_profile& profile) {
  return profile.group_width == DROPLESS_GROUP_WIDTH_TWO ? 2
                                                         : settings.top_k / settings.kept_groups;
}

Judged spread_rows(const std::vector<bool>& rows, Index columns) {
  Judged out;
  out.reserve(rows.size() * at(columns));
  for (const bool row : rows) out.insert(out.end(), at(columns), row);
  return out;
}

std::vector<std::string> top_k_model_names() {
  std::vector<std::string> names;
  for (const Model& model : models()) {
    if (model.top_k_routing) names.push_back(model.name);
  }
  return names;
}

}  // namespace dropless::conformance
