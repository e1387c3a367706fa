// SPDX-License-Identifier: Apache-2.0
// What is drawn: legal, small, the same for the same seed, and of every kind.
#include "fuzz/drawing.h"

#include <gtest/gtest.h>

#include "fuzz/labels.h"
#include "fuzz/simpler.h"
#include "tests/fuzz/in_process.h"

namespace dropless::fuzz {
namespace {

std::vector<CaseId> drawn(std::uint64_t seed, int count) {
  const rc::Gen<CaseId> any = any_case(all_families());
  rc::Random random(seed);
  std::vector<CaseId> cases;
  for (int i = 0; i < count; ++i) cases.push_back(any(random.split()).value());
  return cases;
}

TEST(Drawing, SameSeedSameCases) {
  EXPECT_EQ(drawn(7, 200), drawn(7, 200));
  EXPECT_NE(drawn(7, 200), drawn(8, 200));
}

TEST(Drawing, ALongerRunBeginsLikeAShorterOne) {
  const std::vector<CaseId> longer = drawn(3, 120), shorter = drawn(3, 40);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
}

TEST(Drawing, EveryCaseIsLegalAndFewAreLarge) {
  int beyond = 0;
  for (const CaseId& id : drawn(1, 3000)) {
    EXPECT_EQ(conformance::registry().resolve(id.text()), id) << id.text();
    const Family& family = *conformance::registry().find(id.family);
    bool large = false;
    for (const auto& parameter : family.parameters) {
      if (!is_size(parameter.name)) continue;
      const Index size = integer_of(id, parameter.name, 0);
      EXPECT_LE(size, std::max(beyond_16_bits, parameter.least + 12)) << id.text();
      large = large || size > std::max(largest_size, parameter.least + 12);
    }
    beyond += large ? 1 : 0;
  }
  EXPECT_GT(beyond, 0);
  EXPECT_LT(beyond, 100);
}

TEST(Drawing, SharesAreMetForAnySeed) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Tally tally;
    for (const CaseId& id : drawn(seed, 3000)) {
      tally.add(*conformance::registry().find(id.family), id);
    }
    for (const Requirement& requirement : requirements_for(all_families())) {
      EXPECT_TRUE(tally.meets(requirement))
          << requirement.label << ": " << tally.count(requirement.label) << " of "
          << tally.count(requirement.among) << ", required " << requirement.share;
      if (requirement.among != "cases") {
        EXPECT_GT(tally.count(requirement.label), 0) << requirement.label;
      }
    }
  }
}

TEST(Drawing, AFamilyWhoseValuesSeldomFitIsDrawnAllTheSame) {
  const auto* groups = conformance::registry().find("routing.groups");
  const rc::Gen<CaseId> any = any_case({groups});
  rc::Random random(5);
  std::set<std::string> seen;
  for (int i = 0; i < 50; ++i) seen.insert(any(random.split()).value().text());
  EXPECT_GT(seen.size(), 40u);
}

TEST(Simpler, EveryStepIsLegalAndTheWayDownEnds) {
  rc::Random random(11);
  const rc::Gen<CaseId> any = any_case(all_families());
  for (int i = 0; i < 60; ++i) {
    auto current = any(random.split());
    std::set<std::string> path;
    for (int step = 0;; ++step) {
      ASSERT_LT(step, 400) << current.value().text();
      ASSERT_TRUE(path.insert(current.value().text()).second) << current.value().text();
      auto candidates = current.shrinks();
      auto last = candidates.next();
      if (!last) break;
      EXPECT_EQ(conformance::registry().resolve(last->value().text()), last->value());
      // Not always the boldest one: the third leads over other ways.
      for (int skip = 0; skip < 2; ++skip) {
        if (auto next = candidates.next()) last = next;
      }
      current = *last;
    }
  }
}

TEST(Simpler, ReadsLists) {
  EXPECT_EQ(numbers_of("3.0.17"), (std::vector<Index>{3, 0, 17}));
  EXPECT_EQ(numbers_of("5"), (std::vector<Index>{5}));
  EXPECT_TRUE(numbers_of("balanced").empty());
  EXPECT_TRUE(numbers_of("").empty());
  EXPECT_TRUE(numbers_of("3..1").empty());
}

}  // namespace
}  // namespace dropless::fuzz
