// SPDX-License-Identifier: Apache-2.0
// The same again, twenty times with other delays: EXCHANGE-15.
#include <algorithm>

#include "conformance/cases/exchange/numbers.h"

namespace dropless::conformance {
namespace {

constexpr Index repeats = 20, hidden = 24;

struct Outputs {
  std::vector<std::pair<const char*, Bytes>> all;
};

class Repeated {
 public:
  Repeated(World& world, const Routing& routing)
      : world_(world),
        routing_(routing),
        handle_(world),
        delays_(world.run.random("delays " + std::to_string(world.rank))) {}

  Outputs once(Index repeat) {
    const RankValues& x = token_values(world_, routing_, "x", hidden, "zero_mean", DROPLESS_FP32);
    const RankValues& r = row_values(world_, routing_, "r", hidden, "zero_mean", DROPLESS_FP32);
    const RankValues& w = row_weight_values(world_, routing_, "w", "zero_mean");
    const auto mine = at(world_.rank);
    const Index tokens = routing_.tokens(world_.rank), length = world_.buffer_rows(routing_);
    Buffers& buffers = world_.run.buffers();
    pause();
    handle_.plan(routing_, {.step = repeat});
    Sent sent{.dtype = DROPLESS_FP32, .hidden = hidden, .x = {}, .scales = {}, .weights = {}};
    sent.x = buffers.input("x as bytes", DROPLESS_FP32, {tokens, hidden}, x[mine]).bytes();
    sent.weights = Bytes(at(tokens * world_.settings.top_k * 4), 0x3f);
    pause();
    const DispatchBuffers got = handle_.dispatch(routing_, sent);
    const Order order = received_order(world_, routing_, got);
    Buffer& rows = buffers.input("rows", DROPLESS_FP32, {length, hidden},
                                 arranged(world_, routing_, order, hidden, r[mine], 0));
    Buffer* weights = nullptr;
    if (world_.weighted()) {
      weights = &buffers.input("row_weights", DROPLESS_FP32, {length},
                               arranged(world_, routing_, order, 1, w[mine], 0));
    }
    pause();
    const Buffer& y = handle_.combine(routing_, rows, weights, DROPLESS_FP32);
    Buffer& d_x = buffers.output("d_x", DROPLESS_FP32, {tokens, hidden});
    pause();
    handle_.dispatch_backward(rows, nullptr, d_x, nullptr);
    if (repeat == 0) judge_first(y, d_x, r, w);
    Outputs out;
    out.all = {{"rows", got.rows->bytes()}, {"y", y.bytes()}, {"d_x", d_x.bytes()}};
    if (got.row_weights != nullptr) out.all.emplace_back("row_weights", got.row_weights->bytes());
    return out;
  }
  void close() { handle_.close(); }

 private:
  void pause() { wait_for(delays_.chance(0.25) ? delays_.between(1, 2) : 0); }

  // The values themselves, once; and that they would show another order.
  void judge_first(const Buffer& y, const Buffer& d_x, const RankValues& r, const RankValues& w) {
    const auto weights = world_.weighted() ? inputs_of(w) : std::vector<reference::Input>{};
    const auto sums = reference::combine(routing_.plan, world_.rank, hidden, DROPLESS_FP32,
                                         inputs_of(r), weights);
    judge_combined(world_, routing_, world_.weighted() ? "EXCHANGE-6b" : "EXCHANGE-6a", "y", y,
                   sums, DROPLESS_FP32, false);
    judge_combined(world_, routing_, "EXCHANGE-7a", "d_x", d_x,
                   reference::dispatch_backward(routing_.plan, world_.rank, hidden, DROPLESS_FP32,
                                                inputs_of(r)),
                   DROPLESS_FP32, false);
    if (world_.settings.top_k < 4 || world_.ranks < 4 || world_.run.word("load") != "spread")
      return;
    Index most = 0;
    for (Index t = 0; t < routing_.tokens(world_.rank); ++t) {
      const Index first = (routing_.plan.first_token[at(world_.rank)] + t) * world_.settings.top_k;
      Index rows = 0;
      for (Index j = 0; j < world_.settings.top_k; ++j) {
        rows += routing_.plan.row_of_pair[at(first + j)] >= 0;
      }
      most = std::max(most, rows);
    }
    world_.run.judge().require(most >= 3, "some sum has an order: three terms or more");
  }

  World& world_;
  const Routing& routing_;
  RankHandle handle_;
  Random delays_;
};

void run_repeat(CaseRun& run) {
  World world(run);
  world.settings.row_bytes = 4 * hidden;
  const Routing& routing = world.routing("only");
  Repeated repeated(world, routing);
  const Outputs first = repeated.once(0);
  const bool declared = run.profile().determinism != DROPLESS_DETERMINISTIC_NO;
  for (Index repeat = 1; repeat < repeats; ++repeat) {
    const Outputs again = repeated.once(repeat);
    if (!declared) continue;
    for (std::size_t i = 0; i < first.all.size(); ++i) {
      run.judge().holds("EXCHANGE-15",
                        std::string(first.all[i].first) + " of repeat " + std::to_string(repeat),
                        again.all[i].second == first.all[i].second, "the same bits", "others");
    }
  }
  repeated.close();
}

std::vector<Values> select_repeat(Tier tier) {
  const std::vector<Values> smoke =
      exchange_cases({.ranks = {"4"}, .experts = {"8"}, .top_k = {"4"}, .load = {"spread"}});
  if (tier == Tier::smoke) return smoke;
  if (tier == Tier::full) {
    return exchange_cases({.top_k = {"8"}, .tokens = {"65"}, .load = {"spread", "zipf"}});
  }
  return without(exchange_cases({.top_k = {"4"}, .load = {"spread", "zipf"}}), smoke);
}

}  // namespace

void add_exchange_repeat(Registry& registry) {
  registry.add({"exchange.repeat",
                "Proves that twenty repeats with other delays of the ranks give the same bits, "
                "where determinism is declared.",
                exchange_clauses({"EXCHANGE-6a", "EXCHANGE-6b", "EXCHANGE-6c", "EXCHANGE-6e",
                                  "EXCHANGE-7a", "EXCHANGE-15"}),
                exchange_parameters(), select_repeat, run_repeat, exchange_objection});
}

}  // namespace dropless::conformance
