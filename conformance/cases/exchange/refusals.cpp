// SPDX-License-Identifier: Apache-2.0
// What an exchange must refuse (GENERAL-3), each beside a control that succeeds.
#include <cmath>
#include <limits>

#include "conformance/cases/exchange/overflow.h"

namespace dropless::conformance {
namespace {

constexpr Index experts = 8, top_k = 2, tokens = 3;

// ---- opening ------------------------------------------------------------------------------------

const std::vector<std::string>& open_faults() {
  static const std::vector<std::string> all = {
      "experts_not_divisible", "top_k_above_experts", "factor_half",      "factor_zero",
      "factor_minus_two",      "factor_nan",          "factor_infinite",  "expert_twice_on_a_rank",
      "expert_without_a_slot", "expert_outside",      "expert_minus_one", "negative_max_tokens",
      "negative_row_bytes",    "ranks_zero",          "rank_outside",     "all_gather_null"};
  return all;
}

void spoil(World& world, const std::string& what, dropless_exchange_settings& settings) {
  Buffers& buffers = world.run.buffers();
  const auto place = [&](Index slot, Index expert) {
    std::vector<Index> slots;
    for (Index e = 0; e < experts; ++e) slots.push_back(e);
    slots[at(slot)] = expert;
    settings.placement =
        buffers.input("placement", DROPLESS_I32, {world.ranks, experts / world.ranks}, slots)
            .tensor();
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (what == "experts_not_divisible") settings.num_experts = experts + 1;
  if (what == "top_k_above_experts") settings.top_k = experts + 1;
  if (what == "factor_half") settings.ragged_buffer_factor = 0.5;
  if (what == "factor_zero") settings.ragged_buffer_factor = 0;
  if (what == "factor_minus_two") settings.ragged_buffer_factor = -2;
  if (what == "factor_nan") settings.ragged_buffer_factor = nan;
  if (what == "factor_infinite") {
    settings.ragged_buffer_factor = std::numeric_limits<double>::infinity();
  }
  if (what == "expert_twice_on_a_rank") place(1, 0);
  if (what == "expert_without_a_slot") place(experts - 1, 0);
  if (what == "expert_outside") place(2, experts);
  if (what == "expert_minus_one") place(2, -1);
  if (what == "negative_max_tokens") settings.max_tokens = -1;
  if (what == "negative_row_bytes") settings.row_bytes = -1;
  if (what == "ranks_zero") settings.ranks = 0;
  if (what == "rank_outside") settings.rank = settings.ranks;
  if (what == "all_gather_null") settings.all_gather = nullptr;
}

void make_settings(World& world) {
  world.settings.num_experts = experts, world.settings.top_k = top_k;
  world.settings.max_tokens = tokens;
  make_room(world);
}

void run_open(CaseRun& run) {
  World world(run);
  make_settings(world);
  const std::string& what = run.word("what");
  {
    RankHandle control(world);
    control.close();
  }
  OpenSettings open(world, 10);
  spoil(world, what, open.settings);
  auto args = make_args<dropless_exchange_open_args>();
  args.settings = &open.settings;
  run.refused("GENERAL-3", what, "exchange_open", run.implementation().exchange_open, args);
  run.judge().holds("GENERAL-3", "exchange_open, refused for " + what + ", returns no handle",
                    args.exchange == nullptr, "null", "a handle");
  // Asking for the capacity needs neither a rank nor a way to gather.
  if (what == "rank_outside" || what == "all_gather_null") return;
  auto capacity = make_args<dropless_exchange_capacity_args>();
  OpenSettings good(world, 10);
  capacity.settings = &good.settings;
  run.perform("exchange_capacity", run.implementation().exchange_capacity, capacity);
  capacity.settings = &open.settings;
  run.refused("GENERAL-3", what, "exchange_capacity", run.implementation().exchange_capacity,
              capacity);
}

// ---- calls on a handle --------------------------------------------------------------------------

const std::vector<std::string>& call_faults() {
  static const std::vector<std::string> all = {"id_too_large",
                                               "id_below_minus_one",
                                               "duplicate_id",
                                               "too_many_tokens",
                                               "wide_ids",
                                               "dispatch_before_plan",
                                               "combine_before_plan",
                                               "rows_too_short",
                                               "rows_other_dtype",
                                               "row_too_long",
                                               "scales_alone",
                                               "combine_rows_too_short",
                                               "wrong_weights",
                                               "gradient_rows_too_short",
                                               "weights_alone"};
  return all;
}

Routing routing_of(const World& world) {
  std::vector<std::vector<Index>> ids;
  for (Index rank = 0; rank < world.ranks; ++rank) {
    ids.push_back({rank % experts, (rank + 3) % experts, 1, -1, 7, 0});
  }
  return make_routing(world.run.profile(), world.settings, std::move(ids));
}

bool is_plan_fault(const std::string& what) {
  return what == "id_too_large" || what == "id_below_minus_one" || what == "duplicate_id" ||
         what == "too_many_tokens" || what == "wide_ids";
}

// A plan that is to be refused, with all its outputs.
void refuse_plan(World& world, RankHandle& handle, const std::string& what) {
  std::vector<Index> ids = {0, 1, 2, -1, 3, 0};
  Shape shape = {tokens, top_k};
  if (what == "id_too_large") ids[3] = experts;
  if (what == "id_below_minus_one") ids[3] = -2;
  if (what == "duplicate_id") ids[3] = 2;
  if (what == "too_many_tokens") ids.insert(ids.end(), {4, 5}), shape = {tokens + 1, top_k};
  if (what == "wide_ids") shape = {tokens - 1, top_k + 1};
  Buffers& buffers = world.run.buffers();
  const Index slots = experts / world.ranks;
  const auto output = [&](const char* name, Index size) {
    return buffers.output(name, DROPLESS_I64, {size}).tensor();
  };
  auto args = make_args<dropless_exchange_plan_args>();
  args.exchange = handle.exchange();
  args.ids = buffers.input("illegal ids", DROPLESS_I32, shape, ids).tensor();
  args.tokens_per_local_expert = output("tokens_per_local_expert", slots);
  args.offsets = output("offsets", slots + 1);
  args.rows_per_source = output("rows_per_source", world.ranks);
  args.total_rows = output("total_rows", 1), args.demand = output("demand", 1);
  args.step = 1;
  CaseRun& run = world.run;
  run.refused("GENERAL-3", what, "exchange_plan", run.implementation().exchange_plan, args);
}

void refuse_dispatch(World& world, RankHandle& handle, const Routing& routing,
                     const std::string& what) {
  CaseRun& run = world.run;
  Buffers& buffers = run.buffers();
  const bool long_row = what == "row_too_long";
  const Index hidden = step_form(world).hidden + (long_row ? 1 : 0);
  Index length = world.buffer_rows(routing);
  if (what == "rows_too_short") length = routing.received(world.rank).rows() - 1;
  auto args = make_args<dropless_exchange_dispatch_args>();
  args.exchange = handle.exchange();
  args.x = buffers
               .input("x", DROPLESS_BF16, {tokens, hidden},
                      std::vector<double>(at(tokens * hidden), 1.0))
               .tensor();
  const dropless_dtype dtype = what == "rows_other_dtype" ? DROPLESS_FP16 : DROPLESS_BF16;
  args.rows = buffers.output("rows", dtype, {length, hidden}).tensor();
  const Bytes scales(at(tokens * world.settings.scale_bytes), 127);
  args.scales =
      buffers.input("scales", DROPLESS_U8, {tokens, world.settings.scale_bytes}, scales).tensor();
  if (what != "scales_alone") {
    args.row_scales =
        buffers.output("row_scales", DROPLESS_U8, {length, world.settings.scale_bytes}).tensor();
  }
  if (what == "weights_alone") {
    args.weights = buffers
                       .input("weights", DROPLESS_FP32, {tokens, top_k},
                              std::vector<double>(at(tokens * top_k), 1.0))
                       .tensor();
  }
  if (world.unordered()) {
    args.row_source = buffers.output("row_source", DROPLESS_I32, {length, 2}).tensor();
  }
  run.refused("GENERAL-3", what, "exchange_dispatch", run.implementation().exchange_dispatch, args);
}

void refuse_combine(World& world, RankHandle& handle, const Routing& routing,
                    const std::string& what) {
  CaseRun& run = world.run;
  Buffers& buffers = run.buffers();
  const Index hidden = step_form(world).hidden;
  Index length = world.buffer_rows(routing);
  if (what == "combine_rows_too_short" || what == "gradient_rows_too_short") {
    length = routing.received(world.rank).rows() - 1;
  }
  const std::vector<double> ones(at(length * hidden), 1.0);
  Buffer& rows = buffers.input("rows", DROPLESS_BF16, {length, hidden}, ones);
  Buffer& out = buffers.output("y", DROPLESS_BF16, {tokens, hidden});
  if (what == "gradient_rows_too_short") {
    auto args = make_args<dropless_exchange_dispatch_backward_args>();
    args.exchange = handle.exchange();
    args.d_rows = rows.tensor(), args.d_x = out.tensor();
    run.refused("GENERAL-3", what, "exchange_dispatch_backward",
                run.implementation().exchange_dispatch_backward, args);
    return;
  }
  auto args = make_args<dropless_exchange_combine_args>();
  args.exchange = handle.exchange();
  args.rows = rows.tensor(), args.y = out.tensor();
  // Given where the profile combines without, missing where it combines with them.
  if (world.weighted() != (what == "wrong_weights")) {
    args.row_weights =
        buffers.input("row_weights", DROPLESS_FP32, {length}, std::vector<double>(at(length), 1.0))
            .tensor();
  }
  run.refused("GENERAL-3", what, "exchange_combine", run.implementation().exchange_combine, args);
}

void run_calls(CaseRun& run) {
  World world(run);
  make_settings(world);
  const std::string& what = run.word("what");
  const Routing& routing =
      world.group.shared<Routing>("routing", [&] { return routing_of(world); });
  if (what == "dispatch_before_plan" || what == "combine_before_plan") {
    {
      RankHandle control(world);
      run_step(world, control, routing, 0);
      control.close();
    }
    RankHandle handle(world);
    if (what == "dispatch_before_plan") refuse_dispatch(world, handle, routing, what);
    if (what == "combine_before_plan") refuse_combine(world, handle, routing, what);
    run_step(world, handle, routing, 1);
    handle.close();
    return;
  }
  RankHandle handle(world);
  run_step(world, handle, routing, 0);
  if (what == "gradient_rows_too_short") {
    const Index hidden = step_form(world).hidden, length = world.buffer_rows(routing);
    Buffer& d_rows = run.buffers().input("d_rows", DROPLESS_BF16, {length, hidden},
                                         std::vector<double>(at(length * hidden), 0.0));
    Buffer& d_x = run.buffers().output("d_x", DROPLESS_BF16, {tokens, hidden});
    handle.dispatch_backward(d_rows, nullptr, d_x, nullptr);
  }
  const bool of_combine = what == "combine_rows_too_short" || what == "wrong_weights" ||
                          what == "gradient_rows_too_short";
  if (is_plan_fault(what)) {
    refuse_plan(world, handle, what);
  } else if (of_combine) {
    refuse_combine(world, handle, routing, what);
  } else {
    refuse_dispatch(world, handle, routing, what);
  }
  // The plan that was in force still is, and the handle can plan again.
  about(run.judge(), "EXCHANGE-12c", "the plan after a refusal", [&] {
    run_combine(world, handle, routing, run_dispatch(world, handle, routing, 1).order, 1);
  });
  run_step(world, handle, routing, 2, {.step = 2});
  handle.close();
}

std::string refusal_objection(const Values& values) {
  const Index ranks = std::stoll(value_of(values, "ranks"));
  if (ranks == 1 && value_of(values, "what") == "experts_not_divisible") {
    return "one rank divides every number of experts";
  }
  if (ranks == 1 && value_of(values, "what") == "all_gather_null") {
    return "one rank has nothing to gather";
  }
  return experts % ranks == 0 ? "" : "8 experts do not divide by ranks";
}

}  // namespace

void add_exchange_refusals(Registry& registry) {
  const auto select = [](const std::vector<std::string>& whats) {
    return [whats](Tier tier) {
      const auto of = [&](const char* ranks) {
        std::vector<Values> all = product({{"ranks", {ranks}},
                                           {"experts", {"8"}},
                                           {"top_k", {"2"}},
                                           {"tokens", {"3"}},
                                           {"what", whats}});
        std::erase_if(all,
                      [&](const Values& values) { return !refusal_objection(values).empty(); });
        return all;
      };
      if (tier == Tier::smoke) return of("2");
      std::vector<Values> more = of("1");
      for (Values& values : of("4")) more.push_back(std::move(values));
      return tier == Tier::standard ? more : std::vector<Values>{};
    };
  };
  const auto parameters = [](const std::vector<std::string>& whats) {
    return std::vector<Parameter>{integer_parameter("ranks", 1, 8, "ranks R of the group"),
                                  integer_parameter("experts", experts, experts, "experts E"),
                                  integer_parameter("top_k", top_k, top_k, "experts of a token"),
                                  integer_parameter("tokens", tokens, tokens, "tokens of a rank"),
                                  word_parameter("what", whats, "what is wrong with the request")};
  };
  registry.add({"exchange.open_refusals",
                "Proves that illegal settings are refused on every rank, by open and by capacity.",
                {"GENERAL-3"},
                parameters(open_faults()),
                select(open_faults()),
                run_open,
                refusal_objection});
  registry.add({"exchange.call_refusals",
                "Proves that a call which is illegal on all ranks is refused, writes nothing and "
                "leaves handle and plan as they were.",
                step_clauses({"GENERAL-3", "EXCHANGE-12c"}), parameters(call_faults()),
                select(call_faults()), run_calls, refusal_objection});
}

}  // namespace dropless::conformance
