// SPDX-License-Identifier: Apache-2.0
// One rank and R ranks do the same: EXCHANGE-13 for dispatch, experts that scale their rows,
// combine, and all the way back.
#include <cmath>
#include <cstring>
#include <map>

#include "conformance/cases/exchange/numbers.h"
#include "conformance/judge/trust.h"

namespace dropless::conformance {
namespace {

constexpr Index hidden = 16;

// A rank that is alone: every group of one in a case of many.
class Alone : public RankGroup {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int ranks() const override { return 1; }
  [[nodiscard]] bool all_gather(const void* sent, void* received, std::size_t bytes) override {
    std::memcpy(received, sent, bytes);
    return true;
  }

 protected:
  std::shared_ptr<const void> remembered(const std::string& key, const Maker& make) override {
    std::shared_ptr<const void>& value = values_[key];
    if (!value) value = make();
    return value;
  }

 private:
  std::map<std::string, std::shared_ptr<const void>> values_;
};

// What one rank's tokens bring: small integers and powers of two, exact in bf16 in every sum.
struct Tokens {
  std::vector<double> x, weights, d_y;
};

Tokens tokens_of(const World& world, const Routing& routing) {
  Random random = world.run.random("tokens " + std::to_string(world.rank));
  Tokens tokens;
  const Index count = routing.tokens(world.rank);
  for (Index i = 0; i < count * hidden; ++i) {
    tokens.x.push_back(static_cast<double>(random.between(-3, 3)));
    tokens.d_y.push_back(static_cast<double>(random.between(-3, 3)));
  }
  for (Index i = 0; i < count * world.settings.top_k; ++i) {
    tokens.weights.push_back(std::ldexp(1.0, static_cast<int>(random.between(-1, 1))));
  }
  return tokens;
}

// An expert multiplies its rows by this.
double factor_of(Index expert) {
  return static_cast<double>(expert % 3 + 1);
}

struct Results {
  Buffer *y, *d_x, *d_weights;
};

// The experts of one rank, on what the implementation delivered.
class Experts {
 public:
  Experts(World& world, const Routing& routing, const DispatchBuffers& got)
      : world_(world),
        routing_(routing),
        offsets_(routing.received(world.rank).offsets),
        rows_(got.rows->values()),
        weights_(got.row_weights->values()) {
    if (world.flat()) ids_ = got.row_ids->integers();
    order_ = received_order(world, routing, got);
  }

  // Calls visit(row, place of the weight, factor) for every pair on this rank.
  template <class Visit>
  void each_pair(const Visit& visit) const {
    const Index top_k = world_.settings.top_k;
    const std::vector<Index>& experts = routing_.plan.topology.expert_of_slot;
    const Index slots = routing_.plan.topology.slots, first = world_.rank * slots;
    Index zone = 0;
    for (Index row = 0; row < static_cast<Index>(order_.size()); ++row) {
      if (world_.flat()) {
        for (Index place = row * top_k; place < (row + 1) * top_k; ++place) {
          const Index local = ids_[at(place)];
          if (local >= 0 && local < slots) visit(row, place, factor_of(experts[at(first + local)]));
        }
        continue;
      }
      while (offsets_[at(zone + 1)] <= row) ++zone;
      const bool real = routing_.received(world_.rank).source[at(order_[at(row)])] >= 0;
      if (real) visit(row, row, factor_of(experts[at(first + zone)]));
    }
  }

  [[nodiscard]] std::vector<double> forward() const {
    std::vector<double> out(rows_.size(), 0.0);
    each_pair([&](Index row, Index place, double factor) {
      const double scale = world_.weighted() ? factor : factor * weights_[at(place)];
      for (Index h = row * hidden; h < (row + 1) * hidden; ++h) {
        out[at(h)] += scale * rows_[at(h)];
      }
    });
    return out;
  }

  struct Gradient {
    std::vector<double> rows, weights;
  };
  // Of the loss with respect to what arrived, from that of what was handed to combine (and,
  // weighted, of its weights).
  [[nodiscard]] Gradient backward(const std::vector<double>& d_out,
                                  const std::vector<double>& d_combine_weights) const {
    Gradient gradient{std::vector<double>(rows_.size(), 0.0),
                      std::vector<double>(weights_.size(), 0.0)};
    each_pair([&](Index row, Index place, double factor) {
      const double scale = world_.weighted() ? factor : factor * weights_[at(place)];
      for (Index h = row * hidden; h < (row + 1) * hidden; ++h) {
        gradient.rows[at(h)] += scale * d_out[at(h)];
        if (!world_.weighted()) gradient.weights[at(place)] += factor * d_out[at(h)] * rows_[at(h)];
      }
      if (world_.weighted()) gradient.weights[at(place)] = d_combine_weights[at(place)];
    });
    return gradient;
  }

  [[nodiscard]] const std::vector<double>& weights() const { return weights_; }

 private:
  World& world_;
  const Routing& routing_;
  const std::vector<Index>& offsets_;
  std::vector<double> rows_, weights_;
  std::vector<Index> ids_;
  Order order_;
};

Results through_experts(World& world, const Routing& routing, const Tokens& tokens,
                        dropless_dtype dtype) {
  Buffers& buffers = world.run.buffers();
  const Index count = routing.tokens(world.rank), top_k = world.settings.top_k;
  const Index length = world.buffer_rows(routing);
  world.settings.row_bytes = hidden * static_cast<Index>(dtype_bytes(dtype));
  RankHandle handle(world);
  judge_plan(world, routing, handle.plan(routing));
  Sent sent{.dtype = dtype, .hidden = hidden, .x = {}, .scales = {}, .weights = {}};
  sent.x = buffers.input("x as bytes", dtype, {count, hidden}, tokens.x).bytes();
  sent.weights = buffers.input("w as bytes", DROPLESS_FP32, {count, top_k}, tokens.weights).bytes();
  const DispatchBuffers got = handle.dispatch(routing, sent);
  const Experts experts(world, routing, got);

  Buffer& out = buffers.input("rows", dtype, {length, hidden}, experts.forward());
  Buffer *weights = nullptr, *d_row_weights = nullptr;
  if (world.weighted()) {
    weights = &buffers.input("row_weights", DROPLESS_FP32, {length}, experts.weights());
    d_row_weights = &buffers.output("d_row_weights", DROPLESS_FP32, {length});
  }
  Results results{};
  results.y = &handle.combine(routing, out, weights, dtype);

  Buffer& d_y = buffers.input("d_y", dtype, {count, hidden}, tokens.d_y);
  Buffer& d_out = buffers.output("d_rows", dtype, {length, hidden});
  handle.combine_backward(d_y, world.weighted() ? &out : nullptr, weights, d_out, d_row_weights);
  const Experts::Gradient gradient = experts.backward(
      d_out.values(), d_row_weights == nullptr ? std::vector<double>{} : d_row_weights->values());
  Buffer& d_rows = buffers.input("d_rows of experts", dtype, {length, hidden}, gradient.rows);
  Buffer& back =
      buffers.input("d_row_weights of experts", DROPLESS_FP32,
                    world.flat() ? Shape{length, top_k} : Shape{length}, gradient.weights);
  results.d_x = &buffers.output("d_x", dtype, {count, hidden});
  results.d_weights = &buffers.output("d_weights", DROPLESS_FP32, {count, top_k});
  handle.dispatch_backward(d_rows, &back, *results.d_x, results.d_weights);
  handle.close();
  return results;
}

// What the two must be, from the ids alone.
struct Formula {
  std::vector<double> y, d_x, d_weights;
};
Formula formula(const World& world, const Routing& routing, const Tokens& tokens) {
  const std::vector<Index>& ids = routing.ids[at(world.rank)];
  const Index top_k = world.settings.top_k;
  Formula out{std::vector<double>(tokens.x.size(), 0.0), std::vector<double>(tokens.x.size(), 0.0),
              std::vector<double>(ids.size(), 0.0)};
  for (std::size_t pair = 0; pair < ids.size(); ++pair) {
    if (ids[pair] < 0) continue;
    const double factor = factor_of(ids[pair]), scale = factor * tokens.weights[pair];
    const std::size_t first = pair / at(top_k) * at(hidden);
    for (std::size_t h = first; h < first + at(hidden); ++h) {
      out.y[h] += scale * tokens.x[h];
      out.d_x[h] += scale * tokens.d_y[h];
      out.d_weights[pair] += factor * tokens.d_y[h] * tokens.x[h];
    }
  }
  return out;
}

void run_parity(CaseRun& run) {
  World world(run);
  const dropless_dtype dtype = real_dtype(run.word("dtype"));
  const Routing& routing = world.routing("only");
  const Tokens tokens = tokens_of(world, routing);
  const Results many = through_experts(world, routing, tokens, dtype);

  Alone alone;
  World one(run, alone);
  const Routing& own = alone.shared<Routing>("own", [&] {
    return make_routing(run.profile(), one.settings, {routing.ids[at(world.rank)]});
  });
  const Results single = through_experts(one, own, tokens, dtype);

  Judge& judge = run.judge();
  const Formula expected = formula(world, routing, tokens);
  const auto judge_both = [&](const char* what, const Buffer& of_many, const Buffer& of_one,
                              const std::vector<double>& values) {
    judge.exact("EXCHANGE-13", std::string(what) + " over all ranks", of_many, values);
    judge.exact("EXCHANGE-13", std::string(what) + " on one rank", of_one, values);
  };
  judge_both("y", *many.y, *single.y, expected.y);
  judge_both("d_x", *many.d_x, *single.d_x, expected.d_x);
  judge_both("d_weights", *many.d_weights, *single.d_weights, expected.d_weights);
  if (run.word("load") == "balanced" && routing.tokens(world.rank) >= 8) {
    judge.require(trust::distinct(expected.y) > 8, "outputs differ from each other");
  }
}

std::vector<Values> select_parity(Tier tier) {
  const Axis dtype{"dtype", {"bf16", "fp32"}};
  const std::vector<Values> smoke = exchange_cases({.ranks = {"4"}, .experts = {"8"}}, {dtype});
  if (tier == Tier::smoke) return smoke;
  std::vector<Values> all = exchange_cases({.top_k = {"1", "4"},
                                            .tokens = {"1", "23"},
                                            .share = {"even", "uneven"},
                                            .load = {"balanced", "one_rank", "spread"}},
                                           {dtype});
  for (Values& values : exchange_cases({.ranks = {"2", "4", "8"},
                        .experts = {"8", "12"},
                        .top_k = {"3"},
                        .placement = {"shuffled", "cyclic", "hot"},
                        .nodes = {"one", "two"}},
                                       {dtype})) {
    all.push_back(std::move(values));
  }
  if (tier == Tier::standard) return without(all, smoke);
  return without(
      exchange_cases({.top_k = {"4"}, .tokens = {"129"}, .load = exchange_load_names()}, {dtype}),
      all);
}

std::string objection(const Values& values) {
  if (std::stoll(value_of(values, "top_k")) > 8)
    return "sums of more experts are not exact in bf16";
  return exchange_objection(values);
}

}  // namespace

void add_exchange_parity(Registry& registry) {
  registry.add({"exchange.parity",
                "Proves that R ranks and one rank give the same outputs and the same gradients of "
                "inputs and weights, bit by bit, with experts that scale their rows.",
                exchange_clauses({"EXCHANGE-13"}),
                exchange_parameters({word_parameter("dtype", {"bf16", "fp32"}, "of the rows")}),
                select_parity, run_parity, objection});
}

}  // namespace dropless::conformance
