// SPDX-License-Identifier: Apache-2.0
// The three grouped products against one dense OpenBLAS sgemm of the same FLOPs.
#include <cblas.h>

#include "conformance/benchmarks/comparison.h"
#include "conformance/benchmarks/operands.h"
#include "conformance/cases/loads.h"

extern "C" void openblas_set_num_threads(int threads) __attribute__((weak));

namespace dropless::conformance {
namespace {

constexpr Index kRows = 4096, kOut = 1024, kIn = 1024;

dropless_operand plain(const BenchTensor& tensor) {
  auto operand = make_args<dropless_operand>();
  operand.values = tensor.tensor();
  return operand;
}

struct Product {
  std::shared_ptr<BenchTensor> x, w, y, offsets;
};

Product make_product(dropless_dtype dtype, Index experts, std::string_view load) {
  Random random(Random::key_of("bench grouped_gemm"));
  Product p{bench_tensor(dtype, {kRows, kIn}), bench_tensor(dtype, {experts, kOut, kIn}),
            bench_tensor(dtype, {kRows, kOut}), bench_tensor(DROPLESS_I64, {experts + 1})};
  fill_normal(*p.x, Random(11));
  fill_normal(*p.w, Random(12));
  fill_normal(*p.y, Random(13));
  const auto offsets = aligned_offsets(rows_per_expert(load, experts, kRows, random), 1);
  std::copy(offsets.begin(), offsets.end(), p.offsets->as<Index>());
  return p;
}

}  // namespace

void add_grouped_gemm(std::vector<Comparison>& all, const dropless_implementation& implementation,
                      int threads, std::vector<std::string>& not_offered) {
  const std::string suffix = ", " + std::to_string(threads) + " threads";
  auto a = bench_tensor(DROPLESS_FP32, {kRows, kIn});
  auto b = bench_tensor(DROPLESS_FP32, {kOut, kIn});
  auto c = bench_tensor(DROPLESS_FP32, {kRows, kOut});
  fill_normal(*a, Random(21));
  fill_normal(*b, Random(22));

  const auto add = [&](const std::string& product, dropless_dtype dtype, Index experts,
                       const std::string& load, double target, bool offered,
                       const std::function<void(const Product&)>& run) {
    if (!offered) {
      not_offered.emplace_back("gemm_" + product);
      return;
    }
    const Product p = make_product(dtype, experts, load);
    Comparison one;
    one.name = "grouped_gemm." + product + "." + std::string(dtype_name(dtype)) + ".experts" +
               std::to_string(experts) + "." + load;
    one.what = "4096 rows, O=1024, I=1024" + suffix;
    one.peer_name = "one OpenBLAS sgemm 4096x1024x1024" + suffix;
    one.flops = one.peer_flops = 2.0 * kRows * kOut * kIn;
    one.target_ratio = target;
    one.operation = [run, p] { run(p); };
    one.peer = [=] {
      if (openblas_set_num_threads != nullptr) openblas_set_num_threads(threads);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kRows, kOut, kIn, 1.0F, a->as<float>(),
                  kIn, b->as<float>(), kIn, 0.0F, c->as<float>(), kOut);
    };
    all.push_back(one);
  };
  const auto fprop = [=, &implementation](const Product& p) {
    auto args = make_args<dropless_gemm_fprop_args>();
    const auto x = plain(*p.x), w = plain(*p.w);
    args.alpha = 1, args.x = &x, args.w = &w;
    args.offsets = p.offsets->tensor(), args.y = p.y->tensor();
    call_operation(implementation, threads, implementation.gemm_fprop, args);
  };
  auto dx = bench_tensor(DROPLESS_FP32, {kRows, kIn});
  const auto dgrad = [=, &implementation](const Product& p) {
    auto args = make_args<dropless_gemm_dgrad_args>();
    const auto dy = plain(*p.y), w = plain(*p.w);
    args.alpha = 1, args.dy = &dy, args.w = &w;
    args.offsets = p.offsets->tensor(), args.dx = dx->tensor();
    call_operation(implementation, threads, implementation.gemm_dgrad, args);
  };
  const auto wgrad = [=, &implementation](const Product& p) {
    auto args = make_args<dropless_gemm_wgrad_args>();
    const auto dy = plain(*p.y), x = plain(*p.x);
    args.alpha = 1, args.beta = 0, args.dy = &dy, args.x = &x;
    args.offsets = p.offsets->tensor(), args.dw = p.w->tensor();
    call_operation(implementation, threads, implementation.gemm_wgrad, args);
  };
  const bool has_fprop = implementation.gemm_fprop != nullptr;
  add("fprop", DROPLESS_FP32, 8, "balanced", 0.85, has_fprop, fprop);
  add("dgrad", DROPLESS_FP32, 8, "balanced", 0.85, implementation.gemm_dgrad != nullptr, dgrad);
  add("wgrad", DROPLESS_FP32, 8, "balanced", 0.85, implementation.gemm_wgrad != nullptr, wgrad);
  add("fprop", DROPLESS_FP32, 64, "zipf", 0, has_fprop, fprop);
  add("fprop", DROPLESS_BF16, 8, "balanced", 0, has_fprop, fprop);
}

}  // namespace dropless::conformance
