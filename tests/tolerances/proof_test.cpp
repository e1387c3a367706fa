// SPDX-License-Identifier: Apache-2.0
// The gates of all bounds: legal computations pass, faults fail, and a wrong factor turns them red.
#include "tests/tolerances/measure/proof.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace dropless::tolerances {
namespace {

std::string derivations() {
  std::ifstream file(DROPLESS_DERIVATIONS);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The text under a heading, up to the next one.
std::string section(const std::string& text, const std::string& heading) {
  for (const std::string marks : {"## ", "### "}) {
    const std::size_t at = text.find("\n" + marks + heading + "\n");
    if (at != std::string::npos) return text.substr(at, text.find("\n##", at + 1) - at);
  }
  return "";
}

TEST(Proof, EveryBoundStandsBetweenLegalResultsAndTheFaultOfItsSize) {
  for (const Proof& proof : all_proofs()) {
    const Gate gate = proof.measure(1);
    EXPECT_TRUE(gate.passed()) << proof.bound << ": " << gate.complaints();
    EXPECT_LE(gate.honest(), 1) << proof.bound;
    EXPECT_TRUE(gate.sees(proof.size_class)) << proof.bound << ": " << proof.size_class;
    EXPECT_EQ(gate.bound(), proof.bound);
  }
}

TEST(Proof, AWrongFactorTurnsItRed) {
  for (const Proof& proof : all_proofs()) {
    if (proof.too_tight > 0) {
      EXPECT_FALSE(proof.measure(proof.too_tight).passed()) << proof.bound;
    }
    if (proof.too_loose > 0) {
      EXPECT_FALSE(proof.measure(proof.too_loose).passed()) << proof.bound;
    }
    EXPECT_TRUE((proof.too_tight > 0 && proof.too_loose > 0) || !proof.because.empty())
        << proof.bound;
  }
}

TEST(Proof, TheDerivationNamesTheFaultOfItsSize) {
  const std::string text = derivations();
  for (const Proof& proof : all_proofs()) {
    const std::string under = section(text, proof.anchor);
    EXPECT_FALSE(under.empty()) << proof.anchor;
    EXPECT_NE(under.find("`" + proof.size_class + "`"), std::string::npos)
        << proof.bound << ": " << proof.anchor << " does not name " << proof.size_class;
  }
}

TEST(Proof, NoBoundTwice) {
  std::set<std::string> names;
  for (const Proof& proof : all_proofs()) EXPECT_TRUE(names.insert(proof.bound).second);
  EXPECT_GE(names.size(), 50u);
}

}  // namespace
}  // namespace dropless::tolerances
