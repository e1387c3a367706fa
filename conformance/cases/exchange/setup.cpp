// SPDX-License-Identifier: Apache-2.0
// Groups, routings and the parameters of the exchange cases.
#include "conformance/cases/exchange/setup.h"

#include <algorithm>

namespace dropless::conformance {
namespace {

constexpr Index most_ranks = 1024;

std::vector<Index> node_map(const std::string& nodes, Index ranks) {
  if (nodes == "one") return {};
  if (nodes == "two") return reference::contiguous_nodes(ranks, 2);
  if (nodes == "four") return reference::contiguous_nodes(ranks, 4);
  std::vector<Index> alternating;
  for (Index rank = 0; rank < ranks; ++rank) alternating.push_back(rank % 2);
  return alternating;
}

reference::ExchangeSettings settings_of(const CaseRun& run) {
  reference::ExchangeSettings settings;
  settings.ranks = run.integer("ranks");
  settings.num_experts = run.integer("experts");
  settings.top_k = run.integer("top_k");
  settings.max_tokens = run.integer("tokens");
  if (run.has("nodes")) settings.node_of_rank = node_map(run.word("nodes"), settings.ranks);
  if (run.has("placement")) {
    Random random = run.random("placement");
    settings.placement =
        placement_of(run.word("placement"), settings.ranks, settings.num_experts, random);
  }
  return settings;
}

}  // namespace

std::vector<reference::Indices> views(const std::vector<std::vector<Index>>& arrays) {
  return {arrays.begin(), arrays.end()};
}

Routing make_routing(const dropless_profile& profile, const reference::ExchangeSettings& settings,
                     std::vector<std::vector<Index>> ids) {
  Routing routing;
  routing.ids = std::move(ids);
  routing.plan = reference::exchange_plan(profile, settings, views(routing.ids),
                                          reference::exchange_capacity(profile, settings));
  return routing;
}

World::World(CaseRun& the_run)
    : run(the_run),
      group(this_group()),
      rank(group.rank()),
      ranks(group.ranks()),
      settings(settings_of(the_run)) {}

World::World(CaseRun& the_run, RankGroup& the_group)
    : run(the_run),
      group(the_group),
      rank(the_group.rank()),
      ranks(the_group.ranks()),
      settings(settings_of(the_run)) {
  settings.ranks = ranks;
  settings.node_of_rank.clear(), settings.placement.clear();
}

const Routing& World::routing(const std::string& name, const StepChange& change) const {
  return group.shared<Routing>("routing " + name, [&] {
    const std::string& load = change.load.empty() ? run.word("load") : change.load;
    const std::string& share = change.share.empty() ? run.word("share") : change.share;
    const Index most = change.tokens < 0 ? run.integer("tokens") : change.tokens;
    const std::vector<Index> tokens = tokens_of_ranks(share, most, ranks);
    std::vector<std::vector<Index>> ids;
    for (Index from = 0; from < ranks; ++from) {
      const std::string& drawn = change.reversed.empty() ? name : change.reversed;
      Random random = run.random("ids " + drawn + " " + std::to_string(from));
      ids.push_back(exchange_ids(load, settings, from, tokens[at(from)], random));
      if (!change.reversed.empty()) std::reverse(ids.back().begin(), ids.back().end());
    }
    return make_routing(run.profile(), settings, std::move(ids));
  });
}

Index World::capacity() const {
  return reference::exchange_capacity(run.profile(), settings);
}

Index World::buffer_rows(const Routing& routing) const {
  const bool retry = run.profile().overflow_policy == DROPLESS_OVERFLOW_RETRY;
  return retry ? routing.received(rank).rows() : capacity();
}

bool World::unordered() const {
  const auto layout = run.profile().dispatch_layout;
  return layout == DROPLESS_DISPATCH_UNORDERED_FLAT ||
         layout == DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR;
}

bool World::weighted() const {
  return !flat() && run.profile().combine_weighting == DROPLESS_COMBINE_WEIGHTED;
}

void World::meet() const {
  if (!group.meet()) throw CaseEnded{};
}

std::vector<Parameter> exchange_parameters(std::vector<Parameter> more) {
  std::vector<Parameter> all = {
      integer_parameter("ranks", 1, most_ranks, "ranks R of the group"),
      integer_parameter("experts", 1, 1 << 14, "experts E"),
      integer_parameter("top_k", 1, 64, "experts of a token, K"),
      integer_parameter("tokens", 0, 1 << 16, "most tokens of a rank, T"),
      word_parameter("share", share_names(), "how many of them each rank has"),
      word_parameter("load", exchange_load_names(), "where each rank sends them"),
      word_parameter("placement", {"blocks", "shuffled", "cyclic", "hot"}, "slots of experts"),
      word_parameter("nodes", {"one", "two", "four", "alternating"}, "nodes of the ranks")};
  all.insert(all.end(), more.begin(), more.end());
  all.push_back(integer_parameter("seed", 0, std::int64_t{1} << 62, "of the random numbers"));
  return all;
}

std::string exchange_objection(const Values& values) {
  const Index ranks = std::stoll(value_of(values, "ranks"));
  const Index experts = std::stoll(value_of(values, "experts"));
  const Index top_k = std::stoll(value_of(values, "top_k"));
  const Index tokens = std::stoll(value_of(values, "tokens"));
  const std::string& nodes = value_of(values, "nodes");
  if (top_k > experts) return "top_k is above the number of experts";
  if (experts % ranks != 0 && value_of(values, "placement") != "cyclic") {
    return "experts is not divisible by ranks, which takes placement=cyclic";
  }
  if ((nodes == "two" || nodes == "alternating") && ranks % 2 != 0) return "two nodes of odd ranks";
  if (nodes == "four" && ranks % 4 != 0) return "ranks is not divisible by four nodes";
  // Elements of the worst-case buffers of all ranks together; plans have none.
  const bool has_hidden = std::any_of(values.begin(), values.end(),
                                      [](const auto& pair) { return pair.first == "hidden"; });
  const bool only_plan = std::any_of(values.begin(), values.end(),
                                     [](const auto& pair) { return pair.first == "ids"; });
  const Index width = has_hidden ? std::stoll(value_of(values, "hidden")) : only_plan ? 1 : 32;
  const Index slots = (experts + ranks - 1) / ranks + 1;
  if (ranks * ranks * tokens * std::min(top_k, slots) * std::max<Index>(width, 1) > Index{1}
                                                                                        << 23) {
    return "the worst case of these sizes does not fit into one process";
  }
  return {};
}

std::vector<std::string> exchange_clauses(std::vector<std::string> more) {
  for (const char* clause :
       {"EXCHANGE-3e", "EXCHANGE-4a", "EXCHANGE-4b", "EXCHANGE-4c", "EXCHANGE-4d", "EXCHANGE-5a",
        "EXCHANGE-5b", "EXCHANGE-5c", "EXCHANGE-8a"}) {
    if (std::find(more.begin(), more.end(), clause) == more.end()) more.emplace_back(clause);
  }
  return more;
}

std::vector<std::string> delivery_clauses() {
  return {"EXCHANGE-1a", "EXCHANGE-1b", "EXCHANGE-2a", "EXCHANGE-2b", "EXCHANGE-3a",
          "EXCHANGE-3b", "EXCHANGE-3c", "EXCHANGE-3d", "EXCHANGE-3f"};
}

std::vector<Values> exchange_cases(const GroupAxes& group, std::vector<Axis> more,
                                   Objection objection) {
  std::vector<Axis> axes = {{"ranks", group.ranks},         {"experts", group.experts},
                            {"top_k", group.top_k},         {"tokens", group.tokens},
                            {"share", group.share},         {"load", group.load},
                            {"placement", group.placement}, {"nodes", group.nodes}};
  axes.insert(axes.end(), more.begin(), more.end());
  axes.push_back({"seed", {"1"}});
  return pairwise(axes, [&](const Values& values) { return objection(values).empty(); });
}

}  // namespace dropless::conformance
