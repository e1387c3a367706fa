// SPDX-License-Identifier: Apache-2.0
// A layer over ranks beside the same layer on one rank.
#include "conformance/cases/layer/over_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "conformance/cases/exchange/setup.h"
#include "conformance/judge/trust.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

using Doubles = std::vector<double>;

template <class Value>
std::vector<Value> cut(const std::vector<Value>& all, Index first, Index count, Index columns) {
  if (all.empty()) return {};
  const auto begin = all.begin() + first * columns;
  return {begin, begin + count * columns};
}

// Column-wise blocks of an expert's rows follow their order, which these layouts leave open
// (LAYER-4e).
bool order_is_open(const CaseRun& run) {
  const int layout = run.profile().dispatch_layout;
  return layout == DROPLESS_DISPATCH_UNORDERED_FLAT ||
         layout == DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR;
}

// The part of an expert gradient that a rank holds.
struct Part {
  Doubles value, error;
  Judged idle;
};

Part part_of(const LayerGroup& group, const GradientOf& one, const ExpectedGradients& expected,
             Index per_expert) {
  const Index first = one.of_experts ? group.first_expert() : 0;
  const Index experts = one.of_experts ? group.local_experts() : group.whole.experts();
  const auto total = static_cast<Index>(one.value.size());
  const Index columns = per_expert > 0 ? per_expert : total;
  const Index count = per_expert > 0 ? experts : 1;
  Part part{cut(one.value, first, count, columns), cut(one.bound.error, first, count, columns), {}};
  for (Index i = 0; per_expert > 0 && i < experts * per_expert; ++i) {
    part.idle.push_back(expected.counts[at(first + i / per_expert)] == 0);
  }
  return part;
}

// Visits the gradients that the call has: of the experts from `all`, the others from `own`.
template <class Visit>
void each_gradient(const LayerCall& call, const ExpectedGradients& own,
                   const ExpectedGradients& all, const Visit& visit) {
  const auto of_own = parameter_gradients(own), of_all = parameter_gradients(all);
  for (std::size_t i = 0; i < of_own.size(); ++i) {
    for (const LayerCall::Gradient& gradient : call.gradients) {
      if (std::string_view(gradient.name) != of_own[i].name) continue;
      const bool experts = of_own[i].of_experts;
      visit(gradient, experts ? of_all[i] : of_own[i], experts ? all : own);
    }
  }
}

void judge_idle(Judge& judge, const LayerCall::Gradient& gradient, const Part& part) {
  if (gradient.per_expert == 0) return;
  judge.exact("LAYER-1f", gradient.name + std::string(" of experts without tokens"),
              *gradient.buffer, Doubles(part.value.size(), 0.0), part.idle);
}

}  // namespace

LayerGroup::LayerGroup(CaseRun& the_run, std::string the_name, std::vector<Index> tokens_of_all)
    : run(the_run),
      group(this_group()),
      rank(group.rank()),
      ranks(group.ranks()),
      name(std::move(the_name)),
      tokens(std::move(tokens_of_all)) {}

LayerGroup::LayerGroup(CaseRun& the_run, std::string the_name)
    : LayerGroup(the_run, std::move(the_name),
                 tokens_of_ranks(the_run.word("share"), the_run.integer("tokens"),
                                 the_run.integer("ranks"))) {}

Index LayerGroup::first_token(Index of_rank) const {
  return std::accumulate(tokens.begin(), tokens.begin() + of_rank, Index{0});
}

std::span<const double> LayerGroup::d_y_of(Index of_rank) const {
  return std::span(whole_d_y).subspan(at(first_token(of_rank) * whole.hidden),
                                      at(tokens[at(of_rank)] * whole.hidden));
}

void LayerGroup::take(Index of_rank, bool all_experts, LayerData& out) const {
  const LayerData& w = whole;
  const Index first = first_token(of_rank), count = tokens[at(of_rank)];
  out.route = w.route, out.activation = w.activation, out.settings = w.settings;
  out.connect();
  out.tokens = count;
  out.hidden = w.hidden, out.intermediate = w.intermediate;
  out.shared_intermediate = w.shared_intermediate;
  out.dtype = w.dtype, out.router_dtype = w.router_dtype;
  out.x = cut(w.x, first, count, w.hidden);
  out.mask = cut(w.mask, first, count, 1);
  out.given_ids = cut(w.given_ids, first, count, w.route.top_k);
  out.ids_are_given = !w.given_ids.empty() || w.ids_are_given;
  out.router_weight = w.router_weight, out.router_bias = w.router_bias;
  out.expert_bias = w.expert_bias, out.expert_scale = w.expert_scale;
  out.shared_gate_up = w.shared_gate_up, out.shared_down = w.shared_down;
  out.shared_gate = w.shared_gate;
  out.over_ranks = true;
  const Index held = all_experts ? w.experts() : local_experts();
  const Index start = all_experts ? 0 : of_rank * held;
  const Index rows = w.gate_up_rows(w.intermediate);
  out.local_experts = held;
  out.gate_up = cut(w.gate_up, start, held, rows * w.hidden);
  out.gate_up_bias = cut(w.gate_up_bias, start, held, rows);
  out.down = cut(w.down, start, held, w.hidden * w.intermediate);
  out.down_bias = cut(w.down_bias, start, held, w.hidden);
}

void LayerGroup::take_parts() {
  whole.over_ranks = true;
  take(rank, true, own);
  take(rank, false, part);
}

std::vector<Index> LayerGroup::gathered_ids(const std::vector<Index>& of_this_rank) const {
  const Index most = *std::max_element(tokens.begin(), tokens.end());
  const auto room = at(most * whole.route.top_k);
  std::vector<Index> sent = of_this_rank, all(room * at(ranks));
  sent.resize(room, -1);
  if (!group.all_gather(sent.data(), all.data(), room * sizeof(Index))) throw CaseEnded{};
  std::vector<Index> ids;
  for (Index from = 0; from < ranks; ++from) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(room) * from;
    ids.insert(ids.end(), begin, begin + tokens[at(from)] * whole.route.top_k);
  }
  return ids;
}

ExchangeRoom LayerExchange::room_of(const LayerGroup& group) {
  const LayerData& w = group.whole;
  const bool mxfp8 = w.settings.recipe == DROPLESS_RECIPE_MXFP8;
  return {w.experts(), w.route.top_k, *std::max_element(group.tokens.begin(), group.tokens.end()),
          4 * w.hidden, mxfp8 ? (w.hidden + 31) / 32 : 0};
}

LayerExchange::LayerExchange(const LayerGroup& group) : LayerExchange(group, room_of(group)) {}

LayerExchange::LayerExchange(const LayerGroup& group, const ExchangeRoom& room) : run_(group.run) {
  auto settings = make_args<dropless_exchange_settings>();
  settings.rank = static_cast<std::int32_t>(group.rank);
  settings.ranks = static_cast<std::int32_t>(group.ranks);
  settings.all_gather = all_gather_of_group;
  settings.all_gather_context = &group.group;
  settings.num_experts = room.experts, settings.top_k = room.top_k;
  settings.max_tokens = room.tokens;
  settings.row_bytes = room.row_bytes, settings.scale_bytes = room.scale_bytes;
  settings.ragged_buffer_factor = -1;
  settings.timeout_seconds = 10;
  if (run_.has("nodes") && run_.word("nodes") == "two") {
    settings.node_of_rank = run_.buffers()
                                .input("node_of_rank", DROPLESS_I32, {group.ranks},
                                       reference::contiguous_nodes(group.ranks, 2))
                                .tensor();
  }
  auto args = make_args<dropless_exchange_open_args>();
  args.settings = &settings;
  run_.perform("exchange_open", run_.implementation().exchange_open, args);
  exchange_ = args.exchange;
  if (exchange_ != nullptr) return;
  run_.judge().holds("GENERAL-1", "exchange_open returns a handle", false, "a handle", "null");
  throw CaseEnded{};
}

LayerExchange::~LayerExchange() {
  const dropless_implementation& table = run_.implementation();
  if (exchange_ == nullptr || table.exchange_close == nullptr) return;
  dropless_call record{};
  record.struct_size = sizeof record;
  record.struct_version = DROPLESS_STRUCT_VERSION;
  auto args = make_args<dropless_exchange_close_args>();
  args.exchange = exchange_;
  table.exchange_close(table.context, &record, &args);
}

void LayerExchange::close() {
  auto args = make_args<dropless_exchange_close_args>();
  args.exchange = exchange_;
  exchange_ = nullptr;
  run_.perform("exchange_close", run_.implementation().exchange_close, args);
}

void require_traffic(const LayerGroup& group, const std::vector<Index>& all_ids) {
  if (group.ranks == 1) return;
  const Index top_k = group.whole.route.top_k;
  Index up = 0, down = 0, spread = 0, together = 0, token = 0;
  for (Index from = 0; from < group.ranks; ++from) {
    for (Index i = 0; i < group.tokens[at(from)]; ++i, ++token) {
      std::vector<Index> owners;
      for (Index j = token * top_k; j < (token + 1) * top_k; ++j) {
        if (all_ids[at(j)] >= 0) owners.push_back(group.owner(all_ids[at(j)]));
      }
      std::sort(owners.begin(), owners.end());
      up += !owners.empty() && owners.back() > from ? 1 : 0;
      down += !owners.empty() && owners.front() < from ? 1 : 0;
      spread += !owners.empty() && owners.front() != owners.back() ? 1 : 0;
      together += std::adjacent_find(owners.begin(), owners.end()) != owners.end() ? 1 : 0;
    }
  }
  Judge& judge = group.run.judge();
  judge.require(up > 1 && down > 1, "tokens cross ranks in both directions");
  if (top_k == 1) return;
  judge.require(spread > 1, "tokens have experts on several ranks");
  const Index pairs = token * top_k * (top_k - 1) / 2;
  if (pairs * (group.local_experts() - 1) > 16 * group.whole.experts()) {
    judge.require(together > 1, "tokens have several on one rank");
  }
}

void judge_over_ranks(const LayerGroup& group, const LayerCall& call,
                      const ParityClauses& clauses) {
  CaseRun& run = group.run;
  const Replay replay = judge_routing(run, group.own, call);
  judge_output(run, group.own, call, replay, clauses.y);
  if (call.d_x == nullptr) return;

  const std::vector<Index> all_ids = group.gathered_ids(replay.ids);
  const std::string key = fmt::format("bounded {} {}", group.name, fmt::join(all_ids, " "));
  const auto& all = group.group.shared<ExpectedGradients>(key, [&] {
    const Replay whole = replay_with(run, group.whole, all_ids);
    return expected_gradients(run, group.whole, whole, group.whole_d_y);
  });
  const ExpectedGradients own = expected_gradients(run, group.own, replay, group.d_y());
  Judge& judge = run.judge();
  judge.require(group.d_y().size() < 16 || trust::distinct(group.d_y()) > 1,
                "the cotangent is not uniform");
  judge.bounded(clauses.d_x, "d_x", *call.d_x, own.value.d_x, own.bound.d_x.error);
  const bool codes = group.whole.settings.recipe == DROPLESS_RECIPE_MXFP8;
  each_gradient(call, own, all,
                [&](const LayerCall::Gradient& gradient, const GradientOf& one,
                    const ExpectedGradients& expected) {
                  const Part part = part_of(group, one, expected, gradient.per_expert);
                  judge_idle(judge, gradient, part);
                  const std::string_view name = one.name;
                  const bool in_blocks = codes && (name == "d_gate_up" || name == "d_down");
                  if (in_blocks && order_is_open(run)) return;
                  judge.bounded(one.of_experts ? clauses.experts : clauses.replicated, name,
                                *gradient.buffer, part.value, part.error);
                });
}

namespace {

// The layer on one rank, and the parts of the ranks in what all of them hold.
struct ExactStep {
  Doubles y;
  ExpectedGradients all;
  std::vector<ExpectedGradients> own;
  bool adds_up = true, exact = true;
};

ExpectedGradients values_of(const CaseRun& run, const LayerData& data, const Replay& replay,
                            std::span<const double> d_y, dropless_dtype storage) {
  const reference::LayerInput input{data.tokens, data.x, data.mask, replay.ids};
  ExpectedGradients out;
  out.value = reference::layer_backward(data.settings, run.profile(), data.parameters(), input,
                                        replay.output.trace, d_y, {storage});
  out.counts = replay.output.trace.counts;
  return out;
}

bool same(const ExpectedGradients& a, const ExpectedGradients& b) {
  const auto left = parameter_gradients(a), right = parameter_gradients(b);
  bool equal = a.value.d_x == b.value.d_x;
  for (std::size_t i = 0; i < left.size(); ++i) equal = equal && left[i].value == right[i].value;
  return equal;
}

ExactStep exact_step(const LayerGroup& group) {
  const CaseRun& run = group.run;
  const LayerData& data = group.whole;
  const Replay replay = replay_with(run, data, data.given_ids);
  ExactStep step;
  step.y = replay.output.y;
  step.all = values_of(run, data, replay, group.whole_d_y, data.dtype);
  // No rounding and no quantisation changes anything: the same in double.
  dropless_layer_settings plain = data.settings;
  plain.recipe = DROPLESS_RECIPE_PLAIN;
  const reference::LayerInput input{data.tokens, data.x, data.mask, data.given_ids};
  Replay in_double{data.given_ids,
                   reference::layer(plain, run.profile(), data.parameters(), input)};
  ExpectedGradients unrounded;
  unrounded.value = reference::layer_backward(plain, run.profile(), data.parameters(), input,
                                              in_double.output.trace, group.whole_d_y);
  step.exact = in_double.output.y == step.y && same(unrounded, step.all);

  std::vector<Doubles> sums;
  for (Index rank = 0; rank < group.ranks; ++rank) {
    LayerData own;
    group.take(rank, true, own);
    const Replay of_rank = replay_with(run, own, own.given_ids);
    step.own.push_back(values_of(run, own, of_rank, group.d_y_of(rank), own.dtype));
    const auto parts = parameter_gradients(step.own.back());
    sums.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      sums[i].resize(parts[i].value.size(), 0.0);
      for (std::size_t j = 0; j < sums[i].size(); ++j) sums[i][j] += parts[i].value[j];
    }
  }
  const auto whole = parameter_gradients(step.all);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    step.adds_up = step.adds_up && sums[i] == whole[i].value;
  }
  return step;
}

Doubles rounded(dropless_dtype dtype, Doubles values) {
  for (double& value : values) value = tolerances::round_to(dtype, value);
  return values;
}

}  // namespace

void judge_exactly(const LayerGroup& group, const LayerCall& call, const ParityClauses& clauses,
                   bool exact_router) {
  CaseRun& run = group.run;
  Judge& judge = run.judge();
  const LayerData& own = group.own;
  const auto& step =
      group.group.shared<ExactStep>("exact " + group.name, [&] { return exact_step(group); });
  judge.require(step.exact, "no rounding and no quantisation changes a number");
  judge.require(step.adds_up, "the ranks' parts of a gradient add up to that of one rank");
  const Index first = group.first_token(group.rank), count = own.tokens;
  judge.exact("LAYER-1a", "ids", *call.ids, own.given_ids);
  const ExpectedGradients& mine = step.own[at(group.rank)];
  judge.exact("LAYER-1a", "tokens_per_expert", *call.counts, mine.counts);
  judge.exact(clauses.y, "y", *call.y, rounded(own.dtype, cut(step.y, first, count, own.hidden)));
  if (call.d_x == nullptr) return;
  judge.exact(clauses.d_x, "d_x", *call.d_x,
              rounded(own.dtype, cut(step.all.value.d_x, first, count, own.hidden)));
  ExpectedGradients bounded;
  if (!exact_router) {
    bounded = expected_gradients(run, own, replay_with(run, own, own.given_ids), group.d_y());
  }
  each_gradient(call, exact_router ? mine : bounded, step.all,
                [&](const LayerCall::Gradient& gradient, const GradientOf& one,
                    const ExpectedGradients& expected) {
                  const std::string_view name = one.name;
                  const Part part = part_of(group, one, expected, gradient.per_expert);
                  const std::string& clause = one.of_experts ? clauses.experts : clauses.replicated;
                  judge_idle(judge, gradient, part);
                  if (one.of_experts || exact_router || name.starts_with("d_shared")) {
                    judge.exact(clause, name, *gradient.buffer, part.value);
                  } else {
                    judge.bounded(clause, name, *gradient.buffer, part.value, part.error);
                  }
                });
}

std::vector<Parameter> rank_parameters() {
  return {integer_parameter("ranks", 1, 64, "ranks R of the group"),
          integer_parameter("tokens", 0, 512, "most tokens of a rank, T"),
          word_parameter("share", share_names(), "how many of them each rank has"),
          word_parameter("nodes", {"one", "two"}, "nodes of the ranks")};
}

std::string rank_objection(const Values& values, Index experts) {
  const Index ranks = std::stoll(value_of(values, "ranks"));
  if (experts % ranks != 0) return "experts is not divisible by ranks";
  return ranks % 2 != 0 && value_of(values, "nodes") == "two" ? "two nodes of odd ranks" : "";
}

}  // namespace dropless::conformance
