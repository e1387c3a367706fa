// SPDX-License-Identifier: Apache-2.0
// The routing call and its judgement, part by part.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "conformance/cases/routing/setup.h"
#include "tolerances/bounds.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

constexpr double smallest_judged_sum = 1e-12;  // ROUTING-6e
constexpr double flush = 0x1p-126;             // flushing subnormals costs at most this

std::string row_name(Index token) {
  return fmt::format("[{}]", token);
}

// ROUTING-3a as a relation: could some values within d make this set a top-k?
bool is_possible_selection(const RoutingData& data, const reference::Routing& routing,
                           std::span<const double> d, Index token, std::span<const Index> set) {
  double weakest = std::numeric_limits<double>::infinity();
  double strongest = -std::numeric_limits<double>::infinity();
  for (Index e = 0; e < data.experts(); ++e) {
    const std::size_t i = at(token * data.experts() + e);
    if (std::find(set.begin(), set.end(), e) != set.end()) {
      weakest = std::min(weakest, routing.selection[i] + d[i]);
    } else {
      strongest = std::max(strongest, routing.selection[i] - d[i]);
    }
  }
  return weakest >= strongest;
}

void judge_ids(CaseRun& run, const RoutingData& data, const RouteCall& call,
               const std::vector<bool>& valid, const RouteClauses& clauses) {
  if (!data.given_ids.empty()) return;  // compared with what was given, by judge_distinct_ids
  const reference::Routing expected = expected_routing(run, data);
  const std::vector<bool> clear = clear_rows(run.profile(), data, expected);
  const std::vector<double> d = distances(run.profile(), data, expected);
  const std::vector<Index> got = call.ids->integers();
  const auto k = at(data.top_k());
  std::vector<bool> right(at(data.tokens), false);
  for (Index t = 0; t < data.tokens; ++t) {
    if (!valid[at(t)]) continue;
    const auto ids = std::span(got).subspan(at(t) * k, k);
    const auto wanted = std::span(expected.ids).subspan(at(t) * k, k);
    if (clear[at(t)]) {
      right[at(t)] = sorted_ids(ids) == sorted_ids(wanted);
      run.judge().holds(clauses.set, "selected experts", right[at(t)], list_of(wanted),
                        list_of(ids), row_name(t));
    } else if (data.settings.num_groups <= 1) {
      run.judge().holds(
          clauses.set, "selected experts", is_possible_selection(data, expected, d, t, ids),
          "a top-k of values within d, such as " + list_of(wanted), list_of(ids), row_name(t));
    }
  }
  if (run.profile().selection_order == DROPLESS_ORDER_ANY) return;
  run.judge().exact(clauses.order, "ids", *call.ids, expected.ids,
                    spread_rows(right, data.top_k()));
}

// ROUTING-9a.
void judge_masked(CaseRun& run, const RoutingData& data, const RouteCall& call) {
  if (data.mask.empty()) return;
  std::vector<bool> masked(at(data.tokens));
  for (Index t = 0; t < data.tokens; ++t) masked[at(t)] = data.is_masked(t);
  const Judged judged = spread_rows(masked, data.top_k());
  run.judge().exact("ROUTING-9a", "ids of masked tokens", *call.ids,
                    std::vector<Index>(judged.size(), -1), judged);
  run.judge().exact("ROUTING-9a", "weights of masked tokens", *call.weights,
                    std::vector<double>(judged.size(), 0.0), judged);
}

}  // namespace

RouteCall::RouteCall(CaseRun& run, const RoutingData& data, const RouteStyle& style)
    : args(make_args<dropless_route_args>()), run_(run), threads_(style.threads) {
  Buffers& buffers = run.buffers();
  const Index tokens = data.tokens, experts = data.experts(), top_k = data.top_k();
  const auto label = [&](const char* name) { return style.prefix + name; };
  args.settings = &data.settings;
  args.logits =
      buffers.input(label("logits"), data.dtype, {tokens, experts}, data.logits, style.inputs)
          .tensor();
  if (!data.bias.empty()) {
    args.expert_bias =
        buffers.input(label("expert_bias"), DROPLESS_FP32, {experts}, data.bias).tensor();
  }
  if (!data.mask.empty()) {
    args.token_mask = buffers
                          .input(label("token_mask"), DROPLESS_U8, {tokens},
                                 std::span<const std::uint8_t>(data.mask))
                          .tensor();
  }
  if (!data.given_ids.empty()) {
    args.given_ids = buffers
                         .input(label("given_ids"), style.ids_dtype, {tokens, top_k},
                                data.given_ids, style.inputs)
                         .tensor();
  }
  if (!data.scale.empty()) {
    args.expert_scale =
        buffers.input(label("expert_scale"), DROPLESS_FP32, {experts}, data.scale).tensor();
  }
  ids = &buffers.output(label("ids"), style.ids_dtype, {tokens, top_k}, style.outputs);
  weights = &buffers.output(label("weights"), DROPLESS_FP32, {tokens, top_k}, style.outputs);
  scores = &buffers.output(label("scores"), DROPLESS_FP32, {tokens, experts}, style.outputs);
  counts = &buffers.output(label("tokens_per_expert"), DROPLESS_I64, {experts});
  args.ids = ids->tensor();
  args.weights = weights->tensor();
  args.scores = scores->tensor();
  args.tokens_per_expert = counts->tensor();
}

void RouteCall::perform(std::string_view clause) {
  const auto entry = run_.implementation().route_forward;
  if (threads_ > 0) {
    run_.perform_with_threads(threads_, "route_forward", entry, args);
  } else {
    run_.perform("route_forward", entry, args, clause);
  }
}

void RouteCall::refused(std::string_view clause, std::string_view why) {
  run_.refused(clause, why, "route_forward", run_.implementation().route_forward, args);
}

std::vector<bool> judge_distinct_ids(CaseRun& run, const RoutingData& data, const RouteCall& call,
                                     const std::string& clause) {
  const std::vector<Index> got = call.ids->integers();
  const auto k = at(data.top_k());
  std::vector<bool> valid(at(data.tokens), false);
  for (Index t = 0; t < data.tokens; ++t) {
    if (data.is_masked(t)) continue;
    const auto ids = std::span(got).subspan(at(t) * k, k);
    if (!data.given_ids.empty()) {
      const auto given = std::span(data.given_ids).subspan(at(t) * k, k);
      valid[at(t)] = std::equal(ids.begin(), ids.end(), given.begin());
      run.judge().holds("ROUTING-13a", "ids", valid[at(t)], list_of(given), list_of(ids),
                        row_name(t));
      continue;
    }
    const std::vector<Index> order = sorted_ids(ids);
    valid[at(t)] = order.front() >= 0 && order.back() < data.experts() &&
                   std::adjacent_find(order.begin(), order.end()) == order.end();
    run.judge().holds(clause, "ids", valid[at(t)],
                      fmt::format("{} distinct ids in 0..{}", k, data.experts() - 1), list_of(ids),
                      row_name(t));
  }
  return valid;
}

// Judged on the ids that were chosen, so that a selection within d has no consequence here.
void judge_weights(CaseRun& run, const RoutingData& data, const RouteCall& call,
                   const std::vector<bool>& rows, const std::string& clause) {
  RoutingData replay = data;
  replay.given_ids = call.ids->integers();
  for (std::size_t i = 0; i < replay.given_ids.size(); ++i) {
    if (!rows[i / at(data.top_k())]) replay.given_ids[i] = -1;
  }
  const reference::Routing expected = expected_routing(run, replay);
  std::vector<double> errors(expected.weights.size(), 0);
  std::vector<bool> judged = rows;
  const bool biased = !data.bias.empty() && data.given_ids.empty();
  for (Index t = 0; t < data.tokens; ++t) {
    const std::span<const Index> ids =
        std::span(replay.given_ids).subspan(at(t * data.top_k()), at(data.top_k()));
    if (!(expected.weight_sum[at(t)] > smallest_judged_sum)) judged[at(t)] = false;
    if (!judged[at(t)]) continue;
    const std::span<const Index> among = over_selected(data.settings) ? ids : ids.first(0);
    std::vector<tolerances::SelectedExpert> selected;
    std::vector<std::size_t> slots;
    double sum = 0;  // of the selected softmax, where that is what a weight is made of
    for (const Index id : ids) {
      if (id >= 0) sum += std::exp(-spread_of(data, t, id, among));
    }
    for (Index j = 0; j < data.top_k(); ++j) {
      const Index id = ids[at(j)];
      if (id < 0) continue;
      const double spread = spread_of(data, t, id, among);
      const double score = over_selected(data.settings)
                               ? std::exp(-spread) / sum
                               : expected.scores[at(t * data.experts() + id)];
      const double weight = expected.weights[at(t * data.top_k() + j)];
      selected.push_back({score, spread, biased ? data.bias[at(id)] : 0.0,
                          score > 0 ? weight / score : data.settings.scaling_factor});
      slots.push_back(at(t * data.top_k() + j));
    }
    const std::vector<double> token_errors =
        tolerances::routing_weights(data.settings, run.profile(), selected);
    for (std::size_t i = 0; i < slots.size(); ++i) errors[slots[i]] = token_errors[i];
  }
  run.judge().bounded(clause, "weights", *call.weights, expected.weights, errors,
                      spread_rows(judged, data.top_k()));
}

void judge_scores(CaseRun& run, const RoutingData& data, const RouteCall& call,
                  const std::vector<bool>& rows, const std::string& clause) {
  const reference::Routing expected = expected_routing(run, data);
  dropless_route_settings plain = data.settings;
  plain.softmax_order = DROPLESS_SOFTMAX_BEFORE_TOP_K;  // ROUTING-1e: always over all E
  std::vector<double> errors(expected.scores.size(), 0);
  for (Index t = 0; t < data.tokens; ++t) {
    if (!rows[at(t)]) continue;
    for (Index e = 0; e < data.experts(); ++e) {
      const std::size_t i = at(t * data.experts() + e);
      const double score = expected.scores[i];
      const double relative =
          tolerances::score_relative(plain, run.profile(), spread_of(data, t, e, {}));
      errors[i] = score < smallest_judged_sum ? score + flush : relative * score + flush;
    }
  }
  run.judge().bounded(clause, "scores", *call.scores, expected.scores, errors,
                      spread_rows(rows, data.experts()));
}

void judge_counts(CaseRun& run, const RoutingData& data, const RouteCall& call) {
  std::vector<Index> expected(at(data.experts()), 0);
  for (const Index id : call.ids->integers()) {
    if (id >= 0 && id < data.experts()) ++expected[at(id)];
  }
  run.judge().exact("ROUTING-10", "tokens_per_expert", *call.counts, expected);
}

void judge_route(CaseRun& run, const RoutingData& data, const RouteCall& call,
                 const RouteClauses& clauses) {
  std::vector<bool> valid = judge_distinct_ids(run, data, call, clauses.distinct);
  if (!clauses.rows.empty()) {
    for (std::size_t t = 0; t < valid.size(); ++t) valid[t] = valid[t] && clauses.rows[t];
  }
  judge_ids(run, data, call, valid, clauses);
  judge_weights(run, data, call, valid,
                clauses.weights.empty() ? weight_clause(data) : clauses.weights);
  judge_scores(run, data, call, valid);
  judge_masked(run, data, call);
  judge_counts(run, data, call);
}

std::string list_of(std::span<const Index> ids) {
  std::string out = "{";
  for (const Index id : ids) out += (out.size() > 1 ? " " : "") + std::to_string(id);
  return out + "}";
}

std::vector<Index> sorted_ids(std::span<const Index> ids) {
  std::vector<Index> out(ids.begin(), ids.end());
  std::sort(out.begin(), out.end());
  return out;
}

std::string weight_clause(const RoutingData& data) {
  if (!data.scale.empty()) return "ROUTING-6g";
  const dropless_route_settings& settings = data.settings;
  if (over_selected(settings)) return "ROUTING-6b";
  if (settings.top_k == 1 && settings.renormalize_single != settings.renormalize) {
    return "ROUTING-6d";
  }
  const bool renormalized =
      settings.top_k == 1 ? settings.renormalize_single != 0 : settings.renormalize != 0;
  if (renormalized) return "ROUTING-6c";
  if (is_softmax(settings)) return "ROUTING-6a";
  return data.bias.empty() ? "ROUTING-6c" : "ROUTING-2b";
}

}  // namespace dropless::conformance
