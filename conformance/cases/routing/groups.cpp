// SPDX-License-Identifier: Apache-2.0
// Routing cases of group-limited selection.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "conformance/cases/routing/setup.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// No bias, one of both signs, or one that makes every compared value negative.
std::vector<double> bias_of_kind(std::string_view kind, const dropless_route_settings& settings,
                                 Random& random) {
  if (kind == "none") return {};
  std::vector<double> bias = matching_bias(settings, random);
  if (kind == "negative") {
    for (double& b : bias) b = tolerances::round_to(DROPLESS_FP32, b - 4);
  }
  return bias;
}

// ROUTING-4a, whichever groups were kept: the experts of a token lie in no more of them than that.
void judge_kept_groups(CaseRun& run, const RoutingData& data, const RouteCall& call) {
  const std::vector<Index> ids = call.ids->integers();
  const Index size = data.experts() / data.settings.num_groups;
  for (Index t = 0; t < data.tokens; ++t) {
    const auto row = std::span(ids).subspan(at(t * data.top_k()), at(data.top_k()));
    std::set<Index> groups;
    for (const Index id : row) groups.insert(id / size);
    const auto used = static_cast<Index>(groups.size());
    run.judge().holds("ROUTING-4a", "groups of the selected experts",
                      used <= data.settings.kept_groups,
                      fmt::format("at most {}", data.settings.kept_groups),
                      fmt::format("{}: experts {}", used, list_of(row)), fmt::format("[{}]", t));
  }
}

void run_groups(CaseRun& run) {
  Random random = run.random("data");
  const Index groups = run.integer("groups"), size = run.integer("group_size");
  RoutingData data;
  data.settings = route_settings(groups * size, run.integer("top_k"), run.word("score"), false);
  data.settings.num_groups = groups;
  data.settings.kept_groups = run.integer("kept");
  const bool summed = run.word("group_score") == "top_sum";
  data.settings.group_score = summed ? DROPLESS_GROUP_SCORE_TOP_SUM : DROPLESS_GROUP_SCORE_MAX;
  data.tokens = 65;
  const Index width = std::min(group_width(data.settings, run.profile()), size);
  const bool limited = data.settings.kept_groups < groups && size > 1;
  bool matters = false, differ = false;
  // Where few selections change for most draws, others are drawn, and another bias with them: one
  // that is larger than all differences of scores decides alone.
  for (int attempt = 0; attempt < 40 && !(matters && differ); ++attempt) {
    data.bias = bias_of_kind(run.word("bias"), data.settings, random);
    draw_clear_rows(run, data, normal_row(data, random, 1.5));
    RoutingData other = data;
    other.settings.num_groups = other.settings.kept_groups = 1;
    matters = !limited || share_of_other_selections(run, data, other) > 0.25;
    other = data;
    other.settings.group_score = summed ? DROPLESS_GROUP_SCORE_MAX : DROPLESS_GROUP_SCORE_TOP_SUM;
    // Ids are compared exactly: four tokens of 65 show it, and sums of two are seldom more telling.
    differ =
        !limited || !summed || width == 1 || share_of_other_selections(run, data, other) > 0.05;
  }
  run.judge().require(matters, "the group limit changes selections");
  run.judge().require(differ, "maximum and sum keep different groups");
  RouteCall call(run, data);
  call.perform();
  judge_kept_groups(run, data, call);
  judge_route(run, data, call, {.set = summed ? "ROUTING-4c" : "ROUTING-4b"});
}

std::string objection(const Values& values) {
  const auto number = [&](const char* key) { return std::stoll(value_of(values, key)); };
  const Index groups = number("groups"), size = number("group_size");
  const Index kept = number("kept"), top_k = number("top_k");
  if (kept > groups) return "kept must not exceed groups";
  if (top_k > kept * size) return "top_k must not exceed the experts of the kept groups";
  if (value_of(values, "group_score") == "top_sum" && top_k % kept != 0) {
    return "top_k must be a multiple of kept for top_sum";
  }
  if (groups * size > 512) return "more than 512 experts";
  if (kept == groups || size == 1) return "";
  // Groups that an unlimited top-k would meet: the limit must have something to forbid.
  const double met =
      static_cast<double>(groups) *
      (1 - std::pow(1 - 1 / static_cast<double>(groups), static_cast<double>(top_k)));
  return met >= static_cast<double>(kept) + 0.6
             ? ""
             : "so many kept groups hardly ever change a selection of so few experts";
}

Values group_case(const char* score, const char* group_score, const char* groups, const char* size,
                  const char* kept, const char* top_k, const char* bias) {
  return {{"score", score},   {"group_score", group_score},
          {"groups", groups}, {"group_size", size},
          {"kept", kept},     {"top_k", top_k},
          {"bias", bias}};
}

Family groups_family() {
  Family family;
  family.name = "routing.groups";
  family.purpose =
      "Group-limited routing keeps the right groups and never leaves them, also where compared "
      "values are negative or groups are small; ties between groups are left to routing.ties";
  family.clauses = {"ROUTING-1e", "ROUTING-2b", "ROUTING-4a", "ROUTING-4b", "ROUTING-4c",
                    "ROUTING-5a", "ROUTING-5d", "ROUTING-6a", "ROUTING-6c", "ROUTING-10"};
  family.parameters = {
      word_parameter("score", {"softmax", "sigmoid", "sqrt_softplus"}, "score function"),
      word_parameter("group_score", {"top_sum", "max"}, "score of a group"),
      integer_parameter("groups", 2, 64, "number of groups"),
      integer_parameter("group_size", 1, 64, "experts of a group"),
      integer_parameter("kept", 1, 64, "groups in which experts are selected"),
      integer_parameter("top_k", 1, 64, "selected experts, divisible by kept for top_sum"),
      word_parameter("bias", {"none", "mixed", "negative"}, "expert bias")};
  family.select =
      tiers({group_case("sigmoid", "top_sum", "8", "8", "4", "8", "negative"),
             group_case("softmax", "max", "8", "8", "3", "6", "none")},
            {group_case("sigmoid", "top_sum", "4", "16", "2", "8", "mixed"),       // w = 4
             group_case("sqrt_softplus", "top_sum", "8", "4", "2", "8", "none"),   // K = all kept
             group_case("softmax", "top_sum", "8", "4", "1", "3", "negative"),     // one group kept
             group_case("sigmoid", "top_sum", "4", "4", "4", "4", "mixed"),        // all kept
             group_case("sqrt_softplus", "top_sum", "8", "1", "4", "4", "mixed"),  // groups of one
             group_case("sigmoid", "max", "16", "4", "4", "7", "negative"),
             group_case("softmax", "top_sum", "16", "4", "4", "8", "mixed"),
             group_case("sqrt_softplus", "max", "2", "3", "1", "3", "negative")});
  family.run = run_groups;
  family.objection = objection;
  return family;
}

}  // namespace

void add_routing_groups(Registry& registry) {
  registry.add(groups_family());
}

}  // namespace dropless::conformance
