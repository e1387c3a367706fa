// SPDX-License-Identifier: Apache-2.0
// Demand at the capacity, one row above it and far above it, under each policy: EXCHANGE-10a to
// 10d.
#include "conformance/cases/exchange/overflow.h"

#include <algorithm>

namespace dropless::conformance {
namespace {

Index up(Index rows, Index alignment) {
  return (rows + alignment - 1) / alignment * alignment;
}

// Pairs of each local expert of rank 0 so that its zones take `target` rows.
std::vector<Index> zone_counts(Index slots, Index alignment, Index target) {
  std::vector<Index> counts(at(slots), 0);
  Index blocks = target / alignment;
  for (Index local = 0; local < slots; ++local) {
    const Index left = slots - local;
    const Index mine = (blocks + left - 1) / left;
    blocks -= mine;
    // Zones that are not full need padding, and padding counts.
    const Index short_by = alignment > 1 ? (local + 1) % alignment : 0;
    counts[at(local)] = mine == 0 ? 0 : mine * alignment - short_by;
  }
  return counts;
}

// Tokens of all ranks in turns: (0,0), (1,0), ..., (0,1), ...
class Assignment {
 public:
  Assignment(const reference::ExchangeSettings& settings, Random& random)
      : settings_(settings), random_(random) {
    for (Index rank = 0; rank < settings.ranks; ++rank) {
      ids_.emplace_back(at(settings.max_tokens * settings.top_k), -1);
    }
  }
  [[nodiscard]] Index tokens() const { return settings_.ranks * settings_.max_tokens; }
  // False when the token has no free position.
  bool assign(Index token, Index expert) {
    std::vector<Index>& ids = ids_[at(token % settings_.ranks)];
    const Index first = token / settings_.ranks * settings_.top_k;
    for (const Index j : random_.permutation(settings_.top_k)) {
      if (ids[at(first + j)] >= 0) continue;
      ids[at(first + j)] = expert;
      return true;
    }
    return false;
  }
  std::vector<std::vector<Index>> take() { return std::move(ids_); }

 private:
  const reference::ExchangeSettings& settings_;
  Random& random_;
  std::vector<std::vector<Index>> ids_;
};

std::vector<std::vector<Index>> ids_with_demand(const World& world, Index target, Random& random) {
  const reference::ExchangeSettings& settings = world.settings;
  const Index slots = settings.num_experts / settings.ranks;
  Assignment out(settings, random);
  const auto elsewhere = [&](Index token) {
    if (settings.ranks == 1) return;
    const Index others = settings.num_experts - slots;
    out.assign(token, slots + (token + 1) % others);  // in turns: no other rank gets more
  };
  if (world.flat()) {
    for (Index token = 0; token < out.tokens(); ++token) {
      const bool mine = token < target;
      if (mine) out.assign(token, token % slots);
      // A second expert on the same rank shares the row; one elsewhere does not.
      if (mine && token % 2 == 0 && slots > 1) {
        out.assign(token, (token + 1) % slots);
      } else {
        elsewhere(token);
      }
    }
    return out.take();
  }
  const Index alignment = reference::exchange_alignment(world.run.profile());
  const std::vector<Index> counts = zone_counts(slots, alignment, target);
  Index next = 0;
  for (Index local = 0; local < slots; ++local) {
    Index left = counts[at(local)];
    for (Index tried = 0; tried < out.tokens() && left > 0; ++tried) {
      left -= out.assign(next, local) ? 1 : 0;
      next = (next + 1) % out.tokens();
    }
  }
  // Few enough that no other rank is fuller, with all the padding of its zones.
  for (Index token = 0; token < out.tokens(); token += 3) elsewhere(token);
  return out.take();
}

Index target_of(const World& world, const std::string& room) {
  const Index capacity = world.capacity();
  const Index a = reference::exchange_alignment(world.run.profile());
  if (room == "exact") return capacity;
  if (room == "one_above") return capacity + a;
  const reference::ExchangeSettings& settings = world.settings;
  const Index slots = settings.num_experts / settings.ranks;
  const Index tokens = settings.ranks * settings.max_tokens;
  if (world.flat()) return tokens;
  // Almost all tokens to every expert of rank 0 that they have positions for.
  return std::max(capacity + a, up(tokens * std::min(slots, settings.top_k) - 2 * slots * a, a));
}

}  // namespace

void prepare_overflow(World& world) {
  make_room(world);
  world.settings.ragged_buffer_factor = 1;
  // Zones of large alignments need more tokens before a factor of 1 is below the worst case.
  world.settings.max_tokens =
      std::max(world.run.integer("tokens"), 2 * reference::exchange_alignment(world.run.profile()));
}

const Routing& routing_with_demand(World& world, const std::string& room) {
  const Routing& routing = world.group.shared<Routing>("demand " + room, [&] {
    Random random = world.run.random("demand " + room);
    return make_routing(world.run.profile(), world.settings,
                        ids_with_demand(world, target_of(world, room), random));
  });
  const Index capacity = world.capacity(), demand = routing.plan.demand;
  const Index a = reference::exchange_alignment(world.run.profile());
  world.run.judge().require(room == "exact"       ? demand == capacity
                            : room == "one_above" ? demand == capacity + a
                                                  : demand > capacity,
                            "the demand is where the case wants it: " + std::to_string(demand) +
                                " rows for a capacity of " + std::to_string(capacity));
  return routing;
}

void judge_untouched(World& world, std::string_view clause, std::string_view what,
                     const Buffer& got) {
  world.run.judge().untouched(clause, what, got, Judged(at(got.size()), true));
}

bool is_refusal(dropless_status status) {
  return status == DROPLESS_INVALID_ARGUMENT || status == DROPLESS_OVERFLOW;
}

void judge_refused_calls(World& world, RankHandle& handle, const Routing& routing,
                         std::string_view clause, bool silent, Index call) {
  CaseRun& run = world.run;
  Judge& judge = run.judge();
  const Payload& payload = tagged_payload(world, routing, step_form(world), call);
  DispatchBuffers got;
  const auto judge_status = [&](const char* what, dropless_status status) {
    judge.holds(clause, what,
                silent ? status == DROPLESS_OK || is_refusal(status) : is_refusal(status),
                silent ? "OK, or a refusal" : "INVALID_ARGUMENT or OVERFLOW",
                "status " + std::to_string(status));
  };
  judge_status("dispatch after an overflow",
               handle.try_dispatch(routing, payload.sent[at(world.rank)], got));
  for (const Buffer* one : {got.rows, got.row_scales, got.row_weights, got.row_ids}) {
    if (one != nullptr) judge_untouched(world, clause, "outputs of dispatch", *one);
  }
  const Index hidden = step_form(world).hidden, length = world.capacity();
  const std::vector<double> ones(at(length * hidden), 1.0);
  Buffers& buffers = run.buffers();
  Buffer& rows = buffers.input("rows", DROPLESS_BF16, {length, hidden}, ones);
  Buffer* weights = world.weighted() ? &buffers.input("row_weights", DROPLESS_FP32, {length},
                                                      std::vector<double>(at(length), 1.0))
                                     : nullptr;
  Buffer& y = buffers.output("y", DROPLESS_BF16, {routing.tokens(world.rank), hidden});
  judge_status("combine after an overflow", handle.try_combine(routing, rows, weights, y));
  judge_untouched(world, clause, "y", y);
}

namespace {

// A plan whose rows fit, on any handle.
void plan_that_fits(World& world, RankHandle& handle, const Routing& routing, const char* clause,
                    Index step) {
  PlanBuffers got{};
  const dropless_status status = handle.try_plan(routing, got, {.step = step});
  world.run.judge().holds(clause, "rows that fit are no overflow", status == DROPLESS_OK, "OK",
                          "status " + std::to_string(status));
}

void run_error(World& world, RankHandle& handle, const Routing& routing) {
  Judge& judge = world.run.judge();
  PlanBuffers got{};
  const dropless_status status = handle.try_plan(routing, got);
  judge.holds("EXCHANGE-10a", "status of the plan", status == DROPLESS_OVERFLOW, "OVERFLOW",
              "status " + std::to_string(status));
  judge.exact("EXCHANGE-10a", "demand", *got.demand, std::vector<Index>{routing.plan.demand});
  for (const Buffer* one : {got.counts, got.offsets, got.rows_per_source, got.global_counts,
                            got.total_rows, got.sent_bytes, got.sent_node_bytes, got.dropped}) {
    judge_untouched(world, "EXCHANGE-10a", one->label(), *one);
  }
  judge_refused_calls(world, handle, routing, "EXCHANGE-10a", false, 0);
  // The handle can plan again, on all ranks.
  const Routing& exact = routing_with_demand(world, "exact");
  plan_that_fits(world, handle, exact, "EXCHANGE-10a", 1);
  run_step(world, handle, exact, 1, {.step = 2});
}

void run_drop(World& world, RankHandle& handle, const Routing& routing) {
  if (world.unordered()) {
    throw NotSupported{"which rows of an unordered layout a drop keeps is not defined"};
  }
  Judge& judge = world.run.judge();
  const PlanBuffers got = handle.plan(routing);
  judge_plan(world, routing, got);
  judge.exact("EXCHANGE-10c", "dropped_pairs", *got.dropped,
              std::vector<Index>{routing.received(world.rank).dropped_pairs});
  const Dispatched dispatched = run_dispatch(world, handle, routing, 0);
  run_combine(world, handle, routing, dispatched.order, 0);
  // Gradients of dropped pairs are zero.
  const Index hidden = step_form(world).hidden, top_k = world.settings.top_k;
  const Index length = world.buffer_rows(routing), tokens = routing.tokens(world.rank);
  const Index columns = world.flat() ? top_k : 1;
  const RankValues& values = row_values(world, routing, "d_rows", hidden, "exact", DROPLESS_BF16);
  const RankValues& weights =
      row_values(world, routing, "d_weights", columns, "exact", DROPLESS_FP32);
  Buffers& buffers = world.run.buffers();
  const auto placed = [&](const RankValues& all, Index width) {
    return arranged(world, routing, dispatched.order, width, all[at(world.rank)], 0);
  };
  Buffer& d_rows = buffers.input("d_rows", DROPLESS_BF16, {length, hidden}, placed(values, hidden));
  Buffer& d_row_weights =
      buffers.input("d_row_weights", DROPLESS_FP32,
                    world.flat() ? Shape{length, top_k} : Shape{length}, placed(weights, columns));
  Buffer& d_x = buffers.output("d_x", DROPLESS_BF16, {tokens, hidden});
  Buffer& d_weights = buffers.output("d_weights", DROPLESS_FP32, {tokens, top_k});
  handle.dispatch_backward(d_rows, &d_row_weights, d_x, &d_weights);
  const auto expected = reference::dispatch_backward(routing.plan, world.rank, hidden,
                                                     DROPLESS_BF16, inputs_of(values));
  judge_combined(world, routing, "EXCHANGE-7a", "d_x", d_x, expected, DROPLESS_BF16, true);
  judge.exact("EXCHANGE-10c", "d_weights", d_weights,
              reference::dispatch_weights_backward(routing.plan, world.rank, inputs_of(weights)));
}

void run_overflow(CaseRun& run) {
  World world(run);
  prepare_overflow(world);
  const std::string& room = run.word("room");
  const Routing& routing = routing_with_demand(world, room);
  const auto policy = run.profile().overflow_policy;
  RankHandle handle(world);
  if (room == "exact" || policy == DROPLESS_OVERFLOW_RETRY) {
    const char* clause = policy == DROPLESS_OVERFLOW_TRAP    ? "EXCHANGE-10b"
                         : policy == DROPLESS_OVERFLOW_RETRY ? "EXCHANGE-10d"
                         : policy == DROPLESS_OVERFLOW_DROP  ? "EXCHANGE-10c"
                                                             : "EXCHANGE-10a";
    plan_that_fits(world, handle, routing, clause, 0);
    run_step(world, handle, routing, 0, {.step = 1});
  } else if (policy == DROPLESS_OVERFLOW_TRAP) {
    return run_trap(world, handle, routing);
  } else if (policy == DROPLESS_OVERFLOW_DROP) {
    run_drop(world, handle, routing);
  } else {
    run_error(world, handle, routing);
  }
  handle.close();
}

std::vector<Values> select_overflow(Tier tier) {
  const std::vector<std::string> rooms = {"exact", "one_above", "far_above"};
  const std::vector<Values> smoke = exchange_cases(
      {.ranks = {"4"}, .experts = {"8"}, .tokens = {"12"}}, {{"room", rooms}}, overflow_objection);
  if (tier == Tier::smoke) return smoke;
  if (tier == Tier::full) return {};
  std::vector<Values> all = exchange_cases({.ranks = {"4", "8"},
                                            .experts = {"8", "16", "32"},
                                            .top_k = {"1", "2", "4"},
                                            .tokens = {"1", "24", "64"}},
                                           {{"room", rooms}}, overflow_objection);
  for (Values& values : exchange_cases(
           {.ranks = {"2"}, .experts = {"4", "2"}, .top_k = {"1"}, .tokens = {"12", "48"}},
           {{"room", rooms}}, overflow_objection)) {
    all.push_back(std::move(values));
  }
  return without(all, smoke);
}

}  // namespace

std::string overflow_objection(const Values& values) {
  const Index ranks = std::stoll(value_of(values, "ranks"));
  const Index experts = std::stoll(value_of(values, "experts"));
  const Index top_k = std::stoll(value_of(values, "top_k"));
  if (ranks == 1 || top_k * 2 > ranks) return "with so few ranks a factor of 1 is the worst case";
  if (experts % ranks != 0 || experts / ranks < top_k) return "each rank needs top_k experts";
  if (std::stoll(value_of(values, "tokens")) % (experts / ranks) != 0 ||
      value_of(values, "tokens") == "0") {
    return "tokens is not a multiple of the experts of a rank";
  }
  if (value_of(values, "placement") != "blocks") return "demand is laid out for placement=blocks";
  return exchange_objection(values);
}

void add_exchange_overflow(Registry& registry) {
  registry.add(
      {"exchange.overflow",
       "Proves what the declared policy promises when the demand is the capacity, one row more or "
       "far more. A trap has to end the process.",
       step_clauses(
           {"EXCHANGE-7a", "EXCHANGE-10a", "EXCHANGE-10b", "EXCHANGE-10c", "EXCHANGE-10d"}),
       exchange_parameters({word_parameter("room", {"exact", "one_above", "far_above"},
                                           "the demand of the fullest rank")}),
       select_overflow, run_overflow, overflow_objection});
}

}  // namespace dropless::conformance
