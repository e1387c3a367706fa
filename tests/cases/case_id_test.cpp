// SPDX-License-Identifier: Apache-2.0
// Case ids: text and back, and what the grammar refuses.
#include "conformance/cases/case_id.h"

#include <gtest/gtest.h>

namespace dropless::conformance {
namespace {

std::string refusal(std::string_view text) {
  try {
    parse_case_id(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CaseId, RoundTrips) {
  for (const char* text :
       {"routing.empty", "grouped_gemm.wgrad:model=deepseek-v3,rows=257,eps=1e-20,x=+1.5",
        "a.b:k=v"}) {
    EXPECT_EQ(parse_case_id(text).text(), text);
    EXPECT_EQ(parse_case_id(parse_case_id(text).text()), parse_case_id(text));
  }
}

TEST(CaseId, KeepsTheOrderOfKeys) {
  const CaseId id = parse_case_id("s.f:b=2,a=1");
  ASSERT_EQ(id.values.size(), 2u);
  EXPECT_EQ(id.values[0].first, "b");
  EXPECT_EQ(id.values[1].second, "1");
}

TEST(CaseId, RefusesWhatIsOutsideTheGrammar) {
  for (const char* text : {"", "Upper.case", "s.f:", "s.f:k", "s.f:k=", "s.f:=v", "s.f:k=v,",
                           "s.f:k=v,,l=w", "s.f:K=v", "s.f:k=V", "s.f:k=a b", "s.f:k=a=b", "s f",
                           "s.f:k=\n", "s-f:k=v", "s.f:k-x=v"}) {
    EXPECT_NE(refusal(text), "accepted") << text;
  }
}

TEST(CaseId, NamesTheKeyThatIsGivenTwice) {
  EXPECT_NE(refusal("s.f:rows=1,rows=2").find("'rows' is given twice"), std::string::npos);
}

TEST(CaseId, EndsAt1024Bytes) {
  const std::string longest = "s.f:k=" + std::string(1018, 'v');
  EXPECT_EQ(parse_case_id(longest).text().size(), 1024u);
  EXPECT_NE(refusal(longest + "v").find("1025 bytes"), std::string::npos);
}

}  // namespace
}  // namespace dropless::conformance
