// SPDX-License-Identifier: Apache-2.0
// Combine: EXCHANGE-6a to 6e.
#include <limits>

#include "conformance/cases/exchange/numbers.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Bitwise cases see the difference between one rounding and several.
void require_sums(World& world, const Routing& routing, const reference::Combined& expected) {
  if (world.settings.top_k < 2 || world.run.word("load") != "balanced" ||
      world.run.word("share") != "even" || world.settings.max_tokens < 8 ||
      (world.flat() && world.ranks == 1)) {  // one row per token: nothing is added
    return;
  }
  Index several = 0;
  const reference::ExchangePlan& plan = routing.plan;
  for (Index t = 0; t < routing.tokens(world.rank); ++t) {
    const Index first = (plan.first_token[at(world.rank)] + t) * world.settings.top_k;
    Index pairs = 0;
    for (Index j = 0; j < world.settings.top_k; ++j) pairs += plan.row_of_pair[at(first + j)] >= 0;
    several += pairs > 1;
  }
  world.run.judge().require(several > 0, "some token has more than one expert");
  Index inexact = 0;
  for (const double value : expected.exact.value) {
    inexact += tolerances::round_to(DROPLESS_BF16, value) != value;
  }
  constexpr std::size_t enough = 64;  // of a few small integers every one may fit
  world.run.judge().require(inexact > 0 || expected.exact.value.size() < enough,
                            "some sum does not fit into bf16");
}

void run_sums(CaseRun& run) {
  World world(run);
  const Index hidden = run.integer("hidden");
  const std::string& data = run.word("data");
  const dropless_dtype dtype = real_dtype(run.word("dtype"));
  const Routing& routing = world.routing("only");
  Session session(world, routing, hidden);
  const RankValues& values = row_values(world, routing, "out", hidden, data, dtype);
  const RankValues& weights = row_weight_values(world, routing, "out", data);
  const Index length = world.buffer_rows(routing);
  Buffers& buffers = run.buffers();
  // Padding and tail come back with NaN: nothing may follow from them.
  Buffer& rows = buffers.input(
      "rows", dtype, {length, hidden},
      arranged(world, routing, session.order, hidden, values[at(world.rank)], nan), world.gaps(7));
  Buffer* row_weights = nullptr;
  if (world.weighted()) {
    row_weights =
        &buffers.input("row_weights", DROPLESS_FP32, {length},
                       arranged(world, routing, session.order, 1, weights[at(world.rank)], nan));
  }
  const Buffer& y = session.handle.combine(routing, rows, row_weights, real_dtype(run.word("out")));
  const auto weight_inputs =
      world.weighted() ? inputs_of(weights) : std::vector<reference::Input>{};
  const reference::Combined expected =
      reference::combine(routing.plan, world.rank, hidden, dtype, inputs_of(values), weight_inputs);
  judge_combined(world, routing, world.weighted() ? "EXCHANGE-6b" : "EXCHANGE-6a", "y", y, expected,
                 dtype, data == "exact");
  if (data == "exact") require_sums(world, routing, expected);
  session.handle.close();
}

std::vector<Values> select_combine(Tier tier) {
  const auto more = [](std::vector<std::string> data, std::vector<std::string> dtypes,
                       std::vector<std::string> hidden) {
    return std::vector<Axis>{{"data", std::move(data)},
                             {"dtype", std::move(dtypes)},
                             {"out", {"bf16", "fp32"}},
                             {"hidden", std::move(hidden)}};
  };
  const std::vector<Values> smoke = exchange_cases({.ranks = {"1", "4"}, .experts = {"8"}},
                                                   more({"exact", "zero_mean"}, {"bf16"}, {"24"}));
  if (tier == Tier::smoke) return smoke;
  std::vector<Values> all = smoke;
  const auto add = [&](const GroupAxes& group, const std::vector<Axis>& axes) {
    for (Values& values : without(exchange_cases(group, axes), all)) {
      all.push_back(std::move(values));
    }
  };
  add({.top_k = {"4"}},
      more({"exact", "zero_mean", "same_sign", "cancelling"}, {"bf16", "fp32"}, {"1", "33", "64"}));
  add({.top_k = {"3"}, .load = exchange_load_names()}, more({"exact"}, {"bf16"}, {"16"}));
  add({.top_k = {"8"}, .share = share_names(), .load = {"spread", "one_rank", "zipf"}},
      more({"exact"}, {"bf16", "fp32"}, {"16"}));
  add({.ranks = {"2", "4", "8"},
       .experts = {"8", "12"},
       .top_k = {"4"},
       .load = {"spread", "zipf"},
       .placement = {"shuffled", "cyclic", "hot"},
       .nodes = {"one", "two", "four", "alternating"}},
      more({"exact"}, {"bf16"}, {"16"}));
  if (tier == Tier::standard) return without(all, smoke);
  const std::vector<Values> standard = all;
  add({.top_k = {"8"}, .tokens = {"129"}, .load = load_names()},
      more({"zero_mean", "cancelling"}, {"bf16", "fp32"}, {"64"}));
  return without(all, standard);
}

}  // namespace

void add_exchange_combine(Registry& registry) {
  registry.add(
      {"exchange.combine",
       "Proves the sum over a token's rows, bit by bit on exact data with the declared roundings "
       "and within bounds otherwise; padding and tail have no influence.",
       exchange_clauses(
           {"EXCHANGE-6a", "EXCHANGE-6b", "EXCHANGE-6c", "EXCHANGE-6d", "EXCHANGE-6e"}),
       exchange_parameters({data_parameter(),
                            word_parameter("dtype", {"bf16", "fp32"}, "of the rows"),
                            word_parameter("out", {"bf16", "fp32"}, "of the sums"),
                            integer_parameter("hidden", 1, 1 << 14, "elements of a row")}),
       select_combine, run_sums, exchange_objection});
}

}  // namespace dropless::conformance
