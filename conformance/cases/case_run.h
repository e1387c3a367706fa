// SPDX-License-Identifier: Apache-2.0
// What a case sees while it runs: its parameters, deterministic random numbers, buffers, the code
// under test and the judge.
//
//     void run_bijection(CaseRun& run) {
//       const Index rows = run.integer("rows");
//       Random random = run.random("ids");
//       Buffer& ids = run.buffers().input("ids", DROPLESS_I32, {tokens, top_k}, id_values);
//       Buffer& row_map = run.buffers().output("row_map", DROPLESS_I64, {tokens, top_k});
//       auto args = make_args<dropless_permute_plan_args>();
//       args.ids = ids.tensor(), args.row_map = row_map.tensor();
//       run.perform("permute_plan", run.implementation().permute_plan, args);   // must succeed
//       run.judge().exact("PERMUTATION-2", "row_map", row_map, plan.row_map);
//     }
#pragma once

#include <dropless/contract.h>

#include <string>
#include <string_view>

#include "conformance/cases/family.h"
#include "conformance/cases/models.h"
#include "conformance/cases/phase.h"
#include "conformance/cases/random.h"
#include "conformance/judge/buffers.h"
#include "conformance/judge/judge.h"

namespace dropless::conformance {

// Thrown by perform/request when the operation is not offered or answers NOT_SUPPORTED.
struct NotSupported {
  std::string reason;
};
// Thrown when a call that had to succeed did not: the case ends there (the failure is recorded).
struct CaseEnded {};

template <class Args>
Args make_args() {
  Args args{};
  args.struct_size = sizeof(Args);
  args.struct_version = DROPLESS_STRUCT_VERSION;
  return args;
}

struct RunOptions {
  int threads = 1;  // dropless_call::threads
};

class CaseRun {
 public:
  CaseRun(const dropless_implementation& implementation, const Family& family, const CaseId& id,
          const RunOptions& options);

  [[nodiscard]] Index integer(std::string_view parameter) const;
  [[nodiscard]] const std::string& word(std::string_view parameter) const;
  [[nodiscard]] bool has(std::string_view parameter) const;
  [[nodiscard]] const CaseId& id() const { return id_; }

  // Independent of any other stream and of the order of calls: a function of (case id, name).
  [[nodiscard]] Random random(std::string_view stream) const;
  // The published model named by the parameter "model".
  [[nodiscard]] const Model& model() const;

  [[nodiscard]] const dropless_implementation& implementation() const { return implementation_; }
  [[nodiscard]] const dropless_profile& profile() const { return profile_; }  // defaults filled in
  Buffers& buffers() { return buffers_; }
  Judge& judge() { return judge_; }

  // Calls an operation that must succeed. Records the path, checks canaries and inputs (GENERAL-0),
  // judges the status under `clause`, and ends the case when it is not OK.
  template <class Args>
  void perform(std::string_view operation, dropless_status (*entry)(void*, dropless_call*, Args*),
               Args& args, std::string_view clause = "GENERAL-1") {
    const dropless_status status = request(operation, entry, args);
    demand_ok(operation, status, clause);
  }
  // The same with another number of threads than the run's own.
  template <class Args>
  void perform_with_threads(int threads, std::string_view operation,
                            dropless_status (*entry)(void*, dropless_call*, Args*), Args& args) {
    const int kept = options_.threads;
    options_.threads = threads;
    const dropless_status status = request(operation, entry, args);
    options_.threads = kept;
    demand_ok(operation, status, "GENERAL-1");
  }

  // Calls an operation and returns its status (for refusals).
  template <class Args>
  dropless_status request(std::string_view operation,
                          dropless_status (*entry)(void*, dropless_call*, Args*), Args& args) {
    const dropless_status status = call(operation, entry, args);
    if (status == DROPLESS_NOT_SUPPORTED) throw NotSupported{said(operation)};
    return status;
  }
  // A refusal: status must be INVALID_ARGUMENT with a message, outputs untouched. NOT_SUPPORTED is
  // a failure once the operation has succeeded in this case, so let a control come first.
  template <class Args>
  void refused(std::string_view clause, std::string_view why, std::string_view operation,
               dropless_status (*entry)(void*, dropless_call*, Args*), Args& args) {
    const std::vector<std::vector<std::uint8_t>> before = output_bytes();
    const dropless_status status = call(operation, entry, args);
    judge_refusal(clause, why, operation, status, before);
  }
  [[nodiscard]] std::string_view last_message() const { return message_; }
  [[nodiscard]] const std::vector<std::string>& paths() const { return paths_; }

 private:
  // One call, repeated with a workspace when the operation asks for one.
  template <class Args>
  dropless_status call(std::string_view operation,
                       dropless_status (*entry)(void*, dropless_call*, Args*), Args& args) {
    if (entry == nullptr) throw NotSupported{not_offered(operation)};
    dropless_call record = begin_call();
    announce_phase(operation);  // so that a crash or a hang has a name
    dropless_status status = entry(implementation_.context, &record, &args);
    if (status == DROPLESS_WORKSPACE_TOO_SMALL && add_workspace(record)) {
      status = entry(implementation_.context, &record, &args);
    }
    if (status == DROPLESS_OK) status = settle(record);
    announce_phase("");
    end_call(operation, record, status);
    return status;
  }

  // Waits for work on a device and fetches a deferred refusal (GENERAL-3).
  dropless_status settle(dropless_call& call) const;
  static std::string not_offered(std::string_view operation);
  [[nodiscard]] std::string said(std::string_view operation) const;
  [[nodiscard]] dropless_call begin_call() const;
  bool add_workspace(dropless_call& call);
  void end_call(std::string_view operation, const dropless_call& call, dropless_status status);
  void demand_ok(std::string_view operation, dropless_status status, std::string_view clause);
  void judge_refusal(std::string_view clause, std::string_view why, std::string_view operation,
                     dropless_status status, const std::vector<std::vector<std::uint8_t>>& before);
  [[nodiscard]] std::vector<std::vector<std::uint8_t>> output_bytes() const;

  dropless_implementation implementation_;  // copied, missing trailing entries null
  dropless_profile profile_;
  const Family& family_;
  CaseId id_;
  RunOptions options_;
  Buffers buffers_;
  Judge judge_;
  std::string message_;
  std::vector<std::string> paths_;
  std::vector<std::string> reported_damage_;
  std::vector<std::string> succeeded_;  // operations that have returned OK in this case
};

// Runs one case to its verdict; never throws.
Verdict run_case(const dropless_implementation& implementation, const Family& family,
                 const CaseId& id, const RunOptions& options = {});

}  // namespace dropless::conformance
