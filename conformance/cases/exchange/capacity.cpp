// SPDX-License-Identifier: Apache-2.0
// The capacity of receive buffers: EXCHANGE-9a to 9c. No ranks are needed to ask for it.
#include <cmath>

#include "conformance/cases/exchange/setup.h"

namespace dropless::conformance {
namespace {

reference::ExchangeSettings settings_of(const CaseRun& run) {
  reference::ExchangeSettings settings;
  settings.ranks = run.integer("group");
  settings.num_experts = run.integer("experts");
  settings.top_k = run.integer("top_k");
  settings.max_tokens = run.integer("tokens");
  settings.row_bytes = 64;
  settings.ragged_buffer_factor = std::stod(run.word("factor"));
  Random random = run.random("placement");
  settings.placement =
      placement_of(run.word("placement"), settings.ranks, settings.num_experts, random);
  return settings;
}

void run_capacity(CaseRun& run) {
  const reference::ExchangeSettings from = settings_of(run);
  Buffers& buffers = run.buffers();
  auto settings = make_args<dropless_exchange_settings>();
  settings.ranks = static_cast<std::int32_t>(from.ranks);
  settings.num_experts = from.num_experts, settings.top_k = from.top_k;
  settings.max_tokens = from.max_tokens, settings.row_bytes = from.row_bytes;
  settings.ragged_buffer_factor = from.ragged_buffer_factor;
  settings.timeout_seconds = 10;
  if (!from.placement.empty()) {
    const Index slots = static_cast<Index>(from.placement.size()) / from.ranks;
    settings.placement =
        buffers.input("placement", DROPLESS_I32, {from.ranks, slots}, from.placement).tensor();
  }
  // Rank 0 and the last one ask; they must hear the same.
  for (const Index rank : {Index{0}, from.ranks - 1}) {
    settings.rank = static_cast<std::int32_t>(rank);
    auto args = make_args<dropless_exchange_capacity_args>();
    args.settings = &settings;
    args.capacity = -77;
    run.perform("exchange_capacity", run.implementation().exchange_capacity, args, "EXCHANGE-9c");
    const Index expected = reference::exchange_capacity(run.profile(), from);
    const bool worst = from.ragged_buffer_factor == -1;
    run.judge().holds(
        worst ? "EXCHANGE-9a" : "EXCHANGE-9b", "capacity asked for by rank " + std::to_string(rank),
        args.capacity == expected, std::to_string(expected), std::to_string(args.capacity));
  }
}

// A decimal that double rounds up costs a row without the last factor of the formula; a sum over
// experts is exact where ceil(T * K / L) is.
std::vector<Values> select_capacity(Tier tier) {
  const auto axes = [](std::vector<std::string> group, std::vector<std::string> experts,
                       std::vector<std::string> top_k, std::vector<std::string> tokens,
                       std::vector<std::string> factor, std::vector<std::string> placement) {
    return std::vector<Axis>{{"group", std::move(group)},   {"experts", std::move(experts)},
                             {"top_k", std::move(top_k)},   {"tokens", std::move(tokens)},
                             {"factor", std::move(factor)}, {"placement", std::move(placement)}};
  };
  const auto fits = [](const Values& values) {
    const Index group = std::stoll(value_of(values, "group"));
    const Index experts = std::stoll(value_of(values, "experts"));
    return std::stoll(value_of(values, "top_k")) <= experts &&
           (experts % group == 0 || value_of(values, "placement") == "cyclic");
  };
  const std::vector<Values> smoke = pairwise(
      axes({"4", "64"}, {"64"}, {"2", "8"}, {"50", "4096"}, {"-1", "1", "1.1", "1.25"}, {"blocks"}),
      fits);
  if (tier == Tier::smoke) return smoke;
  if (tier == Tier::full) return {};
  std::vector<Values> all =
      pairwise(axes({"1", "2", "8", "1024"}, {"8", "96", "1024"}, {"1", "3", "8"},
                    {"0", "1", "100", "8192", "65536"},
                    {"-1", "1", "1.1", "1.10000002384185791", "1.3", "1.7", "2", "1000000"},
                    {"blocks", "cyclic", "shuffled"}),
               fits);
  // 100 tokens, one expert each: 1.1 * 100 is above 110 in double.
  for (Values& values : product(axes({"8"}, {"8"}, {"1"}, {"100", "200", "1000"},
                                     {"1.1", "1.10000002384185791", "1.15", "1.3"}, {"blocks"}))) {
    all.push_back(std::move(values));
  }
  std::vector<Values> distinct;
  for (Values& values : all) {
    if (without({values}, distinct).empty()) continue;
    distinct.push_back(std::move(values));
  }
  return without(distinct, smoke);
}

std::string objection(const Values& values) {
  const Index group = std::stoll(value_of(values, "group"));
  const Index experts = std::stoll(value_of(values, "experts"));
  if (std::stoll(value_of(values, "top_k")) > experts) return "top_k is above experts";
  if (experts % group != 0 && value_of(values, "placement") != "cyclic") {
    return "experts is not divisible by group, which takes placement=cyclic";
  }
  return {};
}

}  // namespace

void add_exchange_capacity(Registry& registry) {
  registry.add(
      {"exchange.capacity",
       "Proves the rows of receive buffers, for the worst case and for factors, decimal ones at "
       "the "
       "edge of a row included.",
       {"EXCHANGE-9a", "EXCHANGE-9b", "EXCHANGE-9c"},
       {integer_parameter("group", 1, 4096, "ranks of the settings; nobody but one asks"),
        integer_parameter("experts", 1, 1 << 14, "experts E"),
        integer_parameter("top_k", 1, 64, "experts of a token, K"),
        integer_parameter("tokens", 0, 1 << 20, "most tokens of a rank, T"),
        word_parameter(
            "factor",
            {"-1", "1", "1.1", "1.10000002384185791", "1.15", "1.25", "1.3", "1.7", "2", "1000000"},
            "ragged_buffer_factor"),
        word_parameter("placement", {"blocks", "shuffled", "cyclic", "hot"}, "slots of experts")},
       select_capacity,
       run_capacity,
       objection});
}

}  // namespace dropless::conformance
