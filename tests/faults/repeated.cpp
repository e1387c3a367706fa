// SPDX-License-Identifier: Apache-2.0
// Faults of the kinds that four faults of later.cpp showed the suite to miss: results that are kept
// by address, and steps that are left out because a factor is zero; and a NaN that is swept away.
#include <utility>

#include "tests/faults/products.h"
#include "tests/faults/quantisers.h"

namespace dropless::faults {
namespace {

// The output is as before the call.
template <class Args, class NextCall>
dropless_status leave(const NextCall& next, Args& a, const dropless_tensor* output) {
  const Copy before(output);
  const dropless_status status = next(a);
  if (status == DROPLESS_OK) before.write_back();
  return status;
}

}  // namespace

void add_repeated(std::vector<Fault>& faults) {
  faults.push_back({.name = "mxfp8.input_cached_by_address",
                    .provenance = "Transformer Engine 1593, for activations",
                    .symptom = "a quantised copy is used after the tensor changed",
                    .trigger = "other values at the same address",
                    .clauses = {"MXFP8-3a"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::quantize>([](auto& a) {
                        static Remembered inputs;
                        a.x = inputs.of(a.x);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.weights_cached_by_address",
                    .provenance = "Transformer Engine 1593; starter-kit 21",
                    .symptom = "a transposed copy of the weights is used after they changed",
                    .trigger = "other weights at the same address",
                    .clauses = {"GROUPED_GEMM-0b"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::gemm_dgrad>([](const auto& next, Dgrad& a) {
                        static Remembered weights;
                        if (!is_readable(a.w)) return next(a);
                        const dropless_operand w = with_values(*a.w, weights.of(a.w->values));
                        a.w = &w;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.nothing_done_without_alpha",
                    .provenance = "operator O4: drop a zero case (BLAS skips the product)",
                    .symptom = "the output is not written at all",
                    .trigger = "alpha = 0",
                    .clauses = {"GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c"},
                    .plant = [](Planted& planted) {
                      around_products(planted, [](const auto& next, auto& a) {
                        return a.alpha == 0 ? leave(next, a, output_of(a)) : next(a);
                      });
                    }});
  faults.push_back({.name = "optimizer.nan_gradient_taken_as_zero",
                    .provenance = "Primus-Turbo 397: nan_to_num as a cure",
                    .symptom = "a broken gradient stays unseen",
                    .trigger = "a NaN in the gradient",
                    .clauses = {"GENERAL-2"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::adamw>([](const auto& next, auto& a) {
                        const Copy gradient(a.gradient);
                        each(gradient.tensor(), [](double g, Index) { return g != g ? 0.0 : g; });
                        a.gradient = gradient.tensor();
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "optimizer.nothing_done_without_learning_rate",
                    .provenance = "operator O4: drop a zero case (warm-up starts at 0)",
                    .symptom = "the moments do not see the first gradient",
                    .trigger = "a learning rate of 0",
                    .clauses = {"OPTIMIZER-1b", "OPTIMIZER-1a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::adamw>([](const auto& next, auto& a) {
                        if (a.learning_rate != 0) return next(a);
                        const Copy first(a.first_moment), second(a.second_moment);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK) first.write_back(), second.write_back();
                        return status;
                      });
                    }});
}

}  // namespace dropless::faults
