// SPDX-License-Identifier: Apache-2.0
// Wrong use: one line that names the thing and what to do, exit code 2, and nothing else happens.
#include <filesystem>

#include "tests/runner/tool.h"

namespace dropless::runner_tests {
namespace {

struct Wrong {
  const char* name;
  std::vector<std::string> arguments;
  std::vector<std::string> named;
};

class WrongUse : public testing::TestWithParam<Wrong> {
 protected:
  Tool tool;
};

TEST_P(WrongUse, IsOneLineWithARemedy) {
  EXPECT_TRUE(is_usage_error(tool.run(GetParam().arguments), GetParam().named));
  EXPECT_FALSE(std::filesystem::exists(tool.path("dropless-results")));
}

const std::string huge = "99999999999999999999";
const std::string good = "permutation.refusals:what=duplicate_id";

INSTANTIATE_TEST_SUITE_P(
    Runner, WrongUse,
    testing::Values(
        Wrong{"nothing", {}, {"--help"}},
        Wrong{"unknown_command", {"frobnicate"}, {"'frobnicate'", "gate, run, list"}},
        Wrong{"unknown_option", {"run", "--frobnicate"}, {"--frobnicate", "dropless run --help"}},
        Wrong{"unknown_family", {"run", "nosuch.family:a=1"}, {"nosuch.family", "permutation"}},
        Wrong{"unknown_key", {"run", good + ",color=red"}, {"color", "what"}},
        Wrong{"unknown_value", {"run", "permutation.refusals:what=mood"}, {"what=mood"}},
        Wrong{"missing_key", {"run", "permutation.copy:seed=1"}, {"model"}},
        Wrong{"malformed_id", {"run", "permutation.refusals:what"}, {"'what'", "key=value"}},
        Wrong{"strange_id", {"run", "per mutation"}, {"per mutation"}},
        Wrong{"unknown_load",
              {"run", "permutation.plan:model=mixtral-8x7b,divisor=64,tokens=5,load=heavy,seed=1"},
              {"load=heavy", "one_hot"}},
        Wrong{"overflowing_size",
              {"run", "permutation.plan:model=mixtral-8x7b,divisor=64,tokens=" + huge +
                          ",load=zipf,seed=1"},
              {"tokens=" + huge}},
        Wrong{"empty_filter", {"run", "--filter", "nothing*"}, {"nothing*", "no case"}},
        Wrong{"filter_without_star", {"run", "--filter", "quantize"}, {"'*quantize*'"}},
        Wrong{"unknown_stage", {"run", "--stage", "cooking"}, {"'cooking'", "routing"}},
        Wrong{"unknown_model", {"run", "--model", "gpt-7"}, {"'gpt-7'", "deepseek-v3"}},
        Wrong{"unknown_clause",
              {"run", "--clause", "ROUTING-99"},
              {"'ROUTING-99'", "list --clauses"}},
        Wrong{"unknown_tier", {"run", "--tier", "huge"}, {"'huge'", "smoke, standard or full"}},
        Wrong{"shard_too_far", {"run", "--shard", "3/2"}, {"'3/2'", "1/4"}},
        Wrong{"shard_zero", {"run", "--shard", "0/2"}, {"'0/2'"}},
        Wrong{"shard_of_none", {"run", "--shard", "1/0"}, {"'1/0'"}},
        Wrong{"shard_text", {"run", "--shard", "1/2/3"}, {"'1/2/3'"}},
        Wrong{"shard_overflow", {"run", "--shard", "1/" + huge}, {huge}},
        Wrong{"shard_empty", {"run", good, "--shard", "2/2"}, {"2/2", "fewer shards"}},
        Wrong{"ranks_zero", {"run", "--ranks", "0"}, {"--ranks", "'0'"}},
        Wrong{"ranks_text", {"run", "--ranks", "two"}, {"--ranks", "'two'"}},
        Wrong{"ranks_many", {"gate", "--ranks", "1025"}, {"--ranks", "1025"}},
        Wrong{"ranks_overflow", {"run", "--ranks", huge}, {huge}},
        Wrong{"jobs_zero", {"run", "--jobs", "0"}, {"--jobs", "1 to 1024"}},
        Wrong{"threads_overflow", {"run", "--threads", huge}, {"--threads", huge}},
        Wrong{"timeout_zero", {"run", "--timeout", "0"}, {"--timeout", "'0'"}},
        Wrong{"timeout_nan", {"run", "--timeout", "nan"}, {"--timeout", "'nan'"}},
        Wrong{"timeout_overflow", {"run", "--timeout", "1e300"}, {"--timeout", "1e300"}},
        Wrong{"memory_overflow", {"run", "--memory", huge}, {"--memory", huge}},
        Wrong{"missing_batch", {"run", "--batch", "nowhere.txt"}, {"nowhere.txt"}},
        Wrong{"missing_models", {"run", "--models", "nowhere.json"}, {"nowhere.json"}},
        Wrong{"unknown_clause_explained", {"explain", "MXFP8-99"}, {"'MXFP8-99'"}},
        Wrong{"unknown_thing_explained", {"explain", "cooking"}, {"'cooking'"}},
        Wrong{"list_two_things", {"list", "--count", "--clauses"}, {"--count", "--clauses"}}),
    [](const auto& row) { return std::string(row.param.name); });

class Use : public testing::Test {
 protected:
  std::vector<std::string> list(std::vector<std::string> more) {
    more.insert(more.begin(), "list");
    const Ran ran = tool.run(more);
    EXPECT_EQ(ran.code, 0) << ran;
    std::istringstream lines(ran.out);
    std::vector<std::string> ids;
    for (std::string line; std::getline(lines, line);) ids.push_back(line);
    return ids;
  }
  Tool tool;
};

TEST_F(Use, ShardsArePartsOfTheWhole) {
  const auto whole = list({"--tier", "smoke"});
  std::vector<std::string> parts;
  for (const char* shard : {"1/3", "2/3", "3/3"}) {
    const auto part = list({"--tier", "smoke", "--shard", shard});
    parts.insert(parts.end(), part.begin(), part.end());
  }
  auto sorted = whole;
  std::sort(sorted.begin(), sorted.end());
  std::sort(parts.begin(), parts.end());
  EXPECT_EQ(parts, sorted);
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
}

TEST_F(Use, HigherTiersContainTheLowerOnes) {
  const auto smoke = list({"--tier", "smoke"});
  const auto standard = list({"--tier", "standard"});
  for (const std::string& id : smoke) {
    EXPECT_NE(std::find(standard.begin(), standard.end(), id), standard.end()) << id;
  }
}

TEST_F(Use, WishesNarrowTheChoice) {
  for (const auto& id : list({"--stage", "mxfp8"})) EXPECT_TRUE(id.starts_with("mxfp8."));
  for (const auto& id : list({"--model", "mixtral-8x7b"})) {
    EXPECT_NE(id.find("model=mixtral-8x7b"), std::string::npos);
  }
  const auto both = list({"--filter", "*load=zipf*", "--filter", "*load=one_hot*"});
  for (const auto& id : both) {
    EXPECT_TRUE(id.find("load=zipf") != std::string::npos ||
                id.find("load=one_hot") != std::string::npos);
  }
  EXPECT_LT(both.size(), list({}).size());
}

TEST_F(Use, AnOptionTakesOneValueAndLeavesTheIdsAlone) {
  EXPECT_EQ(list({"--stage", "permutation", good}), std::vector<std::string>{good});
  EXPECT_EQ(list({good, "--filter", "*"}), std::vector<std::string>{good});
}

TEST_F(Use, ABatchNamesCasesAndFamilies) {
  write(tool.path("batch.txt"), "# a comment\n\n  " + good + "  # another\npermutation.refusals\n");
  EXPECT_EQ(list({"--batch", "batch.txt"}), list({"permutation.refusals"}).size() > 1
                                                ? list({good, "permutation.refusals"})
                                                : std::vector<std::string>{});
  write(tool.path("batch.txt"), "# nothing\n\nnosuch.family\n");
  EXPECT_TRUE(is_usage_error(tool.run({"run", "--batch", "batch.txt"}),
                             {"batch.txt, line 3", "nosuch.family"}));
  write(tool.path("batch.txt"), "# nothing\n");
  EXPECT_TRUE(is_usage_error(tool.run({"run", "--batch", "batch.txt"}), {"names no case"}));
}

TEST_F(Use, ExplainKnowsClausesFamiliesAndCases) {
  const Ran clause = tool.run({"explain", "MXFP8-2"});
  EXPECT_EQ(clause.code, 0);
  EXPECT_NE(clause.out.find("mxfp8."), std::string::npos) << clause;
  const Ran family = tool.run({"explain", "permutation.plan"});
  EXPECT_NE(family.out.find("PERMUTATION-1a"), std::string::npos) << family;
  EXPECT_NE(family.out.find("tokens"), std::string::npos) << family;
  const Ran one = tool.run({"explain", good});
  EXPECT_NE(one.out.find("reproduce: dropless run '" + good + "'"), std::string::npos) << one;
}

TEST_F(Use, RanksAreForCasesOverRanks) {
  EXPECT_TRUE(is_usage_error(tool.run({"run", good, "--ranks", "1"}), {"no cases over ranks"}));
}

TEST_F(Use, CountsAddUp) {
  const Ran ran = tool.run({"list", "--count"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_NE(ran.out.find("standard"), std::string::npos);
  const std::string all = ran.out.substr(ran.out.rfind("\nall") + 4);
  EXPECT_EQ(std::stoul(all), list({"--tier", "smoke"}).size());
}

}  // namespace
}  // namespace dropless::runner_tests
