// SPDX-License-Identifier: Apache-2.0
// Backward passes of dispatch and combine: EXCHANGE-7a to 7c.
#include <algorithm>
#include <limits>

#include "conformance/cases/exchange/numbers.h"
#include "conformance/judge/trust.h"
#include "tolerances/bounds.h"

namespace dropless::conformance {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// d_row_weights of all ranks in the reference's order: flat [N,K] with NaN where no weight is,
// expert-major [N].
const RankValues& weight_gradients(const World& world, const Routing& routing) {
  const Index columns = world.flat() ? world.settings.top_k : 1;
  const RankValues& values =
      row_values(world, routing, "weight gradients", columns, "exact", DROPLESS_FP32);
  return world.group.shared<RankValues>("weight gradients in place", [&] {
    RankValues out = values;
    for (Index rank = 0; world.flat() && rank < world.ranks; ++rank) {
      const std::vector<Index> ids = reference::dispatch_ids(routing.plan, rank);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0) out[at(rank)][i] = nan;
      }
    }
    return out;
  });
}

void run_dispatch_backward(CaseRun& run) {
  World world(run);
  const Index hidden = run.integer("hidden"), top_k = world.settings.top_k;
  const std::string& data = run.word("data");
  const dropless_dtype dtype = real_dtype(run.word("dtype"));
  const Routing& routing = world.routing("only");
  Session session(world, routing, hidden);
  const RankValues& values = row_values(world, routing, "d_rows", hidden, data, dtype);
  const Index length = world.buffer_rows(routing), tokens = routing.tokens(world.rank);
  Buffers& buffers = run.buffers();
  Buffer& d_rows = buffers.input(
      "d_rows", dtype, {length, hidden},
      arranged(world, routing, session.order, hidden, values[at(world.rank)], nan), world.gaps(7));
  Buffer& d_x = buffers.output("d_x", dtype, {tokens, hidden}, world.gaps(5));
  Buffer *d_row_weights = nullptr, *d_weights = nullptr;
  if (run.word("weights") == "given") {
    const Index columns = world.flat() ? top_k : 1;
    const std::vector<double> placed =
        arranged(world, routing, session.order, columns,
                 weight_gradients(world, routing)[at(world.rank)], nan);
    d_row_weights =
        &buffers.input("d_row_weights", DROPLESS_FP32,
                       world.flat() ? Shape{length, top_k} : Shape{length}, placed, world.gaps(3));
    d_weights = &buffers.output("d_weights", DROPLESS_FP32, {tokens, top_k}, world.gaps(2));
  }
  session.handle.dispatch_backward(d_rows, d_row_weights, d_x, d_weights);
  const reference::Combined expected =
      reference::dispatch_backward(routing.plan, world.rank, hidden, dtype, inputs_of(values));
  judge_combined(world, routing, "EXCHANGE-7a", "d_x", d_x, expected, dtype, data == "exact");
  if (d_weights != nullptr) {
    run.judge().exact("EXCHANGE-7b", "d_weights", *d_weights,
                      reference::dispatch_weights_backward(
                          routing.plan, world.rank, inputs_of(weight_gradients(world, routing))));
  }
  session.handle.close();
}

// [total, columns] of the reference in the order of the buffer, zero in padding and beyond.
std::vector<double> expected_rows(const World& world, const Routing& routing, const Order& order,
                                  Index columns, const std::vector<double>& by_reference) {
  return arranged(world, routing, order, columns, by_reference, 0.0);
}

void judge_rows(World& world, const Routing& routing, const Order& order, const char* what,
                const Buffer& got, Index columns, const reference::Gauged& expected, Index terms,
                bool exact) {
  Judge& judge = world.run.judge();
  const auto values = expected_rows(world, routing, order, columns, expected.value);
  auto errors = expected_rows(world, routing, order, columns, expected.gauge);
  for (double& error : errors) error = exact ? 0.0 : tolerances::sum(terms, error);
  judge.bounded("EXCHANGE-7c", what, got, values, errors,
                row_elements(world, routing, order, columns, RowsOf::real));
  judge.exact("EXCHANGE-3d", std::string("padding of ") + what, got, values,
              row_elements(world, routing, order, columns, RowsOf::padding));
  judge_tail(world, routing, what, got);
}

void run_combine_backward(CaseRun& run) {
  World world(run);
  const Index hidden = run.integer("hidden");
  const bool exact = run.word("data") == "exact";
  const dropless_dtype dtype = real_dtype(run.word("dtype"));
  const Routing& routing = world.routing("only");
  Session session(world, routing, hidden);
  // Dot products over H have to be exact as well.
  const RankValues& dy = exact
                             ? token_integers(world, routing, "d_y", hidden)
                             : token_values(world, routing, "d_y", hidden, run.word("data"), dtype);
  const RankValues& values =
      exact ? row_integers(world, routing, "rows", hidden)
            : row_values(world, routing, "rows", hidden, run.word("data"), dtype);
  const RankValues& weights = row_weight_values(world, routing, "rows", run.word("data"));
  const Index length = world.buffer_rows(routing);
  Buffers& buffers = run.buffers();
  Buffer& d_y = buffers.input("d_y", dtype, {routing.tokens(world.rank), hidden},
                              dy[at(world.rank)], world.gaps(5));
  Buffer& d_rows = buffers.output("d_rows", dtype, {length, hidden}, world.gaps(7));
  Buffer *rows = nullptr, *row_weights = nullptr, *d_row_weights = nullptr;
  reference::CombineGradient expected;
  if (world.weighted()) {
    const auto mine = at(world.rank);
    rows = &buffers.input("rows", dtype, {length, hidden},
                          arranged(world, routing, session.order, hidden, values[mine], nan),
                          world.gaps(3));
    row_weights = &buffers.input("row_weights", DROPLESS_FP32, {length},
                                 arranged(world, routing, session.order, 1, weights[mine], nan));
    d_row_weights = &buffers.output("d_row_weights", DROPLESS_FP32, {length});
    expected = reference::combine_backward(routing.plan, world.rank, hidden, inputs_of(dy),
                                           values[mine], weights[mine]);
  } else {
    expected = reference::combine_backward(routing.plan, world.rank, hidden, inputs_of(dy));
  }
  session.handle.combine_backward(d_y, rows, row_weights, d_rows, d_row_weights);
  // One fp32 product before the output rounding.
  judge_rows(world, routing, session.order, "d_rows", d_rows, hidden, expected.d_rows, 1,
             exact || !world.weighted());
  if (d_row_weights != nullptr) {
    judge_rows(world, routing, session.order, "d_row_weights", *d_row_weights, 1,
               expected.d_row_weights, hidden + 1, exact);
  }
  session.handle.close();
}

std::vector<Values> select_backward(Tier tier, bool weights) {
  const auto more = [&](std::vector<std::string> data, std::vector<std::string> dtypes,
                        std::vector<std::string> hidden) {
    std::vector<Axis> axes = {
        {"data", std::move(data)}, {"dtype", std::move(dtypes)}, {"hidden", std::move(hidden)}};
    if (weights) axes.push_back({"weights", {"given", "none"}});
    return axes;
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
      more({"exact"}, {"fp32"}, {"16"}));
  add({.ranks = {"2", "4"},
       .experts = {"8", "12"},
       .top_k = {"4"},
       .load = {"spread", "zipf"},
       .placement = {"shuffled", "cyclic", "hot"}},
      more({"exact"}, {"bf16"}, {"16"}));
  if (tier == Tier::standard) return without(all, smoke);
  const std::vector<Values> standard = all;
  add({.top_k = {"8"}, .tokens = {"129"}, .load = load_names()},
      more({"zero_mean"}, {"bf16", "fp32"}, {"64"}));
  return without(all, standard);
}

}  // namespace

void add_exchange_backward(Registry& registry) {
  const Parameter dtype = word_parameter("dtype", {"bf16", "fp32"}, "of rows and gradients");
  const Parameter hidden = integer_parameter("hidden", 1, 1 << 14, "elements of a row");
  registry.add(
      {"exchange.dispatch_backward",
       "Proves the sum of row gradients and the way home of weight gradients; what stands in "
       "padding and unused places has no influence.",
       exchange_clauses({"EXCHANGE-6a", "EXCHANGE-6c", "EXCHANGE-6d", "EXCHANGE-6e", "EXCHANGE-7a",
                         "EXCHANGE-7b"}),
       exchange_parameters(
           {data_parameter(), dtype, hidden,
            word_parameter("weights", {"given", "none"}, "gradients of the weights travel too")}),
       [](Tier tier) { return select_backward(tier, true); }, run_dispatch_backward,
       exchange_objection});
  registry.add(
      {"exchange.combine_backward",
       "Proves that the gradient of a token reaches all its rows, weighted where declared, and "
       "that padding gets zero.",
       exchange_clauses({"EXCHANGE-3d", "EXCHANGE-3f", "EXCHANGE-7c"}),
       exchange_parameters({data_parameter(), dtype, hidden}),
       [](Tier tier) { return select_backward(tier, false); }, run_combine_backward,
       exchange_objection});
}

}  // namespace dropless::conformance
