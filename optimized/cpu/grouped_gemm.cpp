// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM: fprop, dgrad and wgrad over zones of rows. GROUPED_GEMM-1 to 9.
#include "optimized/cpu/gemm_engine.h"
#include "optimized/cpu/operations.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

constexpr Index widest_block = 512;

// alpha * sums + beta * addend, rounded to fp32 once (GROUPED_GEMM-6).
DROPLESS_INLINE void finish_run(const float* sums, double alpha, const float* addend, double beta,
                                Index n, float* out) {
  if (addend != nullptr) {
    for (Index j = 0; j < n; ++j) {
      out[j] = static_cast<float>(alpha * static_cast<double>(sums[j]) +
                                  beta * static_cast<double>(addend[j]));
    }
  } else {
    for (Index j = 0; j < n; ++j) out[j] = static_cast<float>(alpha * static_cast<double>(sums[j]));
  }
}

// Writes a block of rows of y, with an optional bias row.
void store_rows(const Tensor& y, Index first_row, Index column, Index rows, Index columns,
                const float* sums, Index stride, double alpha, const float* bias) {
  with_simd([=, &y]() DROPLESS_INLINE_LAMBDA {
    float out[widest_block];
    const bool as_is = alpha == 1 && bias == nullptr;
    for (Index i = 0; i < rows; ++i) {
      const float* row = sums + i * stride;
      if (!as_is) finish_run(row, alpha, bias, 1.0, columns, out);
      store_run(as_is ? row : out, columns, y.at(first_row + i, column), y.dtype, y.inner_stride());
    }
  });
}

// Zero into the padding rows of every zone (GROUPED_GEMM-2); the tail stays untouched.
void zero_padding(const Tensor& y, const Zones& zones) {
  if (y.size() == 0) return;
  const std::vector<float> zeros(static_cast<std::size_t>(y.shape[1]), 0.0F);
  for (Index g = 0; g < zones.groups(); ++g) {
    for (Index row = zones.real(g); row < zones.end(g); ++row) {
      store_run(zeros.data(), y.shape[1], y.at(row, 0), y.dtype, y.inner_stride());
    }
  }
}

std::vector<GemmProduct> row_products(const Zones& zones, Index columns, Index depth) {
  std::vector<GemmProduct> products;
  for (Index e = 0; e < zones.groups(); ++e) {
    const Index rows = zones.real(e) - zones.first(e);
    if (rows > 0) products.push_back({e, rows, columns, depth});
  }
  return products;
}

// C of wgrad; beta = 0 means that it is never read (GROUPED_GEMM-5).
struct Accumulated {
  Tensor c;
  double beta;
  DROPLESS_INLINE void load(Index e, Index row, Index column, Index n, float* out) const {
    load_run(c.at(e, row, column), c.dtype, c.inner_stride(), n, out);
  }
};

// dW of an expert without rows: beta * C, or zero without looking at C; nothing to do where C is dW
// and beta is 1, which leaves every bit alone (GROUPED_GEMM-5).
void store_empty(const Tensor& dw, const Accumulated& sum, Index e) {
  if (sum.beta == 1.0 && sum.c.data == dw.data && sum.c.dtype == dw.dtype) return;
  const float zeros[widest_block] = {};
  float c[widest_block] = {}, out[widest_block];
  for (Index row = 0; row < dw.shape[1]; ++row) {
    for (Index column = 0; column < dw.shape[2]; column += widest_block) {
      const Index n = std::min(widest_block, dw.shape[2] - column);
      if (sum.beta != 0) sum.load(e, row, column, n, c);
      finish_run(zeros, 1.0, c, sum.beta, n, out);
      store_run(out, n, dw.at(e, row, column), dw.dtype, dw.inner_stride());
    }
  }
}

}  // namespace

void gemm_fprop(Call& call, const dropless_gemm_fprop_args& args) {
  const auto [experts, out, in] = operand_shape(args.w, "w", 3);
  const Index buffer_rows = operand_shape(args.x, "x", 2)[0];
  const Zones zones = read_zones(args.offsets, args.counts, buffer_rows, experts);
  const GemmOperand x = GemmOperand::rows(args.x, "x", false, buffer_rows, in, zones);
  const GemmOperand w = GemmOperand::weights(args.w, "w", false, experts, out, in);
  const Tensor bias = optional_tensor(args.bias, "bias", floats, {experts, out});
  const Tensor y = tensor(args.y, "y", floats, {buffer_rows, out});

  std::vector<float> biases(bias ? static_cast<std::size_t>(experts * out) : 0);
  for (Index e = 0; bias && e < experts; ++e) {
    load_run(bias.at(e, 0), bias.dtype, bias.inner_stride(), out, biases.data() + e * out);
  }
  multiply(call.threads(), row_products(zones, out, in), x, w, {false, true},
           [&, out = out](const GemmProduct& p, Index row, Index column, Index rows, Index columns,
                          const float* sums, Index stride) {
             store_rows(y, zones.first(p.group) + row, column, rows, columns, sums, stride,
                        args.alpha, bias ? biases.data() + p.group * out + column : nullptr);
           });
  zero_padding(y, zones);
  call.ran_simd();
}

void gemm_dgrad(Call& call, const dropless_gemm_dgrad_args& args) {
  const auto [experts, out, in] = operand_shape(args.w, "w", 3);
  const Index buffer_rows = operand_shape(args.dy, "dy", 2)[0];
  const Zones zones = read_zones(args.offsets, args.counts, buffer_rows, experts);
  const GemmOperand dy = GemmOperand::rows(args.dy, "dy", false, buffer_rows, out, zones);
  const GemmOperand w = GemmOperand::weights(args.w, "w", true, experts, out, in);
  const Tensor dx = tensor(args.dx, "dx", floats, {buffer_rows, in});

  multiply(call.threads(), row_products(zones, in, out), dy, w, {false, false},
           [&](const GemmProduct& p, Index row, Index column, Index rows, Index columns,
               const float* sums, Index stride) {
             store_rows(dx, zones.first(p.group) + row, column, rows, columns, sums, stride,
                        args.alpha, nullptr);
           });
  zero_padding(dx, zones);
  call.ran_simd();
}

void gemm_wgrad(Call& call, const dropless_gemm_wgrad_args& args) {
  const Tensor dw = tensor(args.dw, "dw", floats, {any, any, any});
  const Index experts = dw.shape[0], out = dw.shape[1], in = dw.shape[2];
  const Index buffer_rows = operand_shape(args.dy, "dy", 2)[0];
  const Zones zones = read_zones(args.offsets, args.counts, buffer_rows, experts);
  const GemmOperand dy = GemmOperand::rows(args.dy, "dy", true, buffer_rows, out, zones);
  const GemmOperand x = GemmOperand::rows(args.x, "x", true, buffer_rows, in, zones);
  Accumulated sum{{}, args.beta};
  refuse_if(args.beta != 0 && args.c == nullptr, "c: missing although beta is not 0");
  if (args.beta != 0) sum.c = tensor(args.c, "c", floats, {experts, out, in});

  std::vector<GemmProduct> products;
  for (Index e = 0; e < experts; ++e) {
    const Index rows = zones.real(e) - zones.first(e);
    if (rows > 0) products.push_back({e, out, in, rows});
  }
  parallel_for(call.threads(), experts, [&](Index e) {
    if (zones.real(e) == zones.first(e)) store_empty(dw, sum, e);
  });
  multiply(call.threads(), products, dy, x, {true, false},
           [&](const GemmProduct& p, Index row, Index column, Index rows, Index columns,
               const float* sums, Index stride) {
             with_simd([&]() DROPLESS_INLINE_LAMBDA {
               float result[widest_block], addend[widest_block];
               const bool accumulates = sum.beta != 0;
               const bool as_is = args.alpha == 1 && !accumulates;
               for (Index i = 0; i < rows; ++i) {
                 const float* from = sums + i * stride;
                 if (accumulates) sum.load(p.group, row + i, column, columns, addend);
                 if (!as_is) {
                   finish_run(from, args.alpha, accumulates ? addend : nullptr, sum.beta, columns,
                              result);
                 }
                 store_run(as_is ? from : result, columns, dw.at(p.group, row + i, column),
                           dw.dtype, dw.inner_stride());
               }
             });
           });
  call.ran_simd();
}

}  // namespace dropless::cpu
