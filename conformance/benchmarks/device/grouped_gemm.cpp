// SPDX-License-Identifier: Apache-2.0
// The grouped products of the expert layers, bf16 and MXFP8 operands.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "conformance/benchmarks/device/benchmark.h"
#include "conformance/cases/case_run.h"
#include "conformance/cases/loads.h"

namespace dropless::conformance {
namespace {

enum class Product { fprop, dgrad, wgrad };
constexpr const char* product_names[] = {"fprop", "dgrad", "wgrad"};

struct Problem {
  Product product = Product::fprop;
  bool coded = false;  // MXFP8 operands, timed beside bf16 ones
  Index experts = 0;
  std::string load;
  Index out = 0, in = 0;  // O and I; W is [E,O,I]
  std::vector<Index> counts, offsets;
  [[nodiscard]] Index rows() const { return offsets.back(); }
};

const dropless_tensor* pointer_to(const DeviceTensor& tensor) {
  return tensor ? tensor->get() : nullptr;
}

dropless_operand plain(const DeviceTensor& values) {
  auto operand = make_args<dropless_operand>();
  operand.values = values->get();
  return operand;
}
dropless_operand coded(const DeviceCodes& codes) {
  dropless_operand operand = plain(codes.values);
  operand.scales = codes.scales->get();
  operand.scale_layout = DROPLESS_SCALES_LINEAR;
  return operand;
}

// Small numbers in W, so that products are of the size of what goes in.
double deviation_of(const Problem& p) {
  return 1 / std::sqrt(static_cast<double>(p.product == Product::dgrad ? p.out : p.in));
}

std::function<void()> fprop_call(DeviceBench& bench, const dropless_operand& x,
                                 const dropless_operand& w, const dropless_tensor* offsets,
                                 const dropless_tensor* counts, const dropless_tensor* y) {
  return [=, &bench] {
    auto args = make_args<dropless_gemm_fprop_args>();
    args.alpha = 1, args.x = &x, args.w = &w;
    args.offsets = offsets, args.counts = counts, args.y = y;
    bench.call("gemm_fprop", bench.table().gemm_fprop, args);
  };
}

// Descriptions of tensors are handed on by pointer: the set keeps what they lie in.
template <class... Kept>
std::function<void()> keeping(std::function<void()> call, Kept... kept) {
  return [call = std::move(call), kept...] {
    (static_cast<void>(kept), ...);
    call();
  };
}

OperandSet fprop_set(DeviceBench& bench, const Problem& p, const DeviceTensor& offsets,
                     const DeviceTensor& counts) {
  const DeviceTensor y = bench.tensor(DROPLESS_BF16, {p.rows(), p.out});
  const Shape x_shape{p.rows(), p.in}, w_shape{p.experts, p.out, p.in};
  const DeviceTensor x = bench.normal(DROPLESS_BF16, x_shape);
  const DeviceTensor w = bench.normal(DROPLESS_BF16, w_shape, p.coded ? 1 : deviation_of(p));
  const auto bf16 =
      keeping(fprop_call(bench, plain(x), plain(w), offsets->get(), pointer_to(counts), y->get()),
              x, w, offsets, counts, y);
  OperandSet set;
  set.outputs = {{"y", y, y->size()}};
  if (!p.coded) {
    set.call = bf16;
    return set;
  }
  const DeviceCodes xc = bench.codes(x_shape), wc = bench.codes(w_shape);
  set.call =
      keeping(fprop_call(bench, coded(xc), coded(wc), offsets->get(), pointer_to(counts), y->get()),
              xc, wc, offsets, counts, y);
  set.own_bf16 = bf16;
  return set;
}

OperandSet dgrad_set(DeviceBench& bench, const Problem& p, const DeviceTensor& offsets,
                     const DeviceTensor& counts) {
  const DeviceTensor dy = bench.normal(DROPLESS_BF16, {p.rows(), p.out});
  const DeviceTensor w = bench.normal(DROPLESS_BF16, {p.experts, p.out, p.in}, deviation_of(p));
  const DeviceTensor dx = bench.tensor(DROPLESS_BF16, {p.rows(), p.in});
  OperandSet set;
  set.call = [=, &bench] {
    const dropless_operand left = plain(dy), right = plain(w);
    auto args = make_args<dropless_gemm_dgrad_args>();
    args.alpha = 1, args.dy = &left, args.w = &right;
    args.offsets = offsets->get(), args.counts = pointer_to(counts), args.dx = dx->get();
    bench.call("gemm_dgrad", bench.table().gemm_dgrad, args);
  };
  set.outputs = {{"dx", dx, dx->size()}};
  return set;
}

OperandSet wgrad_set(DeviceBench& bench, const Problem& p, const DeviceTensor& offsets,
                     const DeviceTensor& counts) {
  const DeviceTensor dy = bench.normal(DROPLESS_BF16, {p.rows(), p.out});
  const DeviceTensor x = bench.normal(DROPLESS_BF16, {p.rows(), p.in});
  const DeviceTensor dw = bench.tensor(DROPLESS_BF16, {p.experts, p.out, p.in});
  OperandSet set;
  set.call = [=, &bench] {
    const dropless_operand left = plain(dy), right = plain(x);
    auto args = make_args<dropless_gemm_wgrad_args>();
    args.alpha = 1, args.beta = 0, args.dy = &left, args.x = &right;
    args.offsets = offsets->get(), args.counts = pointer_to(counts), args.dw = dw->get();
    bench.call("gemm_wgrad", bench.table().gemm_wgrad, args);
  };
  set.outputs = {{"dw", dw, dw->size()}};
  return set;
}

DeviceBenchmark benchmark_of(const dropless_implementation& table, const DeviceSizes& sizes,
                             Problem p, Mark mark) {
  Random random(Random::key_of("bench grouped_gemm"));
  p.counts = rows_per_expert(p.load, p.experts, sizes.rows(), random);
  p.offsets = aligned_offsets(p.counts, std::max(table.profile->gemm_alignment, 1));
  const std::string product = product_names[static_cast<int>(p.product)];
  DeviceBenchmark made;
  made.name = fmt::format("grouped_gemm.{}.{}.experts{}.{}", product, p.coded ? "mxfp8" : "bf16",
                          p.experts, p.load);
  if (p.coded) made.name += fmt::format(".k{}", p.in);
  made.what = fmt::format("{} rows, N {} K {}", sizes.rows(), p.out, p.in);
  if (!p.coded) {
    made.request = fmt::format("gemm_{} out={} in={} counts={}", product, p.out, p.in,
                               fmt::join(p.counts, ","));
  }
  const auto rows = static_cast<double>(sizes.rows());
  const auto matrix = static_cast<double>(p.out * p.in);
  const auto used = std::count_if(p.counts.begin(), p.counts.end(), [](Index n) { return n > 0; });
  made.flops = 2 * rows * matrix;
  // W of experts without rows need not be read; their gradient must be written.
  const double matrices = static_cast<double>(p.product == Product::wgrad ? p.experts : used);
  const double in_bytes = p.coded ? 1 + 1.0 / DROPLESS_BLOCK_SIZE : 2;
  made.bytes = p.coded ? (rows * static_cast<double>(p.in) + matrices * matrix) * in_bytes +
                             rows * static_cast<double>(p.out) * 2
                       : (rows * static_cast<double>(p.in + p.out) + matrices * matrix) * 2;
  made.of_codes = p.coded;
  made.mark = mark;
  const bool offered = p.product == Product::fprop   ? table.gemm_fprop != nullptr
                       : p.product == Product::dgrad ? table.gemm_dgrad != nullptr
                                                     : table.gemm_wgrad != nullptr;
  if (!offered) made.missing = {"gemm_" + product};
  made.make_set = [p](DeviceBench& bench) {
    const DeviceTensor offsets = bench.integers({p.experts + 1}, p.offsets);
    // Zones without padding say it all.
    const bool tight = p.rows() == std::accumulate(p.counts.begin(), p.counts.end(), Index{0});
    const DeviceTensor counts = tight ? nullptr : bench.integers({p.experts}, p.counts);
    return p.product == Product::fprop   ? fprop_set(bench, p, offsets, counts)
           : p.product == Product::dgrad ? dgrad_set(bench, p, offsets, counts)
                                         : wgrad_set(bench, p, offsets, counts);
  };
  return made;
}

}  // namespace

void add_grouped_gemm(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
                      const DeviceSizes& sizes) {
  const Index wide = 2 * sizes.intermediate, hidden = sizes.hidden;
  const auto add = [&](Product product, bool is_coded, Index experts, const char* load, Index out,
                       Index in, Mark mark) {
    all.push_back(
        benchmark_of(table, sizes, {product, is_coded, experts, load, out, in, {}, {}}, mark));
  };
  const auto at_least = [](double teraflops) {
    return Mark{MarkKind::teraflops_at_least, teraflops};
  };
  const Mark of_bf16{MarkKind::of_own_bf16, 0.85};
  const Index even = sizes.even_experts, local = sizes.local_experts, every = sizes.experts;
  add(Product::fprop, false, even, "balanced", wide, hidden, at_least(620));
  add(Product::fprop, false, local, "zipf", wide, hidden, at_least(580));
  add(Product::fprop, false, local, "ragged", wide, hidden, at_least(580));
  add(Product::fprop, false, every, "ragged", wide, hidden, at_least(400));
  add(Product::dgrad, false, even, "balanced", wide, hidden, at_least(580));
  add(Product::wgrad, false, even, "balanced", wide, hidden, at_least(560));
  add(Product::fprop, true, even, "balanced", wide, hidden, of_bf16);
  add(Product::fprop, true, even, "balanced", hidden, sizes.intermediate, of_bf16);
}

}  // namespace dropless::conformance
