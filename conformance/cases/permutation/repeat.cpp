// SPDX-License-Identifier: Apache-2.0
// Sums over slots, repeated with other numbers of threads: GENERAL-5 of permutation.
#include <algorithm>

#include "conformance/cases/data.h"
#include "conformance/cases/permutation/setup.h"
#include "tolerances/bounds.h"

namespace dropless::conformance {
namespace {

std::vector<double> errors_of(const reference::Gauged& expected, Index terms) {
  std::vector<double> errors;
  for (const double gauge : expected.gauge) errors.push_back(tolerances::sum(terms, gauge));
  return errors;
}

// Token outputs with three terms or more (two have no order), and those of them whose fp32 sum
// depends on the order of the slots.
struct Sums {
  Index several = 0, sensitive = 0;
};

Sums count_sums(const RoutedTokens& routed, const std::vector<double>& rows,
                const std::vector<double>& weights) {
  Sums sums;
  for (Index t = 0; t < routed.tokens; ++t) {
    const auto* first = routed.plan.row_map.data() + t * routed.top_k;
    const auto terms =
        std::count_if(first, first + routed.top_k, [](auto row) { return row >= 0; });
    sums.several += terms >= 3 ? routed.hidden : 0;
    for (Index h = 0; h < routed.hidden; ++h) {
      float forwards = 0, backwards = 0;
      for (Index i = 0; i < routed.top_k; ++i) {
        const auto term = [&](Index slot) {
          const auto pair = static_cast<std::size_t>(t * routed.top_k + slot);
          const Index row = routed.plan.row_map[pair];
          if (row < 0) return 0.0f;
          const double value = rows[static_cast<std::size_t>(row * routed.hidden + h)];
          return static_cast<float>(weights[pair] * value);
        };
        forwards += term(i);
        backwards += term(routed.top_k - 1 - i);
      }
      sums.sensitive += forwards != backwards ? 1 : 0;
    }
  }
  return sums;
}

struct Repeated {
  Buffer *y, *d_x, *d_rows, *d_weights;
  dropless_unpermute_args unpermute;
  dropless_permute_backward_args permute_backward;
  dropless_unpermute_backward_args unpermute_backward;
};

void perform(CaseRun& run, Repeated& calls, int threads) {
  const dropless_implementation& table = run.implementation();
  run.perform_with_threads(threads, "unpermute_forward", table.unpermute_forward, calls.unpermute);
  run.perform_with_threads(threads, "permute_backward", table.permute_backward,
                           calls.permute_backward);
  run.perform_with_threads(threads, "unpermute_backward", table.unpermute_backward,
                           calls.unpermute_backward);
}

void run_sum_repeat(CaseRun& run) {
  const RoutedTokens routed = routed_tokens(run, 0.1);
  Random random = run.random("data");
  const auto values =
      cotangent("zero_mean", DROPLESS_FP32, routed.plan.rows(), routed.hidden, random);
  const auto dy = cotangent("zero_mean", DROPLESS_FP32, routed.tokens, routed.hidden, random);
  std::vector<double> weights(routed.ids.size());
  for (double& w : weights) w = static_cast<float>(random.uniform() + 0.03125);
  // A few sums prove nothing about the data; what is judged below holds for them all the same. Of
  // three terms a third depends on their order, but of one token with uneven weights as few as a
  // tenth.
  const Sums sums = count_sums(routed, values, weights);
  run.judge().require(sums.several < 256 || 16 * sums.sensitive > sums.several,
                      "one sum of sixteen depends on the order of the slots");

  Buffers& buffers = run.buffers();
  const PlanInputs plan = plan_inputs(run, routed);
  Buffer& rows = buffers.input("rows", DROPLESS_FP32, routed.expert_rows(),
                               with_hostile_padding(routed, routed.hidden, values));
  Buffer& w = buffers.input("weights", DROPLESS_FP32, routed.slots(), weights);
  Buffer& d_y = buffers.input("d_y", DROPLESS_FP32, routed.token_rows(), dy);
  Repeated calls{&buffers.output("y", DROPLESS_FP32, routed.token_rows()),
                 &buffers.output("d_x", DROPLESS_FP32, routed.token_rows()),
                 &buffers.output("d_rows", DROPLESS_FP32, routed.expert_rows()),
                 &buffers.output("d_weights", DROPLESS_FP32, routed.slots()),
                 make_args<dropless_unpermute_args>(),
                 make_args<dropless_permute_backward_args>(),
                 make_args<dropless_unpermute_backward_args>()};
  calls.unpermute.row_map = plan.row_map->tensor(), calls.unpermute.rows = rows.tensor();
  calls.unpermute.weights = w.tensor(), calls.unpermute.y = calls.y->tensor();
  calls.permute_backward.row_map = plan.row_map->tensor();
  calls.permute_backward.d_rows = rows.tensor(), calls.permute_backward.d_x = calls.d_x->tensor();
  calls.unpermute_backward.offsets = plan.offsets->tensor();
  calls.unpermute_backward.row_map = plan.row_map->tensor();
  calls.unpermute_backward.source = plan.source->tensor();
  calls.unpermute_backward.rows = rows.tensor(), calls.unpermute_backward.weights = w.tensor();
  calls.unpermute_backward.d_y = d_y.tensor(),
  calls.unpermute_backward.d_rows = calls.d_rows->tensor();
  calls.unpermute_backward.d_weights = calls.d_weights->tensor();

  perform(run, calls, 1);
  const auto y = reference::unpermute(routed.plan, routed.hidden, values, weights);
  run.judge().bounded("PERMUTATION-6a", "y", *calls.y, y.value, errors_of(y, routed.top_k));
  const auto d_x = reference::permute_backward(routed.plan, routed.hidden, values);
  run.judge().bounded("PERMUTATION-7a", "d_x", *calls.d_x, d_x.value, errors_of(d_x, routed.top_k));
  if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) return;
  const auto y_bytes = calls.y->bytes(), d_x_bytes = calls.d_x->bytes(),
             d_rows_bytes = calls.d_rows->bytes(), d_weights_bytes = calls.d_weights->bytes();
  const bool any = run.profile().determinism == DROPLESS_DETERMINISTIC_ANY_THREADS;
  for (const int threads : any ? std::vector<int>{1, 2, 3} : std::vector<int>{1, 1}) {
    buffers.poison_outputs();
    perform(run, calls, threads);
    const std::string what = " with " + std::to_string(threads) + " threads";
    run.judge().same_bytes("GENERAL-5", "y" + what, *calls.y, y_bytes);
    run.judge().same_bytes("GENERAL-5", "d_x" + what, *calls.d_x, d_x_bytes);
    run.judge().same_bytes("GENERAL-5", "d_rows" + what, *calls.d_rows, d_rows_bytes);
    run.judge().same_bytes("GENERAL-5", "d_weights" + what, *calls.d_weights, d_weights_bytes);
  }
}

}  // namespace

void add_permutation_repeat(Registry& registry) {
  registry.add(
      {"permutation.sum_repeat",
       "Proves that sums over slots, forward and backward, are the same again, for other "
       "thread counts where declared, on data whose sums depend on the order.",
       {"GENERAL-5", "PERMUTATION-6a", "PERMUTATION-7a"},
       permutation_parameters(),
       [](Tier tier) {
         if (tier == Tier::smoke) {
           return product(permutation_axes({"deepseek-v3"}, {"65"}, {"zipf"}));
         }
         if (tier == Tier::full) return std::vector<Values>{};
         return product(permutation_axes({"gpt-oss-20b", "qwen3-30b-a3b"}, {"1025"}, {"balanced"}));
       },
       run_sum_repeat});
}

}  // namespace dropless::conformance
