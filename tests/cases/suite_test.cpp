// SPDX-License-Identifier: Apache-2.0
// The smoke cases of all stages against three implementations: the reference passes, one without
// operations is reported as such, and one that claims success without doing anything passes
// nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "conformance/ranks/in_process.h"
#include "reference/implementation.h"

namespace dropless::conformance {
namespace {

template <class Args>
dropless_status claim_success(void*, dropless_call* call, Args*) {
  std::strcpy(call->path, "liar");
  return DROPLESS_OK;
}

dropless_implementation empty_table() {
  dropless_implementation table{};
  table.struct_size = sizeof table;
  table.contract_version = DROPLESS_CONTRACT_VERSION;
  return table;
}

dropless_implementation liar() {
  dropless_implementation table = empty_table();
#define CLAIM_SUCCESS(name, args) table.name = claim_success<args>;
  DROPLESS_OPERATIONS(CLAIM_SUCCESS)
#undef CLAIM_SUCCESS
  return table;
}

std::string stage_of(const CaseId& id) {
  return registry().find(id.family)->stage();
}

std::set<std::string> stages() {
  std::set<std::string> all;
  for (const CaseId& id : registry().cases(Tier::smoke)) all.insert(stage_of(id));
  return all;
}

class Suite : public testing::TestWithParam<std::string> {};

template <class Check>
void each_smoke_case(const dropless_implementation& implementation, Check check) {
  for (const CaseId& id : registry().cases(Tier::smoke)) {
    if (stage_of(id) != Suite::GetParam()) continue;
    const Verdict verdict = run_in_process(implementation, *registry().find(id.family), id);
    check(id.text(), verdict);
    EXPECT_EQ(verdict.reason.empty(), verdict.status == Status::pass) << id.text();
  }
}

TEST_P(Suite, TheReferencePasses) {
  each_smoke_case(reference::implementation(), [](const std::string& id, const Verdict& verdict) {
    EXPECT_EQ(verdict.status, Status::pass) << id << ": " << verdict.reason;
    EXPECT_GT(verdict.checks, 0) << id;
    EXPECT_FALSE(verdict.paths.empty()) << id;
  });
}

TEST_P(Suite, NothingOfferedIsNotSupported) {
  each_smoke_case(empty_table(), [](const std::string& id, const Verdict& verdict) {
    EXPECT_EQ(verdict.status, Status::not_supported) << id << ": " << verdict.reason;
  });
}

TEST_P(Suite, ClaimingSuccessPassesNothing) {
  each_smoke_case(liar(), [](const std::string& id, const Verdict& verdict) {
    // Where there is nothing to do, doing nothing is right.
    if (id.starts_with("mxfp8.no_elements:") || id.starts_with("grouped_gemm.nothing:")) return;
    EXPECT_EQ(verdict.status, Status::fail) << id << ": " << verdict.reason;
    EXPECT_FALSE(verdict.failures.empty()) << id;
    const Family* family = registry().find(id.substr(0, id.find(':')));
    for (const Failure& failure : verdict.failures) {  // a family announces what it can name
      EXPECT_NE(std::find(family->clauses.begin(), family->clauses.end(), failure.clause),
                family->clauses.end())
          << id << " names " << failure.clause;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stage, Suite, testing::ValuesIn(stages()),
                         [](const auto& stage) { return stage.param; });

}  // namespace
}  // namespace dropless::conformance
