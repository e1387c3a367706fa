// SPDX-License-Identifier: Apache-2.0
// A rank that stays away from a call: EXCHANGE-14a and 14b.
#include <algorithm>
#include <chrono>

#include "conformance/cases/exchange/overflow.h"

namespace dropless::conformance {
namespace {

constexpr double timeout_seconds = 0.5;
constexpr double patience = 10;  // beyond the time-out: this machine may be busy

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Index rank_of(const std::string& who, Index ranks) {
  return who == "first" ? 0 : who == "last" ? ranks - 1 : ranks / 2;
}

// The call that the absent rank does not make. Its status on this rank.
dropless_status make_call(World& world, RankHandle& handle, const Routing& routing,
                          const std::string& call, const Dispatched* dispatched) {
  if (call == "plan") {
    PlanBuffers got{};
    return handle.try_plan(routing, got, {.step = 1});
  }
  if (call == "dispatch") {
    DispatchBuffers got;
    const Payload& payload = tagged_payload(world, routing, step_form(world), 1);
    return handle.try_dispatch(routing, payload.sent[at(world.rank)], got);
  }
  const Index hidden = step_form(world).hidden, length = world.buffer_rows(routing);
  Buffers& buffers = world.run.buffers();
  Buffer& rows = buffers.input("rows", DROPLESS_BF16, {length, hidden},
                               std::vector<double>(at(length * hidden), 1.0));
  Buffer* weights = world.weighted() ? dispatched->got.row_weights : nullptr;
  Buffer& y = buffers.output("y", DROPLESS_BF16, {routing.tokens(world.rank), hidden});
  return handle.try_combine(routing, rows, weights, y);
}

bool is_loss(dropless_status status) {
  return status == DROPLESS_TIMEOUT || status == DROPLESS_PEER_LOST;
}

void judge_loss(World& world, const std::string& what, dropless_status status, double seconds) {
  Judge& judge = world.run.judge();
  judge.holds("EXCHANGE-14a", "status of " + what, is_loss(status), "TIMEOUT or PEER_LOST",
              "status " + std::to_string(status));
  judge.holds("EXCHANGE-14a", "time of " + what, seconds < timeout_seconds + patience,
              std::to_string(timeout_seconds) + " s, and patience", std::to_string(seconds) + " s");
}

void run_lost(CaseRun& run) {
  World world(run);
  make_room(world);
  const std::string& call = run.word("call");
  const Index absent = rank_of(run.word("who"), world.ranks);
  const Routing& routing = world.routing("only");
  for (const reference::ReceivedRows& received : routing.plan.received) {
    for (const Index rows : received.rows_per_source) {
      run.judge().require(rows > 0, "every rank waits for every other one");
    }
  }
  {
    RankHandle handle(world, timeout_seconds);
    Dispatched dispatched;
    if (call != "plan") handle.plan(routing);
    if (call == "combine") {
      dispatched.got = handle.dispatch(
          routing, tagged_payload(world, routing, step_form(world), 0).sent[at(world.rank)]);
    }
    if (world.rank != absent) {
      const auto start = Clock::now();
      const dropless_status status = make_call(world, handle, routing, call, &dispatched);
      judge_loss(world, call, status, seconds_since(start));
      // The handle stays broken, and nothing waits a second time: the fastest of some calls says
      // so, whatever else this machine has to do.
      double fastest = patience;
      for (Index step = 2; step < 5; ++step) {
        const auto again = Clock::now();
        PlanBuffers got{};
        const dropless_status next = handle.try_plan(routing, got, {.step = step});
        judge_loss(world, "a later call", next, seconds_since(again));
        fastest = std::min(fastest, seconds_since(again));
      }
      run.judge().holds("EXCHANGE-14a", "time of later calls", fastest < 0.8 * timeout_seconds,
                        "at once", std::to_string(fastest) + " s");
    }
    world.meet();  // the absent rank is back; nobody is inside a call
    const auto start = Clock::now();
    handle.abandon();
    run.judge().holds("EXCHANGE-14b", "time of exchange_close",
                      seconds_since(start) < timeout_seconds + patience, "no waiting for others",
                      std::to_string(seconds_since(start)) + " s");
    world.meet();
  }
  // The group is made anew.
  about(run.judge(), "EXCHANGE-14b", "a new handle after a time-out", [&] {
    RankHandle handle(world);
    run_step(world, handle, routing, 2);
    handle.close();
  });
}

// Slow is not lost.
void run_slow(CaseRun& run) {
  World world(run);
  make_room(world);
  const Routing& routing = world.routing("only");
  const Index slow = rank_of(run.word("who"), world.ranks);
  RankHandle handle(world, 10);
  for (Index step = 0; step < 2; ++step) {
    if (world.rank == slow) wait_for(run.integer("delay"));
    run_step(world, handle, routing, step, {.step = step});
  }
  handle.close();
}

std::vector<Values> select_lost(Tier tier) {
  const GroupAxes smoke_group{.ranks = {"2"}, .experts = {"8"}, .top_k = {"4"}, .load = {"spread"}};
  const std::vector<Values> smoke =
      exchange_cases(smoke_group, {{"who", {"last"}}, {"call", {"dispatch"}}});
  if (tier == Tier::smoke) return smoke;
  if (tier == Tier::full) return {};
  return without(
      exchange_cases(
          {.ranks = {"4", "2"}, .experts = {"8"}, .top_k = {"4"}, .load = {"spread"}},
          {{"who", {"first", "middle", "last"}}, {"call", {"plan", "dispatch", "combine"}}}),
      smoke);
}

std::string lost_objection(const Values& values) {
  if (value_of(values, "ranks") == "1") return "one rank waits for nobody";
  if (value_of(values, "load") != "spread" || value_of(values, "share") != "even" ||
      value_of(values, "placement") != "blocks" || std::stoll(value_of(values, "tokens")) < 8 ||
      2 * std::stoll(value_of(values, "top_k")) < std::stoll(value_of(values, "ranks"))) {
    return "every rank must wait for every other one: load=spread, share=even, enough tokens";
  }
  return exchange_objection(values);
}

std::vector<Values> select_slow(Tier tier) {
  if (tier == Tier::smoke) return {};
  if (tier == Tier::full)
    return exchange_cases({.ranks = {"4"}}, {{"who", {"middle"}}, {"delay", {"500"}}});
  return exchange_cases({.ranks = {"4"}}, {{"who", {"first", "last"}}, {"delay", {"300"}}});
}

}  // namespace

void add_exchange_lost_ranks(Registry& registry) {
  const Parameter who = word_parameter("who", {"first", "middle", "last"}, "the rank");
  registry.add(
      {"exchange.lost_rank",
       "Proves that a rank which stays away from a call ends it in an error on all others, "
       "in time, and that the group can be made anew. No process is killed here.",
       step_clauses({"EXCHANGE-14a", "EXCHANGE-14b"}),
       exchange_parameters({who, word_parameter("call", {"plan", "dispatch", "combine"},
                                                "the call that it does not make")}),
       select_lost, run_lost, lost_objection, /*waits=*/true});
  registry.add({"exchange.slow_rank",
                "Proves that a rank which is late, but in time, is no error and changes nothing.",
                step_clauses({"EXCHANGE-12d"}),
                exchange_parameters(
                    {who, integer_parameter("delay", 0, 500, "milliseconds before each step")}),
                select_slow, run_slow, exchange_objection, /*waits=*/true});
}

}  // namespace dropless::conformance
