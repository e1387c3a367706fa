// SPDX-License-Identifier: Apache-2.0
// What the optimizer cases share: one AdamW step from known state, and its expectation.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "conformance/cases/case_run.h"
#include "conformance/cases/selection.h"
#include "reference/optimizer.h"

namespace dropless::conformance {

// State and request of one step. Values are exact in their formats.
struct AdamwData {
  reference::AdamwSettings settings;
  dropless_dtype gradient_dtype = DROPLESS_FP32, moment_dtype = DROPLESS_FP32;
  dropless_dtype weight_dtype = DROPLESS_FP32;
  bool has_master = false;
  bool scale_in_tensor = false;  // the scalar then holds a value that must be ignored
  int rounding = DROPLESS_ROUND_NEAREST_EVEN;
  std::uint64_t seed = 0;
  std::vector<double> gradient, first_moment, second_moment;
  std::vector<double> weight;  // the master where there is one

  [[nodiscard]] Index size() const { return static_cast<Index>(gradient.size()); }
};

// Weights of size 0.5 to 2 and updates of at most 1/18 of them: there a plain fp32 evaluation keeps
// the bound of OPTIMIZER-1c. Gradients from 1e-9, where eps matters, to 1; some are zero.
AdamwData adamw_data(Index size, dropless_dtype gradient_dtype, dropless_dtype weight_dtype,
                     dropless_dtype moment_dtype, Random& random);
std::vector<double> random_gradient(Index size, dropless_dtype dtype, Random& random);

// With a gap every tensor is a column of a matrix.
struct AdamwCall {
  AdamwCall(CaseRun& run, const AdamwData& data, const std::string& prefix = "",
            const Layout& layout = {});
  void perform(int threads = 0, std::string_view clause = "GENERAL-1");

  dropless_adamw_args args;
  Buffer *first_moment, *second_moment;
  Buffer* weight;
  Buffer* master = nullptr;

 private:
  const dropless_tensor* tensor_of(const Buffer& buffer);

  CaseRun& run_;
  std::deque<dropless_tensor> columns_;
};

struct ExpectedAdamw {
  std::vector<double> first_moment, first_error, second_moment, second_error, weight, weight_error;
};
ExpectedAdamw expected_adamw(const AdamwData& data);

// Everything but stochastic rounding.
void judge_adamw(CaseRun& run, const AdamwData& data, const AdamwCall& call);

// One function per file of the stage.
void add_optimizer_adamw(Registry& registry);
void add_optimizer_stochastic(Registry& registry);
void add_optimizer_contract(Registry& registry);

}  // namespace dropless::conformance
