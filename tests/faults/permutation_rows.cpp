// SPDX-License-Identifier: Apache-2.0
// Faults of permuted rows, of the sum that brings them back, and of both gradients.
#include <algorithm>
#include <cmath>

#include "tests/faults/permuters.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

Index end_of(const dropless_tensor* offsets) {
  return view(offsets).load_integer(view(offsets).size() - 1);
}

void add_copies(std::vector<Fault>& faults) {
  faults.push_back({.name = "permutation.padding_rows_unwritten",
                    .provenance = "Transformer Engine 1945, 3070; Primus-Turbo 401",
                    .symptom = "padding rows hold what the buffer held",
                    .trigger = "an alignment of 16",
                    .clauses = {"PERMUTATION-3b"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) { p.alignment = 16; });
                      planted.around<&Table::permute_forward>([](const auto& next, auto& a) {
                        Copy before(a.rows);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        const Index columns = view(a.rows).shape(1), end = end_of(a.offsets);
                        for (Index row = 0; row < end; ++row) {
                          if (view(a.source).load_integer(row) >= 0) continue;
                          for (Index c = 0; c < columns; ++c) {
                            view(a.rows).store_integer(before.elements().load_integer(row, c), row,
                                                       c);
                          }
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "permutation.padding_rows_copy_token_zero",
                    .provenance = "torchtitan 1237, reverted by 1340",
                    .symptom = "padding rows hold a real token",
                    .trigger = "an alignment of 16",
                    .clauses = {"PERMUTATION-3b"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) { p.alignment = 16; });
                      planted.after<&Table::permute_forward>([](auto& a) {
                        if (!has_elements(a.x)) return;
                        for (Index row = 0; row < end_of(a.offsets); ++row) {
                          if (view(a.source).load_integer(row) >= 0) continue;
                          for (Index c = 0; c < view(a.rows).shape(1); ++c) {
                            view(a.rows).store_integer(view(a.x).load_integer(0, c), row, c);
                          }
                        }
                      });
                    }});
  faults.push_back(
      {.name = "permutation.zero_weight_erases_row",
       .provenance = "operator O4: drop a zero case (a probability of zero taken for padding)",
       .symptom = "the row of a pair with weight 0 is cleared",
       .trigger = "a routing weight of exactly 0",
       .clauses = {"PERMUTATION-4b"},
       .plant = [](Planted& planted) {
         planted.after<&Table::permute_forward>([](auto& a) {
           if (a.weights == nullptr) return;
           each_integer(a.rows, [&](Index bits, Index i) {
             const Index row = i / view(a.rows).shape(1);
             if (row >= end_of(a.offsets)) return bits;
             const Index pair = view(a.source).load_integer(row);
             return pair >= 0 && view(a.weights).load_flat(pair) == 0 ? Index{0} : bits;
           });
         });
       }});
  faults.push_back({.name = "permutation.rows_copied_as_numbers",
                    .provenance = "operator O11: type reinterpreted (sglang 28378)",
                    .symptom = "NaN payloads are lost on the way",
                    .trigger = "a NaN that is not the standard one",
                    .clauses = {"PERMUTATION-4a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_forward>([](auto& a) {
                        if (!is_floating_point(a.rows->dtype)) return;

                        const TensorView rows = view(a.rows);
                        for (Index i = 0; i < end_of(a.offsets) * rows.shape(1); ++i) {
                          rows.store_flat(rows.load_flat(i), i);
                        }
                      });
                    }});
  faults.push_back({.name = "permutation.subnormals_flushed",
                    .provenance = "numerics: flush-to-zero builds",
                    .symptom = "tiny values arrive as zero",
                    .trigger = "subnormal elements",
                    .clauses = {"PERMUTATION-4a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_forward>([](auto& a) {
                        const dropless_dtype dtype = a.rows->dtype;
                        if (dtype != DROPLESS_FP32 && dtype != DROPLESS_BF16) return;
                        const Index magnitude = dtype == DROPLESS_FP32 ? 0x7FFFFFFF : 0x7FFF;
                        const Index smallest = dtype == DROPLESS_FP32 ? 0x00800000 : 0x0080;
                        each_integer(a.rows, [&](Index bits, Index) {
                          return (bits & magnitude) < smallest ? bits & ~magnitude : bits;
                        });
                      });
                    }});
  faults.push_back(
      {.name = "permutation.negative_zero_lost",
       .provenance = "operator O1: neutral element, rows are added to a cleared buffer",
       .symptom = "-0 arrives as +0",
       .trigger = "negative zeros",
       .clauses = {"PERMUTATION-4a"},
       .plant = [](Planted& planted) {
         planted.after<&Table::permute_forward>([](auto& a) {
           const dropless_dtype dtype = a.rows->dtype;
           if (dtype != DROPLESS_FP32 && dtype != DROPLESS_BF16) return;
           const Index minus_zero = dtype == DROPLESS_FP32 ? 0x80000000 : 0x8000;
           each_integer(a.rows,
                        [&](Index bits, Index) { return bits == minus_zero ? Index{0} : bits; });
         });
       }});
  faults.push_back({.name = "permutation.row_weights_not_moved",
                    .provenance = "transformers 45473, bug 1",
                    .symptom = "every routing weight is paired with a wrong row",
                    .trigger = "weights that travel with the rows",
                    .clauses = {"PERMUTATION-4c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_forward>([](auto& a) {
                        if (a.row_weights == nullptr || !has_elements(a.weights)) return;
                        const std::vector<double> flat = values_of(a.weights);
                        each(a.row_weights, [&](double w, Index row) {
                          const bool real =
                              row < end_of(a.offsets) && view(a.source).load_integer(row) >= 0;
                          return real ? flat[at(row) % flat.size()] : w;
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.row_weights_in_bf16",
                    .provenance = "Megatron-LM 1421; sglang 39351",
                    .symptom = "routing weights lose precision on the way",
                    .trigger = "weights that travel with the rows",
                    .clauses = {"PERMUTATION-4c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_forward>([](auto& a) {
                        if (a.row_weights == nullptr) return;
                        each(a.row_weights, [&](double w, Index row) {
                          return row < end_of(a.offsets) ? bf16(w) : w;
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.scales_of_the_next_token",
                    .provenance = "vllm 53345",
                    .symptom = "scales of another token are applied",
                    .trigger = "scale bytes that travel with the rows",
                    .clauses = {"PERMUTATION-4c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_forward>([](auto& a) {
                        if (a.row_scales == nullptr || !has_elements(a.scales)) return;
                        const Index tokens = view(a.scales).shape(0);
                        const Index k = view(a.row_map).shape(1);
                        each_integer(a.row_scales, [&](Index byte, Index i) {
                          const Index row = i / view(a.row_scales).shape(1);
                          if (row >= end_of(a.offsets)) return byte;
                          const Index pair = view(a.source).load_integer(row);
                          if (pair < 0) return byte;
                          return view(a.scales).load_integer((pair / k + 1) % tokens,
                                                             i % view(a.row_scales).shape(1));
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.tail_rows_cleared",
                    .provenance = "operator O17: undeclared tail rule (pytorch 193633)",
                    .symptom = "rows beyond the end are written",
                    .trigger = "a buffer longer than the rows in use",
                    .clauses = {"PERMUTATION-8"},
                    .plant = [](Planted& planted) {
                      planted.behave_as(
                          [](dropless_profile& p) { p.tail_rows = DROPLESS_TAIL_ZERO; });
                    }});
  faults.push_back(
      {.name = "permutation.declared_zero_tail_left",
       .provenance = "pytorch 193633; torchtitan 1237",
       .symptom = "rows beyond the end hold garbage although zero is promised",
       .trigger = "a buffer longer than the rows in use",
       .clauses = {"PERMUTATION-8"},
       .plant = [](Planted& planted) {
         planted.declare([](dropless_profile& p) { p.tail_rows = DROPLESS_TAIL_ZERO; });
         planted.behave_as([](dropless_profile& p) { p.tail_rows = DROPLESS_TAIL_UNTOUCHED; });
       }});
}

// y[t,h] = sum(t, h) by another way of adding.
template <class Sum>
void add_otherwise(Planted& planted, Sum sum) {
  planted.after<&Table::unpermute_forward>([sum](auto& a) {
    for (Index t = 0; t < view(a.y).shape(0); ++t) {
      for (Index h = 0; h < view(a.y).shape(1); ++h) view(a.y).store(sum(a, t, h), t, h);
    }
  });
}

template <class Args>
double term(const Args& a, Index t, Index j, Index h) {
  const Index row = view(a.row_map).load_integer(t, j);
  if (row < 0) return 0;
  const double w = a.weights != nullptr ? view(a.weights).load(t, j) : 1;
  return w * view(a.rows).load(row, h);
}

void add_sums(std::vector<Fault>& faults) {
  faults.push_back({.name = "permutation.sum_in_bf16",
                    .provenance = "vllm 15045; TIRx 208; mlx-lm 938",
                    .symptom = "precision is lost, the more the larger K is",
                    .trigger = "a running sum in the activations' type",
                    .clauses = {"PERMUTATION-6a", "PERMUTATION-6b"},
                    .plant = [](Planted& planted) {
                      add_otherwise(planted, [](const auto& a, Index t, Index h) {
                        double sum = 0;
                        for (Index j = 0; j < view(a.row_map).shape(1); ++j) {
                          sum = bf16(sum + term(a, t, j, h));
                        }
                        return sum;
                      });
                    }});
  faults.push_back({.name = "permutation.terms_rounded_before_the_sum",
                    .provenance = "torchtitan 2679",
                    .symptom = "weighted expert outputs are rounded one by one",
                    .trigger = "bf16 activations",
                    .clauses = {"PERMUTATION-6a"},
                    .plant = [](Planted& planted) {
                      add_otherwise(planted, [](const auto& a, Index t, Index h) {
                        double sum = 0;
                        for (Index j = 0; j < view(a.row_map).shape(1); ++j) {
                          sum += bf16(term(a, t, j, h));
                        }
                        return sum;
                      });
                    }});
  faults.push_back({.name = "permutation.combine_weights_in_bf16",
                    .provenance = "sglang 39351; vllm 48895",
                    .symptom = "routing weights are rounded to bf16 before the sum",
                    .trigger = "weights",
                    .clauses = {"PERMUTATION-6a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::unpermute_forward>([](const auto& next, auto& a) {
                        Copy weights(a.weights);
                        each(weights.tensor() == a.weights ? nullptr : weights.tensor(),
                             [](double w, Index) { return bf16(w); });
                        a.weights = weights.tensor();
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "permutation.last_slot_forgotten",
                    .provenance = "operator O20: loop bound off by one",
                    .symptom = "a token misses one of its experts",
                    .trigger = "always",
                    .clauses = {"PERMUTATION-6b", "PERMUTATION-6a"},
                    .plant = [](Planted& planted) {
                      add_otherwise(planted, [](const auto& a, Index t, Index h) {
                        double sum = 0;
                        const Index k = view(a.row_map).shape(1);
                        for (Index j = 0; j + (k > 1 ? 1 : 0) < k; ++j) sum += term(a, t, j, h);
                        return sum;
                      });
                    }});
  faults.push_back({.name = "permutation.sum_is_a_mean",
                    .provenance = "operator O9: factor inverted (sglang 28237)",
                    .symptom = "the unweighted sum is divided by K",
                    .trigger = "no weights",
                    .clauses = {"PERMUTATION-6b", "PERMUTATION-6a"},
                    .plant = [](Planted& planted) {
                      add_otherwise(planted, [](const auto& a, Index t, Index h) {
                        double sum = 0;
                        const auto k = static_cast<double>(view(a.row_map).shape(1));
                        for (Index j = 0; j < view(a.row_map).shape(1); ++j) {
                          sum += term(a, t, j, h);
                        }
                        return a.weights == nullptr ? sum / k : sum;
                      });
                    }});
  faults.push_back({.name = "permutation.weights_ignored",
                    .provenance = "operator O9: factor never applied (vllm 45037)",
                    .symptom = "the sum is not weighted",
                    .trigger = "weights",
                    .clauses = {"PERMUTATION-6a", "PERMUTATION-6b"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::unpermute_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        a.weights = nullptr;
                        return status == DROPLESS_OK ? next(a) : status;
                      });
                    }});
  faults.push_back({.name = "permutation.empty_slot_adds_row_zero",
                    .provenance = "kernels-community 1056; aiter 4636",
                    .symptom = "a slot without expert adds the first row",
                    .trigger = "ids of -1",
                    .clauses = {"PERMUTATION-6a", "PERMUTATION-6b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::unpermute_forward>([](auto& a) {
                        if (!has_elements(a.rows) || !has_elements(a.y)) return;
                        const TensorView y = view(a.y), rows = view(a.rows), map = view(a.row_map);
                        for (Index t = 0; t < y.shape(0); ++t) {
                          for (Index j = 0; j < map.shape(1); ++j) {
                            if (map.load_integer(t, j) >= 0) continue;
                            const double w = a.weights ? view(a.weights).load(t, j) : 1;
                            for (Index h = 0; h < y.shape(1); ++h) {
                              y.store(y.load(t, h) + w * rows.load(0, h), t, h);
                            }
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "permutation.padding_multiplied_by_zero",
                    .provenance = "transformers 48205, 45621",
                    .symptom = "NaN from the second step on",
                    .trigger = "padding or tail rows that hold NaN",
                    .clauses = {"PERMUTATION-3c", "PERMUTATION-8"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::unpermute_forward>([](auto& a) {
                        std::vector<char> used(at(view(a.rows).shape(0)), 0);
                        for (const Index row : integers_of(a.row_map)) {
                          if (row >= 0) used[at(row)] = 1;
                        }
                        each(a.y, [&](double y, Index i) {
                          for (Index row = 0; row < view(a.rows).shape(0); ++row) {
                            if (used[at(row)] != 0) continue;
                            y += 0 * view(a.rows).load(row, i % view(a.rows).shape(1));
                          }
                          return y;
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.token_without_expert_keeps_old_sum",
                    .provenance = "vllm 20167",
                    .symptom = "tokens without an expert hold what the buffer held",
                    .trigger = "a token whose ids are all -1",
                    .clauses = {"PERMUTATION-6a", "PERMUTATION-6b"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::unpermute_forward>([](const auto& next, auto& a) {
                        Copy before(a.y);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        each_integer(a.y, [&](Index bits, Index i) {
                          const Index t = i / view(a.y).shape(1);
                          for (Index j = 0; j < view(a.row_map).shape(1); ++j) {
                            if (view(a.row_map).load_integer(t, j) >= 0) return bits;
                          }
                          return before.elements().load_integer_flat(i);
                        });
                        return status;
                      });
                    }});
  faults.push_back({.name = "permutation.sum_order_depends_on_threads",
                    .provenance = "vllm 53440, 53442",
                    .symptom = "same input, different low bits",
                    .trigger = "atomic additions and another number of threads",
                    .clauses = {"GENERAL-5"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::unpermute_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        const Index k = view(a.row_map).shape(1);
                        const Index start = next.call()->threads > 1 ? k / 2 : 0;
                        each(a.y, [&](double, Index i) {
                          float sum = 0;
                          for (Index j = 0; j < k; ++j) {
                            sum +=
                                static_cast<float>(term(a, i / view(a.y).shape(1), (j + start) % k,
                                                        i % view(a.y).shape(1)));
                          }
                          return static_cast<double>(sum);
                        });
                        return status;
                      });
                    }});
}

void add_gradients(std::vector<Fault>& faults) {
  faults.push_back({.name = "permutation.gradient_assigned_not_added",
                    .provenance = "operator O21: assign instead of add (Transformer Engine 3437)",
                    .symptom = "only the last expert's gradient reaches the token",
                    .trigger = "K above 1",
                    .clauses = {"PERMUTATION-7a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_backward>([](auto& a) {
                        const Index k = view(a.row_map).shape(1);
                        each(a.d_x, [&](double d, Index i) {
                          const Index t = i / view(a.d_x).shape(1), h = i % view(a.d_x).shape(1);
                          for (Index j = k - 1; j >= 0; --j) {
                            const Index row = view(a.row_map).load_integer(t, j);
                            if (row >= 0) return view(a.d_rows).load(row, h);
                          }
                          return d;
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.weight_gradients_in_row_order",
                    .provenance = "transformers 45473, in the backward pass",
                    .symptom = "gradients of the weights return to other slots",
                    .trigger = "weights that travel with the rows",
                    .clauses = {"PERMUTATION-7a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_backward>([](auto& a) {
                        if (a.d_weights == nullptr || !has_elements(a.d_row_weights)) return;
                        const std::vector<double> rows = values_of(a.d_row_weights);
                        each(a.d_weights, [&](double d, Index i) {
                          return view(a.row_map).load_integer_flat(i) < 0
                                     ? d
                                     : rows[at(i) % rows.size()];
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.empty_slot_sends_gradient",
                    .provenance = "kernels-community 1056",
                    .symptom = "an empty slot adds the gradient of the first row",
                    .trigger = "ids of -1",
                    .clauses = {"PERMUTATION-7a"},
                    .plant = [](Planted& planted) {
                      // Afterwards: a map with one row in two slots would be refused.
                      planted.after<&Table::permute_backward>([](auto& a) {
                        if (!has_elements(a.d_x) || !has_elements(a.d_rows)) return;
                        const TensorView map = view(a.row_map);
                        for (Index t = 0; t < map.shape(0); ++t) {
                          for (Index j = 0; j < map.shape(1); ++j) {
                            if (map.load_integer(t, j) >= 0) continue;
                            for (Index h = 0; h < view(a.d_x).shape(1); ++h) {
                              const double sum = view(a.d_x).load(t, h) + view(a.d_rows).load(0, h);
                              view(a.d_x).store(sum, t, h);
                            }
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "permutation.row_gradients_not_weighted",
                    .provenance = "operator O16: no backward twin (vllm 45037)",
                    .symptom = "d_rows lacks the routing weight",
                    .trigger = "weights",
                    .clauses = {"PERMUTATION-7b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::unpermute_backward>([](auto& a) {
                        if (a.weights == nullptr) return;
                        const Index k = view(a.row_map).shape(1), h = view(a.d_rows).shape(1);
                        each(a.d_rows, [&](double d, Index i) {
                          const Index row = i / h;
                          if (row >= end_of(a.offsets)) return d;
                          const Index pair = view(a.source).load_integer(row);
                          return pair < 0 ? d : view(a.d_y).load(pair / k, i % h);
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.weight_gradient_of_weighted_rows",
                    .provenance = "operator O9: factor twice (vllm 24119)",
                    .symptom = "d_weights contains the weight",
                    .trigger = "weights",
                    .clauses = {"PERMUTATION-7b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::unpermute_backward>([](auto& a) {
                        if (a.weights == nullptr) return;
                        each(a.d_weights,
                             [&](double d, Index i) { return d * view(a.weights).load_flat(i); });
                      });
                    }});
  faults.push_back({.name = "permutation.weight_gradient_in_bf16",
                    .provenance = "operator O15: low accumulation (vllm 15045)",
                    .symptom = "the dot product of d_weights is summed in bf16",
                    .trigger = "weights",
                    .clauses = {"PERMUTATION-7b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::unpermute_backward>([](auto& a) {
                        if (a.weights == nullptr) return;
                        const Index k = view(a.row_map).shape(1);
                        each(a.d_weights, [&](double d, Index i) {
                          const Index row = view(a.row_map).load_integer_flat(i);
                          if (row < 0) return d;
                          double sum = 0;
                          for (Index h = 0; h < view(a.rows).shape(1); ++h) {
                            sum =
                                bf16(sum + view(a.d_y).load(i / k, h) * view(a.rows).load(row, h));
                          }
                          return sum;
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.empty_slot_has_weight_gradient",
                    .provenance = "transformers 48687, 48689",
                    .symptom = "the loss is right, the router's gradient wrong",
                    .trigger = "ids of -1: the sentinel's row is not zero",
                    .clauses = {"PERMUTATION-7c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::unpermute_backward>([](auto& a) {
                        if (a.weights == nullptr) return;
                        each(a.d_weights, [&](double d, Index i) {
                          return view(a.row_map).load_integer_flat(i) < 0 ? 0.25 : d;
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.padding_gradients_unwritten",
                    .provenance = "Transformer Engine 1945; Megatron-LM 1984",
                    .symptom = "padding rows of d_rows hold what the buffer held",
                    .trigger = "an alignment of 16",
                    .clauses = {"PERMUTATION-7c"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) { p.alignment = 16; });
                      planted.around<&Table::unpermute_backward>([](const auto& next, auto& a) {
                        Copy before(a.d_rows);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        const Index h = view(a.d_rows).shape(1);
                        each_integer(a.d_rows, [&](Index bits, Index i) {
                          const Index row = i / h;
                          const bool padding =
                              row < end_of(a.offsets) && view(a.source).load_integer(row) < 0;
                          return padding ? before.elements().load_integer_flat(i) : bits;
                        });
                        return status;
                      });
                    }});
}

}  // namespace

void add_permutation_rows(std::vector<Fault>& faults) {
  add_copies(faults);
  add_sums(faults);
  add_gradients(faults);
}

}  // namespace dropless::faults
