// SPDX-License-Identifier: Apache-2.0
// Faults of accumulation, rounding and repetition in the grouped GEMM.
#include <atomic>
#include <cmath>

#include "tests/faults/products.h"

namespace dropless::faults {
namespace {

// The same combination in every call.
PartsOfCall always(Combine combine) {
  return [combine](dropless_call*) { return combine; };
}

// `bits` significant bits are kept, the rest is cut off.
double truncated(double value, int bits) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::trunc(std::ldexp(fraction, bits)), exponent - bits);
}

double fp32_sum(const std::vector<double>& parts, bool backwards) {
  float sum = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    sum += static_cast<float>(parts[backwards ? parts.size() - 1 - i : i]);
  }
  return sum;
}

void add_accumulation(std::vector<Fault>& faults) {
  faults.push_back({.name = "grouped_gemm.bf16_partial_sums",
                    .provenance = "Transformer Engine 3440; numerics: split-K 4, bf16 partials",
                    .symptom = "partial sums of a split contraction are stored in bf16",
                    .trigger = "always; passes every common tolerance on same-sign data",
                    .clauses = {"GROUPED_GEMM-6a", "GROUPED_GEMM-6b", "GROUPED_GEMM-0a",
                                "GROUPED_GEMM-0b", "GROUPED_GEMM-0c"},
                    .plant = [](Planted& planted) {
                      combine_parts(planted, 4, always([](const auto& parts, Index) {
                                      double sum = 0;
                                      for (const double part : parts) sum += bf16(part);
                                      return sum;
                                    }));
                    }});
  faults.push_back(
      {.name = "grouped_gemm.running_sum_in_bf16",
       .provenance = "vllm 15045; FlagGems 5876",
       .symptom = "the accumulator has the type of the activations",
       .trigger = "always",
       .clauses = {"GROUPED_GEMM-6a", "GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c"},
       .plant = [](Planted& planted) {
         combine_parts(planted, 8, always([](const auto& parts, Index) {
                         double sum = 0;
                         for (const double part : parts) sum = bf16(sum + part);
                         return sum;
                       }));
       }});
  faults.push_back({.name = "grouped_gemm.accumulator_of_13_bits",
                    .provenance = "numerics: 13-bit accumulator; DeepGEMM 37",
                    .symptom = "the low bits of the accumulator are zero",
                    .trigger = "Hopper FP8 accumulation that is not declared",
                    .clauses = {"GROUPED_GEMM-6a"},
                    .plant = [](Planted& planted) {
                      combine_parts(planted, 4, always([](const auto& parts, Index) {
                                      double sum = 0;
                                      for (const double part : parts) {
                                        sum = truncated(sum + part, 14);
                                      }
                                      return sum;
                                    }));
                    }});
  faults.push_back(
      {.name = "grouped_gemm.operands_rounded_to_bf16",
       .provenance = "operator O11: type reinterpreted (fp32 operands through bf16 MMA)",
       .symptom = "fp32 operands lose 16 bits",
       .trigger = "fp32 operands",
       .clauses = {"GROUPED_GEMM-6a", "GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c"},
       .plant = [](Planted& planted) {
         around_products(planted, [](const auto& next, auto& a) {
           if (!is_readable(left_of(a)) || left_of(a)->values->dtype != DROPLESS_FP32) {
             return next(a);
           }
           const Copy values(left_of(a)->values);
           each(values.tensor(), [](double v, Index) { return bf16(v); });
           const dropless_operand left = with_values(*left_of(a), values.tensor());
           left_of(a) = &left;
           return next(a);
         });
       }});
  faults.push_back({.name = "grouped_gemm.small_results_flushed",
                    .provenance = "numerics: flush-to-zero builds",
                    .symptom = "results below 2^-60 become zero",
                    .trigger = "operands of small size",
                    .clauses = {"GROUPED_GEMM-9c", "GROUPED_GEMM-5"},
                    .plant = [](Planted& planted) {
                      around_products(planted, [](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        each_result(a, [&](Index i, Index) {
                          if (std::fabs(view(output_of(a)).load_flat(i)) < 0x1p-60) {
                            view(output_of(a)).store_flat(0, i);
                          }
                        });
                        return status;
                      });
                    }});
}

void add_rounding(std::vector<Fault>& faults) {
  faults.push_back({.name = "grouped_gemm.output_truncated",
                    .provenance = "numerics: output truncated, not RNE",
                    .symptom = "the output is rounded towards zero",
                    .trigger = "bf16 output; passes every common tolerance",
                    .clauses = {"GROUPED_GEMM-6b"},
                    .plant = [](Planted& planted) {
                      combine_parts(planted, 1, always([](const auto& parts, Index) {
                                      return truncated(parts[0], 8);
                                    }));
                    }});
  faults.push_back({.name = "grouped_gemm.bias_added_to_rounded_product",
                    .provenance = "Transformer Engine 3440: a second rounding",
                    .symptom = "the product is rounded before the bias is added",
                    .trigger = "bf16 output and a bias",
                    .clauses = {"GROUPED_GEMM-6b"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::gemm_fprop>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.bias == nullptr) return status;
                        const Copy product(a.y);
                        Fprop plain = a;
                        plain.bias = nullptr;
                        plain.y = product.tensor();
                        next(plain);
                        each_result(a, [&](Index i, Index expert) {
                          const double b = view(a.bias).load(expert, i % view(a.y).shape(1));
                          view(a.y).store_flat(product.elements().load_flat(i) + b, i);
                        });
                        return status;
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.sum_added_to_rounded_gradient",
                    .provenance = "Transformer Engine 3440: a second rounding",
                    .symptom = "the product is rounded before C is added",
                    .trigger = "bf16 weight gradients that are accumulated",
                    .clauses = {"GROUPED_GEMM-6b", "GROUPED_GEMM-5"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::gemm_wgrad>([](const auto& next, auto& a) {
                        const Copy product(a.dw), c(a.c, DROPLESS_FP32);
                        Wgrad plain = a;
                        drop_epilogue(plain);
                        plain.dw = product.tensor();
                        next(plain);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.beta == 0) return status;
                        each(a.dw, [&](double, Index i) {
                          return product.elements().load_flat(i) +
                                 a.beta * c.elements().load_flat(i);
                        });
                        return status;
                      });
                    }});
}

void add_repetition(std::vector<Fault>& faults) {
  faults.push_back({.name = "grouped_gemm.order_of_sums_changes_between_calls",
                    .provenance = "CUTLASS 3282: floating-point atomics; pytorch 186365",
                    .symptom = "results of repeated calls differ in low bits",
                    .trigger = "a second call",
                    .clauses = {"GROUPED_GEMM-9d", "GROUPED_GEMM-5", "GENERAL-5"},
                    .plant = [](Planted& planted) {
                      combine_parts(planted, 3, [](dropless_call*) -> Combine {
                        static std::atomic<int> calls{0};
                        const bool backwards = calls++ % 2 != 0;
                        return [backwards](const auto& parts, Index) {
                          return fp32_sum(parts, backwards);
                        };
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.order_of_sums_depends_on_threads",
                    .provenance = "Megatron-LM 1603 taken further: undeclared",
                    .symptom = "another number of threads gives other low bits",
                    .trigger = "another number of threads",
                    .clauses = {"GROUPED_GEMM-9d", "GROUPED_GEMM-5", "GENERAL-5"},
                    .plant = [](Planted& planted) {
                      combine_parts(planted, 3, [](dropless_call* call) -> Combine {
                        const bool backwards = call->threads > 1;
                        return [backwards](const auto& parts, Index) {
                          return fp32_sum(parts, backwards);
                        };
                      });
                    }});
  faults.push_back(
      {.name = "grouped_gemm.order_of_sums_depends_on_position",
       .provenance = "Megatron-Bridge 4635; OpenBLAS rows change with their position",
       .symptom = "the bits of a row depend on where it stands",
       .trigger = "a row that moves to another place in the buffer",
       .clauses = {"GROUPED_GEMM-9c", "GROUPED_GEMM-9a", "GROUPED_GEMM-9b", "GROUPED_GEMM-3"},
       .plant = [](Planted& planted) {
         around_row_products(planted, [](const auto& next, auto& a) {
           const dropless_status status = next(a);
           if (status != DROPLESS_OK) return status;
           // Two orders of the same three partial sums.
           double sums[2] = {};
           std::vector<std::vector<double>> parts(3);
           for (Index part = 0; part < 3; ++part) {
             const Copy values(left_of(a)->values), output(output_of(a), DROPLESS_FP32);
             mask_left(a, values, [=](Index k, Index length) { return k * 3 / length == part; });
             const dropless_operand left = with_values(*left_of(a), values.tensor());
             auto piece = a;
             left_of(piece) = &left;
             output_of(piece) = output.tensor();
             if (part > 0) drop_epilogue(piece);
             next(piece);
             parts[static_cast<std::size_t>(part)] = values_of(output.tensor());
           }
           const Index columns = view(output_of(a)).shape(1);
           each_result(a, [&](Index i, Index) {
             const auto at = static_cast<std::size_t>(i);
             const std::vector<double> terms = {parts[0][at], parts[1][at], parts[2][at]};
             sums[0] = fp32_sum(terms, false), sums[1] = fp32_sum(terms, true);
             view(output_of(a)).store_flat(sums[i / columns % 2], i);
           });
           return status;
         });
       }});
}

}  // namespace

void add_gemm_precision(std::vector<Fault>& faults) {
  add_accumulation(faults);
  add_rounding(faults);
  add_repetition(faults);
}

}  // namespace dropless::faults
