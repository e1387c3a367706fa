// SPDX-License-Identifier: Apache-2.0
// The adjoint identity on what the implementation itself computed: EXCHANGE-7d.
#include <numeric>

#include "conformance/cases/exchange/numbers.h"

namespace dropless::conformance {
namespace {

constexpr Index hidden = 12;

std::int64_t dot(const std::vector<double>& a, const std::vector<double>& b) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<std::int64_t>(a[i]) * static_cast<std::int64_t>(b[i]);
  }
  return sum;
}

// The two products over all ranks.
struct Products {
  std::int64_t left, right;
};
Products added_up(const World& world, Products mine) {
  std::vector<Products> all(at(world.ranks));
  if (!world.group.all_gather(&mine, all.data(), sizeof mine)) throw CaseEnded{};
  return std::accumulate(all.begin(), all.end(), Products{0, 0},
                         [](Products sum, const Products& one) {
                           return Products{sum.left + one.left, sum.right + one.right};
                         });
}

void judge_products(World& world, const char* what, Products mine) {
  const Products all = added_up(world, mine);
  world.run.judge().holds("EXCHANGE-7d", what, all.left == all.right, std::to_string(all.left),
                          std::to_string(all.right));
  const bool any = world.run.integer("tokens") > 0;
  if (any && world.run.word("load") == "balanced" && world.run.word("share") == "even") {
    world.run.judge().require(all.left != 0, "the product is not zero");
  }
}

// The real rows of a result, everything else zero: garbage there is another clause's business.
std::vector<double> real_rows(const World& world, const Routing& routing, const Order& order,
                              const Buffer& buffer) {
  std::vector<double> values = buffer.values();
  const Judged real = row_elements(world, routing, order, hidden, RowsOf::real);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!real[i]) values[i] = 0;
  }
  return values;
}

void run_adjoint(CaseRun& run) {
  World world(run);
  world.settings.row_bytes = 4 * hidden;
  const Routing& routing = world.routing("only");
  RankHandle handle(world);
  handle.plan(routing);
  const auto mine = at(world.rank);
  const std::vector<double>& x = token_integers(world, routing, "x", hidden)[mine];
  Sent sent{.dtype = DROPLESS_FP32, .hidden = hidden, .x = {}, .scales = {}, .weights = {}};
  Buffers& buffers = run.buffers();
  const Index length = world.buffer_rows(routing), tokens = routing.tokens(world.rank);
  sent.x = buffers.input("x as bytes", DROPLESS_FP32, {tokens, hidden}, x).bytes();
  sent.weights = Bytes(at(tokens * world.settings.top_k * 4), 0);
  const DispatchBuffers got = handle.dispatch(routing, sent);
  const Order order = received_order(world, routing, got);

  // <D x, r> = <x, D' r>
  const std::vector<double> r =
      arranged(world, routing, order, hidden, row_integers(world, routing, "r", hidden)[mine], 0);
  Buffer& d_rows = buffers.input("d_rows", DROPLESS_FP32, {length, hidden}, r);
  Buffer& d_x = buffers.output("d_x", DROPLESS_FP32, {tokens, hidden});
  handle.dispatch_backward(d_rows, nullptr, d_x, nullptr);
  judge_products(world, "<dispatch(x), r> and <x, dispatch_backward(r)>",
                 {dot(real_rows(world, routing, order, *got.rows), r), dot(x, d_x.values())});

  // <C r, x> = <r, C' x>
  Buffer *rows = nullptr, *weights = nullptr, *d_weights = nullptr;
  if (world.weighted()) {
    rows = &d_rows;
    const RankValues& w = row_integers(world, routing, "w", 1);
    weights = &buffers.input("row_weights", DROPLESS_FP32, {length},
                             arranged(world, routing, order, 1, w[mine], 0));
    d_weights = &buffers.output("d_row_weights", DROPLESS_FP32, {length});
  }
  const Buffer& y = handle.combine(routing, d_rows, weights, DROPLESS_FP32);
  Buffer& d_y = buffers.input("d_y", DROPLESS_FP32, {tokens, hidden}, x);
  Buffer& back = buffers.output("d_rows of combine", DROPLESS_FP32, {length, hidden});
  handle.combine_backward(d_y, rows, weights, back, d_weights);
  judge_products(world, "<combine(r), x> and <r, combine_backward(x)>",
                 {dot(y.values(), x), dot(r, real_rows(world, routing, order, back))});
  handle.close();
}

std::vector<Values> select_adjoint(Tier tier) {
  const std::vector<Values> smoke =
      exchange_cases({.ranks = {"4"}, .experts = {"8"}, .load = {"zipf"}});
  if (tier == Tier::smoke) return smoke;
  if (tier == Tier::full) return {};
  std::vector<Values> all = exchange_cases({.top_k = {"1", "4"},
                                            .tokens = {"1", "29"},
                                            .share = {"even", "uneven"},
                                            .load = {"balanced", "one_rank", "spread"}});
  for (Values& values : exchange_cases({.ranks = {"4", "8"},
                        .experts = {"8"},
                        .top_k = {"3"},
                        .placement = {"shuffled", "cyclic", "hot"},
                        .nodes = {"one", "two"}})) {
    all.push_back(std::move(values));
  }
  return without(all, smoke);
}

}  // namespace

void add_exchange_adjoint(Registry& registry) {
  registry.add({"exchange.adjoint",
                "Proves on integers that each backward pass is the adjoint of its forward pass, "
                "over all ranks together, from the implementation's own results.",
                exchange_clauses({"EXCHANGE-7d"}), exchange_parameters(), select_adjoint,
                run_adjoint, exchange_objection});
}

}  // namespace dropless::conformance
