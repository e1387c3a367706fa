// SPDX-License-Identifier: Apache-2.0
// From a case to its verdict, with tiny implementations: honest ones, liars and vandals.
#include "conformance/cases/case_run.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>

namespace dropless::conformance {
namespace {

// The operation under test: d_logits[i] = logits[i] + 1 (the meaning does not matter here).
using Args = dropless_z_loss_args;
using Entry = dropless_z_loss_backward_fn;

dropless_status answer(dropless_call* call, dropless_status status, const char* text) {
  std::strcpy(status == DROPLESS_OK ? call->path : call->message, text);
  return status;
}

void add_one(const Args* args, std::ptrdiff_t extra = 0) {
  const auto* in = static_cast<const float*>(args->logits->data);
  auto* out = static_cast<float*>(args->d_logits->data);
  for (std::ptrdiff_t i = 0; i < args->logits->shape[1] + extra; ++i) {
    out[i] = in[i < args->logits->shape[1] ? i : 0] + 1;
  }
}

dropless_status honest(void*, dropless_call* call, Args* args) {
  add_one(args);
  return answer(call, DROPLESS_OK, "fake/honest");
}

dropless_implementation with(Entry entry) {
  dropless_implementation implementation{};
  implementation.struct_size = sizeof implementation;
  implementation.contract_version = DROPLESS_CONTRACT_VERSION;
  implementation.z_loss_backward = entry;
  return implementation;
}

Family family_of(std::function<void(CaseRun&)> run) {
  Family family;
  family.name = "test.case";
  family.run = std::move(run);
  return family;
}

Verdict verdict_of(Entry entry, std::function<void(CaseRun&)> run) {
  return run_case(with(entry), family_of(std::move(run)), {"test.case", {}});
}

Args request(CaseRun& run) {
  const std::vector<double> values = {1, 2, 3, 4};
  auto args = make_args<Args>();
  args.logits = run.buffers().input("logits", DROPLESS_FP32, {1, 4}, values).tensor();
  return args;
}

void plus_one(CaseRun& run) {
  Args args = request(run);
  const Buffer& out = run.buffers().output("d_logits", DROPLESS_FP32, {1, 4});
  args.d_logits = out.tensor();
  run.perform("z_loss_backward", run.implementation().z_loss_backward, args);
  const std::vector<double> expected = {2, 3, 4, 5};
  run.judge().exact("ROUTING-15b", "d_logits", out, expected);
}

// The first failure, or the reason where there is none.
std::string clause_of(const Verdict& verdict) {
  return verdict.failures.empty() ? verdict.reason : verdict.failures.front().clause;
}

TEST(RunCase, HonestPasses) {
  const Verdict verdict = verdict_of(honest, plus_one);
  EXPECT_EQ(verdict.status, Status::pass) << verdict.reason;
  EXPECT_EQ(verdict.checks, 4);
  EXPECT_EQ(verdict.paths, (std::vector<std::string>{"fake/honest"}));
  EXPECT_TRUE(verdict.reason.empty());
}

TEST(RunCase, NullEntryIsNotSupported) {
  const Verdict verdict = verdict_of(nullptr, plus_one);
  EXPECT_EQ(verdict.status, Status::not_supported);
  EXPECT_NE(verdict.reason.find("z_loss_backward"), std::string::npos);
}

TEST(RunCase, AnOlderAndShorterTableIsNotSupported) {
  dropless_implementation implementation = with(honest);
  implementation.struct_size = offsetof(dropless_implementation, z_loss_forward);
  const Verdict verdict = run_case(implementation, family_of(plus_one), {"test.case", {}});
  EXPECT_EQ(verdict.status, Status::not_supported);
}

TEST(RunCase, SayingNoIsNotSupported) {
  const Verdict verdict =
      verdict_of([](void*, dropless_call* call,
                    Args*) { return answer(call, DROPLESS_NOT_SUPPORTED, "no kernel for E = 4"); },
                 plus_one);
  EXPECT_EQ(verdict.status, Status::not_supported);
  EXPECT_NE(verdict.reason.find("no kernel for E = 4"), std::string::npos);
}

TEST(RunCase, ClaimingOkWithoutWritingFails) {
  const Verdict verdict = verdict_of(
      [](void*, dropless_call* call, Args*) { return answer(call, DROPLESS_OK, "fake/liar"); },
      plus_one);
  EXPECT_EQ(verdict.status, Status::fail);
  EXPECT_EQ(clause_of(verdict), "ROUTING-15b");
  EXPECT_EQ(verdict.failed_checks, 4);
}

TEST(RunCase, WritingPastTheEndFails) {
  const Verdict verdict = verdict_of(
      [](void*, dropless_call* call, Args* args) {
        add_one(args, 1);
        return answer(call, DROPLESS_OK, "fake/vandal");
      },
      plus_one);
  EXPECT_EQ(verdict.status, Status::fail);
  EXPECT_EQ(clause_of(verdict), "GENERAL-0");
  EXPECT_EQ(verdict.failed_checks, 1);
}

TEST(RunCase, ChangingAnInputFails) {
  const Verdict verdict = verdict_of(
      [](void*, dropless_call* call, Args* args) {
        add_one(args);
        static_cast<float*>(args->logits->data)[2] = 0;
        return answer(call, DROPLESS_OK, "fake/vandal");
      },
      plus_one);
  EXPECT_EQ(verdict.status, Status::fail);
  EXPECT_EQ(clause_of(verdict), "GENERAL-0");
  EXPECT_NE(verdict.reason.find("logits"), std::string::npos);
}

TEST(RunCase, AnEmptyPathFails) {
  const Verdict verdict = verdict_of(
      [](void*, dropless_call*, Args* args) -> dropless_status {
        add_one(args);
        return DROPLESS_OK;
      },
      plus_one);
  EXPECT_EQ(verdict.status, Status::fail);
  EXPECT_EQ(clause_of(verdict), "GENERAL-0");
}

TEST(RunCase, AnErrorEndsTheCaseAndNeedsAMessage) {
  Verdict verdict =
      verdict_of([](void*, dropless_call* call,
                    Args*) { return answer(call, DROPLESS_INTERNAL_ERROR, "broken"); },
                 plus_one);
  EXPECT_EQ(verdict.status, Status::fail);
  EXPECT_EQ(clause_of(verdict), "GENERAL-1");
  EXPECT_NE(verdict.reason.find("broken"), std::string::npos);
  verdict = verdict_of(
      [](void*, dropless_call*, Args*) -> dropless_status { return DROPLESS_INTERNAL_ERROR; },
      plus_one);
  EXPECT_EQ(clause_of(verdict), "GENERAL-0");
}

TEST(RunCase, ATextWithoutEndFails) {
  const Verdict verdict = verdict_of(
      [](void*, dropless_call* call, Args* args) -> dropless_status {
        add_one(args);
        std::memset(call->path, 'x', sizeof call->path);
        return DROPLESS_OK;
      },
      plus_one);
  EXPECT_EQ(verdict.status, Status::fail);
  EXPECT_EQ(clause_of(verdict), "GENERAL-0");
}

TEST(RunCase, OutOfMemoryAndDeviceErrorsHaveTheirStatus) {
  const auto status_of = [](Entry entry) { return verdict_of(entry, plus_one).status; };
  EXPECT_EQ(status_of([](void*, dropless_call* call, Args*) {
              return answer(call, DROPLESS_OUT_OF_MEMORY, "too big");
            }),
            Status::resource);
  EXPECT_EQ(status_of([](void*, dropless_call* call, Args*) {
              return answer(call, DROPLESS_DEVICE_ERROR, "gone");
            }),
            Status::device_lost);
}

TEST(RunCase, ErrorsOfTheSuite) {
  EXPECT_EQ(verdict_of(honest, [](CaseRun&) { throw std::bad_alloc(); }).status, Status::resource);
  Verdict verdict = verdict_of(honest, [](CaseRun&) { throw std::logic_error("my mistake"); });
  EXPECT_EQ(verdict.status, Status::internal_error);
  EXPECT_EQ(verdict.reason, "my mistake");
  EXPECT_EQ(verdict_of(honest, [](CaseRun&) { throw 1; }).status, Status::internal_error);
  EXPECT_EQ(verdict_of(honest, [](CaseRun& run) { (void)run.word("rows"); }).status,
            Status::internal_error);
}

TEST(RunCase, ComparingNothingIsMistrusted) {
  const Verdict verdict = verdict_of(honest, [](CaseRun& run) {
    Args args = request(run);
    args.d_logits = run.buffers().output("d_logits", DROPLESS_FP32, {1, 4}).tensor();
    run.perform("z_loss_backward", run.implementation().z_loss_backward, args);
  });
  EXPECT_EQ(verdict.status, Status::mistrusted);
  EXPECT_EQ(verdict.reason, "nothing was compared");
}

TEST(RunCase, BlindDataIsMistrustedButAFailureOutweighsIt) {
  const auto blind = [](CaseRun& run) {
    run.judge().require(false, "logits differ");
    plus_one(run);
  };
  Verdict verdict = verdict_of(honest, blind);
  EXPECT_EQ(verdict.status, Status::mistrusted);
  EXPECT_NE(verdict.reason.find("logits differ"), std::string::npos);
  verdict = verdict_of(
      [](void*, dropless_call* call, Args*) { return answer(call, DROPLESS_OK, "fake/liar"); },
      blind);
  EXPECT_EQ(verdict.status, Status::fail);
}

// A control, then a request that must be refused.
void refusal(CaseRun& run) {
  Args args = request(run);
  args.d_logits = run.buffers().output("d_logits", DROPLESS_FP32, {1, 4}).tensor();
  run.perform("z_loss_backward", run.implementation().z_loss_backward, args);
  args.coeff = -1;
  run.refused("GENERAL-3", "a negative coefficient", "z_loss_backward",
              run.implementation().z_loss_backward, args);
}

template <dropless_status status, bool writes, bool speaks>
dropless_status refusing(void*, dropless_call* call, Args* args) {
  if (args->coeff >= 0) return honest(nullptr, call, args);
  if (writes) static_cast<float*>(args->d_logits->data)[1] = 7;
  return answer(call, status, speaks ? "negative coefficient" : "");
}

TEST(Refusals, NeedTheStatusAMessageAndUntouchedOutputs) {
  constexpr dropless_status invalid = DROPLESS_INVALID_ARGUMENT;
  EXPECT_EQ(verdict_of(refusing<invalid, false, true>, refusal).status, Status::pass);
  Verdict verdict = verdict_of(refusing<invalid, true, true>, refusal);
  EXPECT_EQ(verdict.status, Status::fail);
  EXPECT_EQ(clause_of(verdict), "GENERAL-3");
  verdict = verdict_of(refusing<invalid, false, false>, refusal);
  EXPECT_EQ(clause_of(verdict), "GENERAL-0");
  EXPECT_EQ(verdict_of(refusing<DROPLESS_INTERNAL_ERROR, false, true>, refusal).status,
            Status::fail);
  EXPECT_EQ(verdict_of(refusing<DROPLESS_NOT_SUPPORTED, false, true>, refusal).status,
            Status::fail);
  EXPECT_EQ(verdict_of(honest, refusal).status, Status::fail);
}

TEST(Workspace, IsGivenAsAskedFor) {
  const Entry needy = [](void*, dropless_call* call, Args* args) {
    if (call->workspace_bytes < 64) {
      call->workspace_required = 64;
      return answer(call, DROPLESS_WORKSPACE_TOO_SMALL, "64 bytes of workspace");
    }
    std::memset(call->workspace, 0, 64);
    return honest(nullptr, call, args);
  };
  EXPECT_EQ(verdict_of(needy, plus_one).status, Status::pass);
  const Entry greedy = [](void*, dropless_call* call, Args* args) {
    if (call->workspace_bytes == 0) {
      call->workspace_required = 64;
      return answer(call, DROPLESS_WORKSPACE_TOO_SMALL, "64 bytes of workspace");
    }
    std::memset(call->workspace, 0, 65);
    return honest(nullptr, call, args);
  };
  EXPECT_EQ(clause_of(verdict_of(greedy, plus_one)), "GENERAL-0");
}

TEST(Profile, DefaultsAreFilledIn) {
  const Verdict verdict = verdict_of(honest, [](CaseRun& run) {
    run.judge().holds("GENERAL-1", "profile",
                      run.profile().alignment == 1 && run.profile().gemm_alignment == 1, "1",
                      "something else");
  });
  EXPECT_EQ(verdict.status, Status::pass);
}

TEST(Streams, DependOnCaseAndNameOnly) {
  const dropless_implementation implementation = with(honest);
  const Family family = family_of(plus_one);
  CaseRun a(implementation, family, {"test.case", {{"k", "1"}}}, {});
  CaseRun b(implementation, family, {"test.case", {{"k", "2"}}}, {});
  const std::uint64_t first = a.random("x").bits();
  (void)a.random("y").bits();
  EXPECT_EQ(a.random("x").bits(), first);
  EXPECT_NE(a.random("y").bits(), first);
  EXPECT_NE(b.random("x").bits(), first);
}

TEST(Threads, ArePassedOn) {
  static int seen = 0;
  const Entry entry = [](void*, dropless_call* call, Args* args) {
    seen = seen * 10 + call->threads;
    return honest(nullptr, call, args);
  };
  RunOptions options;
  options.threads = 2;
  run_case(with(entry), family_of([](CaseRun& run) {
             Args args = request(run);
             args.d_logits = run.buffers().output("d_logits", DROPLESS_FP32, {1, 4}).tensor();
             const Entry call = run.implementation().z_loss_backward;
             run.perform("z_loss_backward", call, args);
             run.perform_with_threads(5, "z_loss_backward", call, args);
             run.perform("z_loss_backward", call, args);
           }),
           {"test.case", {}}, options);
  EXPECT_EQ(seen, 252);
}

}  // namespace
}  // namespace dropless::conformance
