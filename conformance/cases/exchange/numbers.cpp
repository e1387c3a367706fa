// SPDX-License-Identifier: Apache-2.0
// Numbers for combine and the backward passes.
#include "conformance/cases/exchange/numbers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "conformance/cases/data.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

using Draw = std::function<std::vector<double>(Index rows, Random& random)>;

const RankValues& drawn(const World& world, const std::string& name,
                        const std::function<Index(Index)>& rows, const Draw& draw) {
  return world.group.shared<RankValues>(name, [&] {
    RankValues values;
    for (Index rank = 0; rank < world.ranks; ++rank) {
      Random random = world.run.random(name + " " + std::to_string(rank));
      values.push_back(draw(rows(rank), random));
    }
    return values;
  });
}

Draw numbers(const std::string& regime, dropless_dtype dtype, Index columns) {
  return [=](Index rows, Random& random) {
    if (regime != "exact") return cotangent(regime, dtype, rows, columns, random);
    std::vector<double> values(at(rows * columns));
    for (double& value : values) {
      value = std::ldexp(static_cast<double>(random.between(-127, 127)),
                         static_cast<int>(random.between(-4, 4)));
    }
    return values;
  };
}

Draw integers(Index columns) {
  return [=](Index rows, Random& random) {
    std::vector<double> values(at(rows * columns));
    for (double& value : values) value = static_cast<double>(random.between(-9, 9));
    return values;
  };
}

std::function<Index(Index)> rows_of(const Routing& routing) {
  return [&routing](Index rank) { return routing.received(rank).rows(); };
}

std::function<Index(Index)> tokens_of(const Routing& routing) {
  return [&routing](Index rank) { return routing.tokens(rank); };
}

}  // namespace

dropless_dtype real_dtype(const std::string& word) {
  return word == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16;
}

Parameter data_parameter() {
  return word_parameter("data", {"exact", "zero_mean", "same_sign", "cancelling"}, "data regime");
}

const RankValues& row_values(const World& world, const Routing& routing, const std::string& name,
                             Index columns, const std::string& regime, dropless_dtype dtype) {
  return drawn(world, "row values " + name, rows_of(routing), numbers(regime, dtype, columns));
}

const RankValues& token_values(const World& world, const Routing& routing, const std::string& name,
                               Index columns, const std::string& regime, dropless_dtype dtype) {
  return drawn(world, "token values " + name, tokens_of(routing), numbers(regime, dtype, columns));
}

const RankValues& row_weight_values(const World& world, const Routing& routing,
                                    const std::string& name, const std::string& regime) {
  const bool exact = regime == "exact";
  return drawn(world, "row weights " + name, rows_of(routing), [&](Index rows, Random& random) {
    std::vector<double> weights(at(rows));
    for (double& w : weights) {
      w = exact ? static_cast<double>(random.between(1, 15)) / 8
                : static_cast<double>(static_cast<float>(random.uniform() + 0x1p-8));
    }
    return weights;
  });
}

const RankValues& row_integers(const World& world, const Routing& routing, const std::string& name,
                               Index columns) {
  return drawn(world, "row integers " + name, rows_of(routing), integers(columns));
}

const RankValues& token_integers(const World& world, const Routing& routing,
                                 const std::string& name, Index columns) {
  return drawn(world, "token integers " + name, tokens_of(routing), integers(columns));
}

std::vector<reference::Input> inputs_of(const RankValues& values) {
  return {values.begin(), values.end()};
}

void judge_combined(World& world, const Routing& routing, std::string_view clause_of_bound,
                    std::string_view what, const Buffer& got, const reference::Combined& expected,
                    dropless_dtype payload, bool exact) {
  Judge& judge = world.run.judge();
  const reference::ExchangePlan& plan = routing.plan;
  const Index tokens = routing.tokens(world.rank), top_k = world.settings.top_k;
  const Index columns = tokens == 0 ? 0 : got.size() / tokens;
  Judged alone(at(got.size()), false), summed(at(got.size()), false);
  for (Index t = 0; t < tokens; ++t) {
    bool some = false;
    const Index first = (plan.first_token[at(world.rank)] + t) * top_k;
    for (Index j = 0; j < top_k; ++j) some = some || plan.row_of_pair[at(first + j)] >= 0;
    for (Index h = 0; h < columns; ++h) {
      alone[at(t * columns + h)] = !some, summed[at(t * columns + h)] = some;
    }
  }
  std::vector<double> zero(at(got.size()), 0.0);
  const std::vector<double> values = got.values();
  const bool clean =
      std::none_of(values.begin(), values.end(), [](double value) { return std::isnan(value); });
  judge.holds("EXCHANGE-6e", std::string(what) + " without NaN", clean, "none", "NaN");
  judge.exact("EXCHANGE-6a", std::string(what) + " of tokens without an expert", got, zero, alone);
  // Bit by bit where no declared rounding changes a partial sum (EXCHANGE-6c).
  const int rounding = world.run.profile().combine_rounding;
  const bool once = rounding == DROPLESS_COMBINE_ROUNDS_ONCE;
  const bool harmless = once || payload == DROPLESS_FP32 ||
                        (rounding == DROPLESS_COMBINE_ROUNDS_PER_RANK && world.flat());
  if (exact && harmless) {
    std::vector<double> rounded;
    for (const double value : expected.declared) {
      rounded.push_back(tolerances::round_to(got.dtype(), value));
    }
    judge.exact("EXCHANGE-6d", what, got, rounded, summed);
    return;
  }
  std::vector<double> errors;
  for (const double gauge : expected.exact.gauge) {
    errors.push_back(tolerances::combine(world.run.profile(), payload, top_k, gauge));
  }
  judge.bounded(once ? clause_of_bound : "EXCHANGE-6c", what, got, expected.exact.value, errors,
                summed);
}

namespace {

constexpr Index step_hidden = 20;

PayloadForm form_of(const World& world, Index hidden) {
  return {.dtype = DROPLESS_BF16,
          .hidden = hidden,
          .scale_bytes = world.settings.scale_bytes,
          .weights = true};
}

Dispatched dispatch_rows(World& world, RankHandle& handle, const Routing& routing, Index call,
                         Index hidden) {
  const Payload& payload = tagged_payload(world, routing, form_of(world, hidden), call);
  Dispatched out;
  out.got = handle.dispatch(routing, payload.sent[at(world.rank)]);
  out.order = received_order(world, routing, out.got);
  judge_dispatch(world, routing, payload, out.got, out.order);
  return out;
}

Buffer& combine_rows(World& world, RankHandle& handle, const Routing& routing, const Order& order,
                     Index call, Index hidden) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const Index length = world.buffer_rows(routing);
  const std::string name = "call " + std::to_string(call);
  const RankValues& values = row_values(world, routing, name, hidden, "exact", DROPLESS_BF16);
  const RankValues& weights = row_weight_values(world, routing, name, "exact");
  Buffers& buffers = world.run.buffers();
  Buffer& rows =
      buffers.input("rows", DROPLESS_BF16, {length, hidden},
                    arranged(world, routing, order, hidden, values[at(world.rank)], nan));
  Buffer* row_weights = nullptr;
  if (world.weighted()) {
    row_weights = &buffers.input("row_weights", DROPLESS_FP32, {length},
                                 arranged(world, routing, order, 1, weights[at(world.rank)], nan));
  }
  Buffer& y = handle.combine(routing, rows, row_weights, DROPLESS_BF16);
  const auto expected =
      reference::combine(routing.plan, world.rank, hidden, DROPLESS_BF16, inputs_of(values),
                         world.weighted() ? inputs_of(weights) : std::vector<reference::Input>{});
  judge_combined(world, routing, "EXCHANGE-6a", "y", y, expected, DROPLESS_BF16, true);
  return y;
}

}  // namespace

PayloadForm step_form(const World& world) {
  return form_of(world, step_hidden);
}

void make_room(World& world, Index hidden) {
  world.settings.row_bytes = 2 * hidden;
  world.settings.scale_bytes = 3;
}

void make_room(World& world) {
  make_room(world, step_hidden);
}

Dispatched run_dispatch(World& world, RankHandle& handle, const Routing& routing, Index call) {
  return dispatch_rows(world, handle, routing, call, step_hidden);
}

Buffer& run_combine(World& world, RankHandle& handle, const Routing& routing, const Order& order,
                    Index call) {
  return combine_rows(world, handle, routing, order, call, step_hidden);
}

StepResult run_step(World& world, RankHandle& handle, const Routing& routing, Index call,
                    const PlanRequest& request, Index hidden) {
  judge_plan(world, routing, handle.plan(routing, request));
  const Dispatched dispatched = dispatch_rows(world, handle, routing, call, hidden);
  const Buffer& y = combine_rows(world, handle, routing, dispatched.order, call, hidden);
  return {dispatched.got.rows->bytes(), dispatched.got.row_weights->bytes(), y.bytes()};
}

StepResult run_step(World& world, RankHandle& handle, const Routing& routing, Index call,
                    const PlanRequest& request) {
  return run_step(world, handle, routing, call, request, step_hidden);
}

std::vector<std::string> step_clauses(std::vector<std::string> more) {
  for (std::string& clause : delivery_clauses()) more.push_back(std::move(clause));
  for (const char* clause : {"EXCHANGE-6a", "EXCHANGE-6c", "EXCHANGE-6d", "EXCHANGE-6e"}) {
    more.emplace_back(clause);
  }
  return exchange_clauses(std::move(more));
}

void about(Judge& judge, std::string_view clause, std::string_view what,
           const std::function<void()>& part) {
  const std::int64_t before = judge.failed_checks();
  const auto name = [&](bool done) {
    judge.holds(clause, what, done && judge.failed_checks() == before, "as it should",
                "see the other failures");
  };
  try {
    part();
  } catch (const CaseEnded&) {
    name(false);
    throw;
  }
  name(true);
}

Session::Session(World& world, const Routing& routing, Index hidden)
    : handle((world.settings.row_bytes = 4 * hidden, world)) {
  judge_plan(world, routing, handle.plan(routing));
  const PayloadForm form{.dtype = DROPLESS_BF16, .hidden = hidden};
  const Payload& payload = tagged_payload(world, routing, form, 0);
  const DispatchBuffers got = handle.dispatch(routing, payload.sent[at(world.rank)]);
  order = received_order(world, routing, got);
}

}  // namespace dropless::conformance
