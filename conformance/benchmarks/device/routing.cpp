// SPDX-License-Identifier: Apache-2.0
// The router: sigmoid, expert bias, top 8 of 256, weights that add up to 2.5.
#include <fmt/format.h>

#include "conformance/benchmarks/device/benchmark.h"
#include "conformance/cases/case_run.h"

namespace dropless::conformance {
namespace {

OperandSet router_set(DeviceBench& bench, const DeviceSizes& sizes) {
  const Index tokens = sizes.router_tokens, experts = sizes.experts;
  const DeviceTensor logits = bench.normal(DROPLESS_FP32, {tokens, experts}, 1.5);
  const DeviceTensor bias = bench.normal(DROPLESS_FP32, {experts}, 0.1);
  const DeviceTensor ids = bench.tensor(DROPLESS_I32, {tokens, sizes.top_k});
  const DeviceTensor weights = bench.tensor(DROPLESS_FP32, {tokens, sizes.top_k});
  const DeviceTensor counts = bench.tensor(DROPLESS_I64, {experts});
  auto settings = make_args<dropless_route_settings>();
  settings.num_experts = experts, settings.top_k = sizes.top_k;
  settings.score_function = DROPLESS_SCORE_SIGMOID;
  settings.renormalize = 1, settings.renormalize_eps = 1e-20, settings.scaling_factor = 2.5;
  OperandSet set;
  set.call = [=, &bench] {
    auto args = make_args<dropless_route_args>();
    args.settings = &settings, args.logits = logits->get(), args.expert_bias = bias->get();
    args.ids = ids->get(), args.weights = weights->get(), args.tokens_per_expert = counts->get();
    bench.call("route_forward", bench.table().route_forward, args);
  };
  set.outputs = {{"ids", ids, ids->size()},
                 {"weights", weights, weights->size()},
                 {"tokens_per_expert", counts, counts->size()}};
  return set;
}

}  // namespace

void add_routing(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
                 const DeviceSizes& sizes) {
  const Index t = sizes.router_tokens, e = sizes.experts, k = sizes.top_k;
  DeviceBenchmark router;
  router.name = "routing.forward";
  router.what = fmt::format("T={} E={} K={}, fp32 logits, sigmoid, bias", t, e, k);
  router.request = fmt::format("route tokens={} experts={} top_k={}", t, e, k);
  router.bytes = static_cast<double>(t * e * 4 + t * k * (4 + 4));
  router.mark = {MarkKind::microseconds_at_most, 30};
  if (table.route_forward == nullptr) router.missing = {"route_forward"};
  router.make_set = [sizes](DeviceBench& bench) { return router_set(bench, sizes); };
  all.push_back(router);
}

}  // namespace dropless::conformance
