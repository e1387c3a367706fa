// SPDX-License-Identifier: Apache-2.0
// The registry: definitions that it refuses, ids that it resolves, and what it answers otherwise.
#include "conformance/cases/family.h"

#include <gtest/gtest.h>

#include <set>

namespace dropless::conformance {
namespace {

Family valid() {
  Family family;
  family.name = "stage.question";
  family.purpose = "nothing";
  family.clauses = {"ROUTING-1a"};
  family.parameters = {{"dtype", {"fp32", "bf16"}, 0, 0, "format"}, {"rows", {}, -5, 300, "rows"}};
  family.select = [](Tier tier) -> std::vector<Values> {
    if (tier == Tier::full) return {};
    return {{{"rows", tier == Tier::smoke ? "1" : "2"}, {"dtype", "fp32"}}};
  };
  family.run = [](CaseRun&) {};
  return family;
}

template <class Change>
bool refused(Change change) {
  Registry registry;
  Family family = valid();
  change(family);
  try {
    registry.add(family);
  } catch (const std::logic_error&) {
    return true;
  }
  return false;
}

TEST(Registry, RefusesMalformedFamilies) {
  EXPECT_FALSE(refused([](Family&) {}));
  EXPECT_TRUE(refused([](Family& f) { f.name = "stage"; }));
  EXPECT_TRUE(refused([](Family& f) { f.name = "Stage.question"; }));
  EXPECT_TRUE(refused([](Family& f) { f.name = "stage."; }));
  EXPECT_TRUE(refused([](Family& f) { f.purpose.clear(); }));
  EXPECT_TRUE(refused([](Family& f) { f.clauses.clear(); }));
  EXPECT_TRUE(refused([](Family& f) { f.select = nullptr; }));
  EXPECT_TRUE(refused([](Family& f) { f.run = nullptr; }));
  EXPECT_TRUE(refused([](Family& f) { f.parameters[0].words[0] = "FP32"; }));
  EXPECT_TRUE(refused([](Family& f) { f.parameters[0].words[0] = "bf16"; }));
  EXPECT_TRUE(refused([](Family& f) { f.parameters[1].least = 301; }));
  EXPECT_TRUE(refused([](Family& f) { f.parameters[1].meaning.clear(); }));
  EXPECT_TRUE(refused([](Family& f) { f.parameters[1].name = "dtype"; }));
  Registry registry;
  registry.add(valid());
  EXPECT_THROW(registry.add(valid()), std::logic_error);
}

TEST(Registry, EveryFamilyCanNameTheClausesOfEveryCall) {
  Registry registry;
  registry.add(valid());
  EXPECT_EQ(registry.families()[0].clauses,
            (std::vector<std::string>{"ROUTING-1a", "GENERAL-0", "GENERAL-1"}));
}

TEST(Registry, ResolvesInTheOrderOfTheFamily) {
  Registry registry;
  registry.add(valid());
  EXPECT_EQ(registry.resolve("stage.question:rows=-5,dtype=bf16").text(),
            "stage.question:dtype=bf16,rows=-5");
}

TEST(Registry, SaysWhatIsAllowed) {
  Registry registry;
  registry.add(valid());
  const auto answer = [&](std::string_view text) -> std::string {
    try {
      (void)registry.resolve(text);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto says = [&](std::string_view text, std::string_view part) {
    EXPECT_NE(answer(text).find(part), std::string::npos) << text << " -> " << answer(text);
  };
  says("stage.question:dtype=fp32", "needs the key 'rows'");
  says("stage.question", "needs the key 'dtype'");
  says("stage.question:dtype=fp64,rows=1", "fp32, bf16");
  says("stage.question:dtype=fp32,rows=301", "-5..300");
  says("stage.question:dtype=fp32,rows=07", "-5..300");
  says("stage.question:dtype=fp32,rows=1x", "-5..300");
  says("stage.question:dtype=fp32,rows=99999999999999999999", "-5..300");
  says("stage.question:dtype=fp32,rows=1,model=x", "no key 'model': its keys are dtype rows");
  says("stage.answer:k=v", "stage stage has stage.question");
  says("other.answer", "the stages are stage");
}

TEST(Registry, ATierContainsTheOnesBelow) {
  Registry registry;
  registry.add(valid());
  ASSERT_EQ(registry.cases(Tier::smoke).size(), 1u);
  const std::vector<CaseId> standard = registry.cases(Tier::standard);
  ASSERT_EQ(standard.size(), 2u);
  EXPECT_EQ(standard[0].text(), "stage.question:dtype=fp32,rows=1");
  EXPECT_EQ(registry.cases(Tier::full), standard);
}

TEST(Registry, RefusesASelectionOutsideTheParameters) {
  Registry registry;
  Family family = valid();
  family.select = [](Tier) -> std::vector<Values> { return {{{"rows", "1"}}}; };
  registry.add(family);
  EXPECT_THROW((void)registry.cases(Tier::smoke), std::logic_error);
}

TEST(Tiers, HaveNames) {
  for (const Tier tier : {Tier::smoke, Tier::standard, Tier::full}) {
    EXPECT_EQ(tier_from(name(tier)), tier);
  }
  EXPECT_FALSE(tier_from("fast").has_value());
}

TEST(Suite, EveryCaseIdIsUniqueAndResolvesToItself) {
  const Registry& all = registry();
  EXPECT_FALSE(all.families().empty());
  std::set<std::string> seen;
  for (const CaseId& id : all.cases(Tier::full)) {
    EXPECT_TRUE(seen.insert(id.text()).second) << id.text();
    EXPECT_EQ(all.resolve(id.text()), id);
  }
}

}  // namespace
}  // namespace dropless::conformance
