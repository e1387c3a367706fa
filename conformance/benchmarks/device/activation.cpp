// SPDX-License-Identifier: Apache-2.0
// SwiGLU between the two expert products.
#include <fmt/format.h>

#include "conformance/benchmarks/device/benchmark.h"
#include "conformance/cases/case_run.h"

namespace dropless::conformance {

void add_activation(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
                    const DeviceSizes& sizes) {
  const Index rows = sizes.rows(), width = sizes.intermediate;
  DeviceBenchmark swiglu;
  swiglu.name = "activation.swiglu";
  swiglu.what = fmt::format("bf16 [{},2 x {}]", rows, width);
  swiglu.request = fmt::format("swiglu rows={} width={}", rows, width);
  swiglu.bytes = static_cast<double>(rows * width * 3 * 2);
  swiglu.mark = {MarkKind::microseconds_at_most, 120};
  if (table.activation_forward == nullptr) swiglu.missing = {"activation_forward"};
  swiglu.make_set = [rows, width](DeviceBench& bench) {
    const DeviceTensor x = bench.normal(DROPLESS_BF16, {rows, 2 * width}, 2);
    const DeviceTensor h = bench.tensor(DROPLESS_BF16, {rows, width});
    OperandSet set;
    set.call = [=, &bench] {
      const auto settings = make_args<dropless_activation_settings>();
      auto args = make_args<dropless_activation_args>();
      args.settings = &settings, args.x = x->get(), args.h = h->get();
      bench.call("activation_forward", bench.table().activation_forward, args);
    };
    set.outputs = {{"h", h, h->size()}};
    return set;
  };
  all.push_back(swiglu);
}

}  // namespace dropless::conformance
