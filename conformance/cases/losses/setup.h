// SPDX-License-Identifier: Apache-2.0
// What the loss cases share: inputs, calls, expectations with their errors.
//
//     const ZData data = ...;
//     LossCall call = loss_call(run, data, Direction::backward);
//     call.perform();
//     judge_loss(run, call, expected_loss(run, data), rows, {"ROUTING-15a", "ROUTING-15b", ...});
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "conformance/cases/routing/setup.h"
#include "reference/losses.h"

namespace dropless::conformance {

enum class Direction { forward, backward };
Parameter direction_parameter();
Direction direction_of(const CaseRun& run);

struct BalanceData {
  RoutingData routing;     // settings, logits, mask
  std::vector<Index> ids;  // [T,K]
  double coeff = 0.0625, d_loss = 0.75;
  int scope = DROPLESS_SCOPE_MICRO_BATCH;
  std::vector<Index> boundaries;      // [S+1], scope sequence
  std::vector<Index> earlier_counts;  // [E], scope global
  Index earlier_tokens = 0;           // scope global
};

struct ZData {
  RoutingData routing;  // E, logits, mask
  double coeff = 0.0625, d_loss = 0.75;
};

struct CrossEntropyData {
  Index tokens = 0, vocabulary = 0;
  dropless_dtype dtype = DROPLESS_FP32, labels_dtype = DROPLESS_I64;
  std::vector<double> logits;  // [T,V]
  std::vector<Index> labels;   // [T]
  double d_loss = 0.75;
};

// One call, of any of the three losses, in one direction. The data must outlive it.
struct LossCall {
  std::function<void(int threads)> perform_with;  // 0: the threads of the run
  std::function<void(std::string_view why)> refused;
  Buffer* loss = nullptr;                // forward
  Buffer* d_logits = nullptr;            // backward
  Buffer* accumulated_counts = nullptr;  // balance loss, scope global
  Buffer* accumulated_tokens = nullptr;

  void perform() { perform_with(0); }
};
LossCall loss_call(CaseRun& run, const BalanceData& data, Direction direction,
                   const RouteStyle& style = {});
LossCall loss_call(CaseRun& run, const ZData& data, Direction direction,
                   const RouteStyle& style = {});
LossCall loss_call(CaseRun& run, const CrossEntropyData& data, Direction direction,
                   const RouteStyle& style = {});

// What the reference gives, with absolute errors.
struct ExpectedLoss {
  double value = 0, error = 0;
  std::vector<double> gradient, gradient_errors;
};
ExpectedLoss expected_loss(const CaseRun& run, const BalanceData& data);
ExpectedLoss expected_loss(const CaseRun& run, const ZData& data);
ExpectedLoss expected_loss(const CaseRun& run, const CrossEntropyData& data);

reference::BalanceInput reference_input(const BalanceData& data);
std::vector<bool> unmasked_rows(const RoutingData& data);
Index count_of(const std::vector<bool>& rows);

// rows: [T] tokens in scope. Their gradient is judged under `gradient`, that of the others as exact
// zeros under `rest`.
struct LossClauses {
  std::string value, gradient, rest;
};
void judge_loss(CaseRun& run, const LossCall& call, const ExpectedLoss& expected,
                const std::vector<bool>& rows, const LossClauses& clauses);

// Data that several families use: logits without ties, ids under a zipf load that has nothing to do
// with them, some slots empty. mask: "no", "some", "all"; masked tokens hold NaN.
BalanceData balance_data(CaseRun& run, dropless_route_settings settings, Index tokens,
                         dropless_dtype dtype, std::string_view mask);
// kind: "ordinary", "large" (+-1e4), "masked_experts" (-Inf).
ZData z_data(const CaseRun& run, Index tokens, Index experts, dropless_dtype dtype,
             std::string_view mask, std::string_view kind);
// labels: "all", "some" (a third ignored), "none".
CrossEntropyData cross_entropy_data(const CaseRun& run, Index tokens, Index vocabulary,
                                    dropless_dtype dtype, std::string_view labels,
                                    std::string_view kind);

// One function per file of the stage.
void add_losses_balance(Registry& registry);
void add_losses_logits(Registry& registry);
void add_losses_contract(Registry& registry);

}  // namespace dropless::conformance
