// SPDX-License-Identifier: Apache-2.0
// The backward call of the routing cases, and its judgement.
#pragma once

#include <string>
#include <vector>

#include "conformance/cases/routing/setup.h"

namespace dropless::conformance {

// Ids as the reference selects them and random cotangents: every backward case starts from the
// reference's forward pass.
struct RoutingGradientData {
  RoutingData forward;
  std::vector<Index> ids;         // [T,K]
  std::vector<double> d_weights;  // [T,K], fp32
};
RoutingGradientData gradient_data(const CaseRun& run, RoutingData forward, Random& random);

reference::RoutingGradient expected_gradient(const RoutingGradientData& data);
// Absolute errors of d_logits, [T,E] (ROUTING-12a).
std::vector<double> gradient_errors(const CaseRun& run, const RoutingGradientData& data,
                                    const reference::RoutingGradient& expected);

class RouteBackwardCall {
 public:
  RouteBackwardCall(CaseRun& run, const RoutingGradientData& data, const RouteStyle& style = {});
  void perform();
  void refused(std::string_view clause, std::string_view why);

  dropless_route_backward_args args;
  Buffer* d_logits;
  Buffer* d_expert_scale = nullptr;  // without a scale: null

 private:
  CaseRun& run_;
  int threads_;
};

// d_logits and, with a scale, d_expert_scale. rows: [T] tokens to judge, empty = all.
void judge_gradient(CaseRun& run, const RoutingGradientData& data, const RouteBackwardCall& call,
                    const std::string& clause = "ROUTING-12a", const std::vector<bool>& rows = {});

}  // namespace dropless::conformance
