// SPDX-License-Identifier: Apache-2.0
// Faults of the grouped GEMM: contraction and layout in this file, groups, precision and MXFP8
// operands in others, and those that only a device shows.
#include <cmath>

#include "tests/faults/products.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

void add_contraction(std::vector<Fault>& faults) {
  const auto add = [&](const char* name, const char* provenance, const char* symptom,
                       const char* trigger, void (*plant)(Planted&)) {
    faults.push_back(
        {.name = name,
         .provenance = provenance,
         .symptom = symptom,
         .trigger = trigger,
         .clauses = {"GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c", "GROUPED_GEMM-1a"},
         .plant = plant});
  };
  add("grouped_gemm.last_product_dropped", "numerics: last k dropped",
      "the last term of every sum is missing", "always; 33 % of the outputs pass 1.6e-2",
      [](Planted& planted) {
        contract_partly(planted, [](Index k, Index length) { return k + 1 < length; });
      });
  add("grouped_gemm.contraction_tail_skipped", "maxtext 1183",
      "difference above 10 against the plain loop", "a contraction that is no multiple of 16",
      [](Planted& planted) {
        contract_partly(planted,
                        [](Index k, Index length) { return length < 16 || k < length / 16 * 16; });
      });
  add("grouped_gemm.last_block_dropped", "numerics: last 32-block dropped",
      "the last 32 terms of every sum are missing", "a contraction above 32", [](Planted& planted) {
        contract_partly(planted, [](Index k, Index length) {
          return length <= 32 || k < (length - 1) / 32 * 32;
        });
      });
  add("grouped_gemm.split_takes_the_floor", "cuBLAS 12.6U2 to 13.4U1 [6580689]",
      "the rest of the division by the number of splits is lost",
      "splits that don't divide the contraction", [](Planted& planted) {
        contract_partly(planted, [](Index k, Index length) { return k < length / 4 * 4; });
      });
}

void add_layout(std::vector<Fault>& faults) {
  faults.push_back({.name = "grouped_gemm.weights_transposed",
                    .provenance = "Transformer Engine 2659",
                    .symptom = "the layout of a matrix is taken as column-major",
                    .trigger = "weights that are not symmetric",
                    .clauses = {"GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-6a"},
                    .plant = [](Planted& planted) {
                      around_row_products(planted, [](const auto& next, auto& a) {
                        if (!is_readable(right_of(a)) || right_of(a)->scales != nullptr) {
                          return next(a);
                        }
                        dropless_tensor w = *right_of(a)->values;
                        if (w.rank != 3 || w.strides[2] != 1 || w.strides[1] != w.shape[2]) {
                          return next(a);
                        }
                        w.strides[1] = 1;
                        w.strides[2] = w.shape[1];
                        const dropless_operand right = with_values(*right_of(a), &w);
                        right_of(a) = &right;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.gradient_taken_as_contiguous",
                    .provenance = "pytorch 159620",
                    .symptom = "a gradient of wrong width in the backward pass",
                    .trigger = "an output gradient with gaps",
                    .clauses = {"GROUPED_GEMM-8", "GENERAL-6"},
                    .plant = [](Planted& planted) {
                      const auto dense_left = [](const auto& next, auto& a) {
                        if (!is_readable(left_of(a))) return next(a);
                        const dropless_tensor dense = without_strides(*left_of(a)->values);
                        const dropless_operand left = with_values(*left_of(a), &dense);
                        left_of(a) = &left;
                        return next(a);
                      };
                      planted.around<&Table::gemm_dgrad>(dense_left);
                      planted.around<&Table::gemm_wgrad>(dense_left);
                    }});
  faults.push_back({.name = "grouped_gemm.output_strides_ignored",
                    .provenance = "flashinfer 3103",
                    .symptom = "results are written between the rows",
                    .trigger = "an output with gaps",
                    .clauses = {"GROUPED_GEMM-8", "GENERAL-0"},
                    .plant = [](Planted& planted) {
                      around_products(planted, [](const auto& next, auto& a) {
                        if (!is_readable(output_of(a))) return next(a);
                        const dropless_tensor dense = without_strides(*output_of(a));
                        output_of(a) = &dense;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.weight_strides_ignored",
                    .provenance = "flashinfer 3103",
                    .symptom = "weights of other experts are read",
                    .trigger = "weights with gaps",
                    .clauses = {"GROUPED_GEMM-8", "GENERAL-6"},
                    .plant = [](Planted& planted) {
                      around_row_products(planted, [](const auto& next, auto& a) {
                        if (!is_readable(right_of(a))) return next(a);
                        const dropless_tensor dense = without_strides(*right_of(a)->values);
                        const dropless_operand right = with_values(*right_of(a), &dense);
                        right_of(a) = &right;
                        return next(a);
                      });
                    }});
}

void add_factors(std::vector<Fault>& faults) {
  faults.push_back(
      {.name = "grouped_gemm.alpha_ignored",
       .provenance = "operator O9: factor never applied (cuBLAS 6059292)",
       .symptom = "the factor of the product has no effect",
       .trigger = "alpha other than 1",
       .clauses = {"GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c", "GROUPED_GEMM-6a"},
       .plant = [](Planted& planted) {
         around_products(planted, [](const auto& next, auto& a) {
           a.alpha = 1;
           return next(a);
         });
       }});
  faults.push_back({.name = "grouped_gemm.alpha_scales_bias",
                    .provenance = "operator O9: factor in the wrong place (vllm 24119)",
                    .symptom = "the bias is multiplied by alpha",
                    .trigger = "alpha other than 1 and a bias",
                    .clauses = {"GROUPED_GEMM-0a", "GROUPED_GEMM-6a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::gemm_fprop>([](const auto& next, auto& a) {
                        const Copy bias(a.bias, DROPLESS_FP32);
                        if (bias.readable()) {
                          each(bias.tensor(), [&](double b, Index) { return a.alpha * b; });
                        }
                        a.bias = bias.tensor();
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.accumulation_overwrites",
                    .provenance = "Transformer Engine 3437: assign instead of add",
                    .symptom = "the gradient of earlier micro-batches is lost",
                    .trigger = "beta = 1",
                    .clauses = {"GROUPED_GEMM-0c", "GROUPED_GEMM-5"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::gemm_wgrad>([](const auto& next, auto& a) {
                        const Copy scratch(a.dw);
                        Wgrad trial = a;
                        trial.dw = scratch.tensor();
                        const dropless_status status = next(trial);
                        if (status != DROPLESS_OK) return status;
                        drop_epilogue(a);
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.beta_taken_as_one",
                    .provenance = "operator O9: fixed factor (pytorch grouped_mm accumulates)",
                    .symptom = "C is added unscaled",
                    .trigger = "beta other than 0 and 1",
                    .clauses = {"GROUPED_GEMM-0c", "GROUPED_GEMM-5"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::gemm_wgrad>([](auto& a) {
                        if (a.beta != 0) a.beta = 1;
                      });
                    }});
  faults.push_back(
      {.name = "grouped_gemm.output_read_when_beta_is_zero",
       .provenance = "MSLK 158: an output that is empty() instead of zeros()",
       .symptom = "NaN from recycled memory",
       .trigger = "beta = 0 and a dirty output",
       .clauses = {"GROUPED_GEMM-6c", "GROUPED_GEMM-5", "GROUPED_GEMM-0c"},
       .plant = [](Planted& planted) {
         planted.around<&Table::gemm_wgrad>([](const auto& next, auto& a) {
           const Copy before(a.dw);
           const dropless_status status = next(a);
           if (status != DROPLESS_OK || a.beta != 0) return status;
           each(a.dw, [&](double d, Index i) { return d + 0 * before.elements().load_flat(i); });
           return status;
         });
       }});
}

void add_contract(std::vector<Fault>& faults) {
  faults.push_back({.name = "grouped_gemm.alignment_not_checked",
                    .provenance = "FBGEMM 3949; DeepGEMM 268; marin 8339",
                    .symptom = "zones that break the declared alignment are accepted",
                    .trigger = "a declared alignment and zones that break it",
                    .clauses = {"GROUPED_GEMM-1c"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) { p.gemm_alignment = 16; });
                      planted.behave_as([](dropless_profile& p) { p.gemm_alignment = 1; });
                    }});
  faults.push_back({.name = "grouped_gemm.refusals_swallowed",
                    .provenance = "DeepGEMM 268: an undeclared precondition",
                    .symptom = "offsets and shapes that do not fit are accepted",
                    .trigger = "an illegal request",
                    .clauses = {"GENERAL-3"},
                    .plant = [](Planted& planted) {
                      swallow_refusals<&Table::gemm_fprop>(planted);
                      swallow_refusals<&Table::gemm_dgrad>(planted);
                      swallow_refusals<&Table::gemm_wgrad>(planted);
                    }});
  faults.push_back({.name = "grouped_gemm.no_rows_refused",
                    .provenance = "pytorch 192497; Transformer Engine 3067",
                    .symptom = "an all-empty call is rejected",
                    .trigger = "no rows",
                    .clauses = {"GROUPED_GEMM-1b", "GENERAL-4"},
                    .plant = [](Planted& planted) {
                      const auto rows = [](auto& a) {
                        return left_of(a) == nullptr ? nullptr : left_of(a)->values;
                      };
                      refuse_empty<&Table::gemm_fprop>(planted, rows);
                      refuse_empty<&Table::gemm_wgrad>(planted, rows);
                    }});
  faults.push_back({.name = "grouped_gemm.no_rows_returns_early",
                    .provenance = "operator O4: drop a zero case (Transformer Engine 1468)",
                    .symptom = "the weight gradient of an empty batch is not written",
                    .trigger = "no rows",
                    .clauses = {"GROUPED_GEMM-5", "GROUPED_GEMM-1b"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::gemm_wgrad>([](const auto& next, auto& a) {
                        const bool empty = is_readable(a.dy) && view(a.dy->values).size() == 0;
                        const Copy before(a.dw);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK && empty) before.write_back();
                        return status;
                      });
                    }});
}

void add_elsewhere(std::vector<Fault>& faults) {
  const auto gpu = [&](const char* name, const char* provenance, const char* symptom,
                       const char* trigger, const char* reason) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = trigger,
                      .clauses = {},
                      .visibility = Visibility::gpu,
                      .reason = reason});
  };
  gpu("grouped_gemm.scheduler_waits_for_an_empty_group", "pytorch 152668; torchtitan 1118",
      "the backward pass hangs", "an expert without tokens on Hopper",
      "a tile scheduler of a persistent kernel");
  gpu("grouped_gemm.prologue_without_a_trip", "CUTLASS 1593; tgale96/grouped_gemm 14",
      "random illegal access", "an empty contraction", "an out-of-bounds prefetch of a device");
  gpu("grouped_gemm.workspace_counters_not_reset", "cuBLASLt 13.2U1 [6456362]",
      "hang when several calls reuse one workspace", "back-to-back calls on one workspace",
      "the counters live in a device library's workspace");
  gpu("grouped_gemm.workspace_by_compacted_index", "Transformer Engine 1045",
      "later products share one workspace", "an empty group among several streams",
      "needs several streams");
  gpu("grouped_gemm.offsets_read_past_the_end", "pytorch 163462",
      "out-of-bounds read of the offsets", "the last group", "a device's memory checker sees it");
  gpu("grouped_gemm.tensor_memory_shared", "cuBLASLt 13.2 [5807900]",
      "wrong result beside another kernel", "two kernels that use Tensor Memory",
      "needs a Blackwell device");
  gpu("grouped_gemm.row_offset_in_32_bits", "torchtitan 1932; cuBLAS [CUB-9572], [5113092]",
      "illegal access for more than 2^31 elements", "a very large operand",
      "needs more than 2^31 elements");
  gpu("grouped_gemm.label_minus_one_not_tested", "DeepGEMM 34, 38",
      "out-of-bounds access for rows that are to be skipped", "rows labelled -1",
      "the labels are an input of that kernel only");
  gpu("grouped_gemm.two_stages_assumed", "CUTLASS 3.9.1; vllm 17602",
      "hang with a single step of the contraction", "K = 128 with group scaling",
      "a software pipeline of a device kernel");
  gpu("grouped_gemm.configuration_of_another_shape", "DeepGEMM 405; torchao 2877",
      "illegal instruction or address", "sizes that no tuned table holds",
      "a device kernel's configuration");
}

}  // namespace

void add_grouped_gemm(std::vector<Fault>& faults) {
  add_contraction(faults);
  add_layout(faults);
  add_factors(faults);
  add_gemm_groups(faults);
  add_gemm_precision(faults);
  add_gemm_mxfp8(faults);
  add_contract(faults);
  add_elsewhere(faults);
}

}  // namespace dropless::faults
