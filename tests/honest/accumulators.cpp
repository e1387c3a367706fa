// SPDX-License-Identifier: Apache-2.0
// Variants of the grouped GEMM: the accumulators of GROUPED_GEMM-6, each under a profile that
// declares it.
#include "tests/accumulators/accumulators.h"

#include <memory>

#include "tests/honest/products.h"

namespace dropless::honest {
namespace {

using accumulators::Dot;
using accumulators::Values;

Accumulators all_of(const Dot& dot) {
  return {dot, dot, dot};
}

Dot core(const accumulators::Unit& unit, int period = 0) {
  return
      [unit, period](Values a, Values b) { return accumulators::tensor_core(unit, a, b, period); };
}

Dot split(int parts, const Dot& inner, bool bf16_partials = false) {
  return [=](Values a, Values b) { return accumulators::split(parts, inner, bf16_partials, a, b); };
}

void declare_cores(Planted& variant, std::int32_t fp32, std::int32_t bf16, std::int32_t mxfp8,
                   std::int32_t period = 0) {
  variant.declare([=](dropless_profile& profile) {
    profile.accumulator_fp32 = fp32;
    profile.accumulator_bf16 = bf16;
    profile.accumulator_mxfp8 = mxfp8;
    profile.promotion_period = period;
  });
}

void plant_tensor_core(Planted& variant) {
  declare_cores(variant, DROPLESS_ACCUMULATOR_FP32, DROPLESS_ACCUMULATOR_TENSOR_CORE_25,
                DROPLESS_ACCUMULATOR_TENSOR_CORE_25);
  accumulate_with(variant, {accumulators::sequential, core(accumulators::hopper_bf16),
                            core(accumulators::hopper_bf16)});
}

void plant_wide_tensor_core(Planted& variant) {
  declare_cores(variant, DROPLESS_ACCUMULATOR_TENSOR_CORE_25, DROPLESS_ACCUMULATOR_TENSOR_CORE_25,
                DROPLESS_ACCUMULATOR_TENSOR_CORE_25);
  const Dot wide = core(accumulators::blackwell_fp8);
  const Dot of_products = [](Values a, Values b) {
    return accumulators::tensor_core_of_products(accumulators::blackwell_fp8, a, b);
  };
  accumulate_with(variant, {of_products, wide, wide});
}

void plant_split_tensor_core(Planted& variant) {
  declare_cores(variant, DROPLESS_ACCUMULATOR_FP32, DROPLESS_ACCUMULATOR_TENSOR_CORE_25,
                DROPLESS_ACCUMULATOR_TENSOR_CORE_25);
  // Parts of at least 7 products, as every tile of a kernel has.
  const Dot parts = [](Values a, Values b) {
    const Dot inner = core(accumulators::hopper_bf16);
    return a.size() < 64 ? inner(a, b) : accumulators::split(4, inner, false, a, b);
  };
  accumulate_with(variant, {split(4, accumulators::sequential), parts, parts});
}

void plant_hopper_fp8(Planted& variant) {
  declare_cores(variant, DROPLESS_ACCUMULATOR_FP32, DROPLESS_ACCUMULATOR_TENSOR_CORE_25,
                DROPLESS_ACCUMULATOR_HOPPER_FP8_13, 128);
  accumulate_with(variant, {accumulators::sequential, core(accumulators::hopper_bf16),
                            core(accumulators::hopper_fp8, 128)});
}

void plant_hopper_fp8_without_promotion(Planted& variant) {
  declare_cores(variant, DROPLESS_ACCUMULATOR_FP32, DROPLESS_ACCUMULATOR_TENSOR_CORE_25,
                DROPLESS_ACCUMULATOR_HOPPER_FP8_13, 0);
  accumulate_with(variant, {accumulators::sequential, core(accumulators::hopper_bf16),
                            core(accumulators::hopper_fp8)});
}

void plant_bf16_partials(Planted& variant) {
  variant.declare([](dropless_profile& profile) { profile.partials = DROPLESS_PARTIALS_BF16; });
  accumulate_with(variant, all_of(split(4, accumulators::sequential, true)));
}

// As atomics do: another order in every call.
void plant_any_order(Planted& variant) {
  variant.declare([](dropless_profile& profile) {
    profile.determinism = DROPLESS_DETERMINISTIC_NO;
    profile.unpermute_order = DROPLESS_UNPERMUTE_ANY_ORDER;
  });
  const auto calls = std::make_shared<int>(0);
  accumulate_with(variant, all_of([calls](Values a, Values b) {
                    switch (++*calls % 4) {
                      case 0:
                        return accumulators::sequential(a, b);
                      case 1:
                        return accumulators::reversed(a, b);
                      case 2:
                        return accumulators::pairwise(a, b);
                      default:
                        return accumulators::split(3, accumulators::fused, false, a, b);
                    }
                  }));
}

}  // namespace

void add_accumulators(std::vector<Variant>& variants) {
  variants.push_back({"gemm-sequential", "products and partial sums in fp32, left to right",
                      [](Planted& v) { accumulate_with(v, all_of(accumulators::sequential)); }});
  variants.push_back({"gemm-reversed", "products and partial sums in fp32, right to left",
                      [](Planted& v) { accumulate_with(v, all_of(accumulators::reversed)); }});
  variants.push_back({"gemm-pairwise", "products in fp32, added as a balanced tree",
                      [](Planted& v) { accumulate_with(v, all_of(accumulators::pairwise)); }});
  variants.push_back({"gemm-fused", "fused multiply-add in fp32",
                      [](Planted& v) { accumulate_with(v, all_of(accumulators::fused)); }});
  variants.push_back({"gemm-split-k", "four parts in fp32, each left to right", [](Planted& v) {
                        accumulate_with(v, all_of(split(4, accumulators::sequential)));
                      }});
  variants.push_back({"gemm-tensor-core",
                      "bf16 and MXFP8: 16 products a step, 25 bits, truncated (declared)",
                      plant_tensor_core});
  variants.push_back({"gemm-tensor-core-32",
                      "all operands: 32 products a step, 25 bits, truncated (declared)",
                      plant_wide_tensor_core});
  variants.push_back({"gemm-tensor-core-split-k",
                      "four parts of 25 bits, truncated (declared), added in fp32",
                      plant_split_tensor_core});
  variants.push_back({"gemm-hopper-fp8", "MXFP8: 13 bits, promoted every 128 products (declared)",
                      plant_hopper_fp8});
  variants.push_back({"gemm-hopper-fp8-unpromoted", "MXFP8: 13 bits, never promoted (declared)",
                      plant_hopper_fp8_without_promotion});
  variants.push_back(
      {"gemm-bf16-partials", "four parts, each rounded to bf16 (declared)", plant_bf16_partials});
  variants.push_back({"gemm-any-order", "another order in every call (declared)", plant_any_order});
}

}  // namespace dropless::honest
