// SPDX-License-Identifier: Apache-2.0
// Faults of groups: the wrong expert, rows that are not real, experts without rows.
#include <algorithm>
#include <cmath>

#include "tests/faults/products.h"

namespace dropless::faults {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// Number of an expert among those that have rows.
std::vector<Index> compacted(const std::vector<Zone>& zones) {
  std::vector<Index> numbers;
  Index next = 0;
  for (const Zone& zone : zones) numbers.push_back(zone.real_end > zone.first ? next++ : 0);
  return numbers;
}

// Experts take parameters[pick(expert)] instead of their own.
void take_slices(const Copy& copy, const dropless_tensor* source, const std::vector<Index>& pick) {
  const Index size = view(source).size() / std::max<Index>(view(source).shape(0), 1);
  each_integer(copy.tensor(), [&](Index, Index i) {
    return view(source).load_integer_flat(pick[at(i / size)] * size + i % size);
  });
}

void add_wrong_expert(std::vector<Fault>& faults) {
  faults.push_back(
      {.name = "grouped_gemm.only_the_first_group",
       .provenance = "flashinfer 3792 (cuDNN 9.18 to 9.20)",
       .symptom = "all groups but the first are zero",
       .trigger = "more than one group",
       .clauses = {"GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c", "GROUPED_GEMM-6a"},
       .plant = [](Planted& planted) {
         around_products(planted, [](const auto& next, auto& a) {
           const dropless_status status = next(a);
           if (status != DROPLESS_OK) return status;
           each_result(a, [&](Index i, Index expert) {
             if (expert > 0) view(output_of(a)).store_flat(0, i);
           });
           return status;
         });
       }});
  faults.push_back(
      {.name = "grouped_gemm.weights_by_compacted_index",
       .provenance = "Transformer Engine 1128",
       .symptom = "experts after an empty one use their neighbour's weights",
       .trigger = "an empty expert in the middle",
       .clauses = {"GROUPED_GEMM-1a", "GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-6a"},
       .plant = [](Planted& planted) {
         around_row_products(planted, [](const auto& next, auto& a) {
           const dropless_status status = next(a);
           if (status != DROPLESS_OK || right_of(a)->scales != nullptr) return status;
           const Copy w(right_of(a)->values);
           take_slices(w, right_of(a)->values, compacted(zones_of_call(a)));
           const dropless_operand right = with_values(*right_of(a), w.tensor());
           right_of(a) = &right;
           return next(a);
         });
       }});
  faults.push_back(
      {.name = "grouped_gemm.bias_of_the_first_expert",
       .provenance = "operator O6: offset of group 0 for every group (flashinfer 1862)",
       .symptom = "all experts add the bias of the first",
       .trigger = "a bias",
       .clauses = {"GROUPED_GEMM-0a", "GROUPED_GEMM-6a"},
       .plant = [](Planted& planted) {
         planted.around<&Table::gemm_fprop>([](const auto& next, auto& a) {
           const dropless_status status = next(a);
           if (status != DROPLESS_OK || a.bias == nullptr) return status;
           const Copy bias(a.bias);
           take_slices(bias, a.bias, std::vector<Index>(at(view(a.bias).shape(0)), 0));
           a.bias = bias.tensor();
           return next(a);
         });
       }});
  faults.push_back(
      {.name = "grouped_gemm.rows_from_the_start_of_the_buffer",
       .provenance = "flashinfer 1862, 1820",
       .symptom = "every group reads the rows of the first one",
       .trigger = "more than one group",
       .clauses = {"GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c", "GROUPED_GEMM-6a"},
       .plant = [](Planted& planted) {
         around_row_products(planted, [](const auto& next, auto& a) {
           const dropless_status status = next(a);
           if (status != DROPLESS_OK || left_of(a)->scales != nullptr) return status;
           const Copy values(left_of(a)->values);
           const TensorView from = view(left_of(a)->values);
           for (const Zone& zone : zones_of_call(a)) {
             for (Index row = zone.first; row < zone.real_end; ++row) {
               for (Index c = 0; c < from.shape(1); ++c) {
                 values.elements().store_integer(from.load_integer(row - zone.first, c), row, c);
               }
             }
           }
           const dropless_operand left = with_values(*left_of(a), values.tensor());
           left_of(a) = &left;
           return next(a);
         });
       }});
  faults.push_back({.name = "grouped_gemm.tile_takes_the_label_of_its_first_row",
                    .provenance = "DeepGEMM 450, 15; FBGEMM 3949",
                    .symptom = "rows after a misaligned boundary use the wrong weights",
                    .trigger = "group sizes that are no multiple of the tile",
                    .clauses = {"GROUPED_GEMM-1a", "GROUPED_GEMM-0a", "GROUPED_GEMM-0b"},
                    .plant = [](Planted& planted) {
                      around_row_products(planted, [](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.counts != nullptr) return status;
                        const Copy offsets(a.offsets);
                        const Index end = integers_of(a.offsets).back();
                        each_integer(offsets.tensor(), [&](Index o, Index) {
                          return std::min((o + 63) / 64 * 64, end);
                        });
                        auto wrong = a;
                        wrong.offsets = offsets.tensor();
                        return next(wrong);
                      });
                    }});
  faults.push_back(
      {.name = "grouped_gemm.tile_number_wraps",
       .provenance = "applied-ai 33; LightLLM 1369",
       .symptom = "the second tile of a group repeats the first",
       .trigger = "more than 64 rows in a group",
       .clauses = {"GROUPED_GEMM-1a", "GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-7a"},
       .plant = [](Planted& planted) {
         around_row_products(planted, [](const auto& next, auto& a) {
           const dropless_status status = next(a);
           if (status != DROPLESS_OK) return status;
           const TensorView output = view(output_of(a));
           for (const Zone& zone : zones_of_call(a)) {
             for (Index row = zone.first + 64; row < zone.real_end; ++row) {
               for (Index c = 0; c < output.shape(1); ++c) {
                 output.store_integer(output.load_integer(row - 64, c), row, c);
               }
             }
           }
           return status;
         });
       }});
}

void add_unreal_rows(std::vector<Fault>& faults) {
  faults.push_back({.name = "grouped_gemm.counts_ignored",
                    .provenance = "Transformer Engine 3484, 3485",
                    .symptom = "padding rows take part; the weight gradient becomes NaN",
                    .trigger = "padding rows that hold NaN",
                    .clauses = {"GROUPED_GEMM-2a", "GROUPED_GEMM-2b"},
                    .plant = [](Planted& planted) {
                      around_products(planted, [](const auto& next, auto& a) {
                        const dropless_status status = [&] {
                          const Copy scratch(output_of(a));
                          auto trial = a;
                          output_of(trial) = scratch.tensor();
                          return next(trial);
                        }();
                        if (status != DROPLESS_OK) return status;
                        a.counts = nullptr;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.last_group_reaches_the_end_of_the_buffer",
                    .provenance = "Transformer Engine 3484; torchtitan 1237",
                    .symptom = "rows beyond the last offset are computed",
                    .trigger = "a buffer longer than the rows in use",
                    .clauses = {"GROUPED_GEMM-4", "GROUPED_GEMM-2a", "GROUPED_GEMM-3"},
                    .plant = [](Planted& planted) {
                      around_products(planted, [](const auto& next, auto& a) {
                        if (!is_readable(left_of(a)) || !has_elements(a.offsets) ||
                            left_of(a)->scales != nullptr) {
                          return next(a);
                        }
                        const Copy offsets(a.offsets), counts(a.counts);
                        const Index last = offsets.elements().size() - 1;
                        const Index rows = left_of(a)->values->shape[0];
                        if (offsets.elements().load_integer(last) > rows) return next(a);
                        offsets.elements().store_integer(rows, last);
                        a.offsets = offsets.tensor();
                        if (counts.readable() && last > 0 && last <= counts.elements().size()) {
                          const Index first = offsets.elements().load_integer(last - 1);
                          counts.elements().store_integer(rows - first, last - 1);
                          a.counts = counts.tensor();
                        }
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.padding_rows_unwritten",
                    .provenance = "torchtitan 1237; pytorch 193633",
                    .symptom = "padding rows of the output hold what the buffer held",
                    .trigger = "padding rows",
                    .clauses = {"GROUPED_GEMM-2b"},
                    .plant = [](Planted& planted) {
                      around_row_products(planted, [](const auto& next, auto& a) {
                        const Copy before(output_of(a));
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        const TensorView output = view(output_of(a));
                        for (const Zone& zone : zones_of_call(a)) {
                          for (Index row = zone.real_end; row < zone.end; ++row) {
                            for (Index c = 0; c < output.shape(1); ++c) {
                              output.store_integer(before.elements().load_integer(row, c), row, c);
                            }
                          }
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.bias_in_padding_rows",
                    .provenance = "sglang 30895: padding that is not zeroed",
                    .symptom = "padding rows hold the bias",
                    .trigger = "padding rows and a bias",
                    .clauses = {"GROUPED_GEMM-2b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::gemm_fprop>([](auto& a) {
                        if (a.bias == nullptr) return;
                        Index expert = 0;
                        for (const Zone& zone : zones_of_call(a)) {
                          for (Index row = zone.real_end; row < zone.end; ++row) {
                            for (Index c = 0; c < view(a.y).shape(1); ++c) {
                              view(a.y).store(view(a.bias).load(expert, c), row, c);
                            }
                          }
                          ++expert;
                        }
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.tail_rows_cleared",
                    .provenance = "operator O17: undeclared tail rule (pytorch 193633)",
                    .symptom = "rows beyond the end are written",
                    .trigger = "a buffer longer than the rows in use",
                    .clauses = {"GROUPED_GEMM-4"},
                    .plant = [](Planted& planted) {
                      planted.behave_as(
                          [](dropless_profile& p) { p.tail_rows = DROPLESS_TAIL_ZERO; });
                    }});
  faults.push_back(
      {.name = "grouped_gemm.tail_rows_hold_garbage",
       .provenance = "pytorch 193633, 154557, 174314",
       .symptom = "rows beyond the end are uninitialised although zero is promised",
       .trigger = "a buffer longer than the rows in use",
       .clauses = {"GROUPED_GEMM-4"},
       .plant = [](Planted& planted) {
         planted.declare([](dropless_profile& p) { p.tail_rows = DROPLESS_TAIL_ZERO; });
         planted.behave_as([](dropless_profile& p) { p.tail_rows = DROPLESS_TAIL_UNTOUCHED; });
       }});
  faults.push_back({.name = "grouped_gemm.other_experts_multiplied_by_zero",
                    .provenance = "transformers 48205, 45621; flashinfer 3103",
                    .symptom = "NaN of one expert shows up in another",
                    .trigger = "NaN in the rows of another expert",
                    .clauses = {"GROUPED_GEMM-3"},
                    .plant = [](Planted& planted) {
                      around_products(planted, [](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || left_of(a)->scales != nullptr) return status;
                        const TensorView values = view(left_of(a)->values);
                        double leak = 0;
                        for (const Zone& zone : zones_of_call(a)) {
                          for (Index row = zone.first; row < zone.real_end; ++row) {
                            leak += 0 * values.load(row, 0);
                          }
                        }
                        each_result(a, [&](Index i, Index) {
                          const double y = view(output_of(a)).load_flat(i);
                          view(output_of(a)).store_flat(y + leak, i);
                        });
                        return status;
                      });
                    }});
}

// dw of experts without rows = change(args, expert, what dw held before the call).
template <class Change>
void change_empty_experts(Planted& planted, Change change) {
  planted.around<&Table::gemm_wgrad>([change](const auto& next, auto& a) {
    const Copy before(a.dw);
    const dropless_status status = next(a);
    if (status != DROPLESS_OK) return status;
    const TensorView dw = view(a.dw);
    const Index size = dw.shape(1) * dw.shape(2);
    Index expert = 0;
    for (const Zone& zone : zones_of_call(a)) {
      if (zone.real_end == zone.first) {
        for (Index i = expert * size; i < (expert + 1) * size; ++i) {
          dw.store_flat(change(a, zone, i, before.elements().load_flat(i)), i);
        }
      }
      ++expert;
    }
    return status;
  });
}

void add_empty_experts(std::vector<Fault>& faults) {
  faults.push_back({.name = "grouped_gemm.empty_expert_unwritten",
                    .provenance = "MSLK 158; MaxText 3354",
                    .symptom = "the weight gradient of an idle expert is NaN",
                    .trigger = "an expert without tokens",
                    .clauses = {"GROUPED_GEMM-5"},
                    .plant = [](Planted& planted) {
                      change_empty_experts(planted, [](auto& a, const Zone&, Index i, double old) {
                        return a.beta == 0 ? old : view(a.dw).load_flat(i);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.empty_expert_keeps_the_accumulator",
                    .provenance = "CUTLASS 2674; pytorch 172439",
                    .symptom = "an idle expert gets the gradient of the tile before",
                    .trigger = "an expert without tokens",
                    .clauses = {"GROUPED_GEMM-5"},
                    .plant = [](Planted& planted) {
                      change_empty_experts(planted, [](auto& a, const Zone&, Index i, double) {
                        const Index size = view(a.dw).shape(1) * view(a.dw).shape(2);
                        return view(a.dw).load_flat(i >= size ? i - size : i);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.empty_expert_runs_the_last_step",
                    .provenance = "tokamax 887, 1016",
                    .symptom = "every idle expert gets the same spurious gradient",
                    .trigger = "an expert without tokens",
                    .clauses = {"GROUPED_GEMM-5"},
                    .plant = [](Planted& planted) {
                      change_empty_experts(planted, [](auto& a, const Zone& zone, Index i, double) {
                        const double right = view(a.dw).load_flat(i);
                        const bool plain = a.dy->scales == nullptr && a.x->scales == nullptr;
                        if (zone.first == 0 || !plain) return right;
                        const Index out = view(a.dw).shape(1), in = view(a.dw).shape(2);
                        return right + view(a.dy->values).load(zone.first - 1, i / in % out) *
                                           view(a.x->values).load(zone.first - 1, i % in);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.empty_expert_clears_the_sum",
                    .provenance = "operator O4: drop a zero case (MSLK 158, cured too eagerly)",
                    .symptom = "the gradient of earlier micro-batches is cleared",
                    .trigger = "an expert without tokens and beta = 1",
                    .clauses = {"GROUPED_GEMM-5"},
                    .plant = [](Planted& planted) {
                      change_empty_experts(planted,
                                           [](auto&, const Zone&, Index, double) { return 0.0; });
                    }});
  faults.push_back({.name = "grouped_gemm.empty_expert_keeps_c_unscaled",
                    .provenance = "operator O4: drop a zero case (early exit before the epilogue)",
                    .symptom = "beta is not applied to an idle expert",
                    .trigger = "an expert without tokens and beta other than 1",
                    .clauses = {"GROUPED_GEMM-5"},
                    .plant = [](Planted& planted) {
                      change_empty_experts(planted, [](auto& a, const Zone&, Index i, double) {
                        const double right = view(a.dw).load_flat(i);
                        return a.beta == 0 ? right : right / a.beta;
                      });
                    }});
}

}  // namespace

void add_gemm_groups(std::vector<Fault>& faults) {
  add_wrong_expert(faults);
  add_unreal_rows(faults);
  add_empty_experts(faults);
}

}  // namespace dropless::faults
