// SPDX-License-Identifier: Apache-2.0
// Faults that were invented after the suite, one per mutation operator (docs/faults.md) that one
// rank can show. They ask whether the suite sees what it was not written for.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/faults/layers.h"
#include "tests/faults/quantisers.h"

namespace dropless::faults {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

void add_numbers(std::vector<Fault>& faults) {
  faults.push_back({.name = "losses.running_maximum_starts_at_zero",
                    .provenance = "invented after the suite: operator O1, neutral element",
                    .symptom = "all exponentials of a row are 0 and its logarithm is infinite",
                    .trigger = "a row of logits below -104",
                    .clauses = {"LOSSES-1c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::cross_entropy_forward>([](auto& a) {
                        const TensorView logits = view(a.logits);
                        for (Index t = 0; t < logits.shape(0); ++t) {
                          float sum = 0;
                          for (Index v = 0; v < logits.shape(1); ++v) {
                            const double l = logits.load(t, v);
                            sum += l > 0 ? 1.0f : std::exp(static_cast<float>(l));
                          }
                          if (sum > 0 || view(a.labels).load_integer(t) < 0) continue;
                          view(a.loss).store(-std::numeric_limits<double>::infinity(), 0);
                        }
                      });
                    }});
  faults.push_back({.name = "permutation.source_in_16_bits",
                    .provenance = "invented after the suite: operator O2, narrow an index",
                    .symptom = "rows of late tokens point before the batch",
                    .trigger = "T * K above 32768",
                    .clauses = {"PERMUTATION-2"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        each_integer(a.source, [](Index pair, Index) {
                          return static_cast<Index>(static_cast<std::int16_t>(pair));
                        });
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.alpha_twice_when_accumulating",
                    .provenance = "invented after the suite: operator O9, factor applied twice",
                    .symptom = "the accumulating epilogue scales a product that is scaled already",
                    .trigger = "alpha other than 1 and beta other than 0",
                    .clauses = {"GROUPED_GEMM-6a", "GROUPED_GEMM-0c"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::gemm_wgrad>([](auto& a) {
                        if (a.beta != 0) a.alpha *= a.alpha;
                      });
                    }});
  faults.push_back({.name = "optimizer.bf16_moment_read_as_fp16",
                    .provenance = "invented after the suite: operator O11, reinterpret a type",
                    .symptom = "the first moment is decoded by another format",
                    .trigger = "a bf16 first moment",
                    .clauses = {"OPTIMIZER-1f", "OPTIMIZER-1a"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::adamw>([](auto& a) {
                        if (!has_elements(a.first_moment)) return;
                        if (a.first_moment->dtype != DROPLESS_BF16) return;
                        const std::vector<Index> bits = integers_of(a.first_moment);
                        each(a.first_moment, [&](double, Index i) {
                          const auto code = static_cast<std::uint32_t>(bits[at(i)]);
                          const double v = decode_bits(DROPLESS_FP16, code);
                          return std::isfinite(v) ? v : 65504.0;
                        });
                      });
                    }});
  faults.push_back({.name = "losses.token_losses_summed_in_bf16",
                    .provenance = "invented after the suite: operator O15, accumulate low",
                    .symptom = "the mean over many tokens stands still",
                    .trigger = "more than 256 labelled tokens",
                    .clauses = {"LOSSES-1a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::cross_entropy_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        const TensorView logits = view(a.logits);
                        double sum = 0, labelled = 0;
                        for (Index t = 0; t < logits.shape(0); ++t) {
                          const Index label = view(a.labels).load_integer(t);
                          if (label < 0) continue;
                          double top = -std::numeric_limits<double>::infinity(), total = 0;
                          for (Index v = 0; v < logits.shape(1); ++v) {
                            top = std::max(top, logits.load(t, v));
                          }
                          for (Index v = 0; v < logits.shape(1); ++v) {
                            total += std::exp(logits.load(t, v) - top);
                          }
                          sum = bf16(sum + std::log(total) + top - logits.load(t, label));
                          labelled += 1;
                        }
                        if (labelled > 0) view(a.loss).store(sum / labelled, 0);
                        return status;
                      });
                    }});
}

void add_places(std::vector<Fault>& faults) {
  faults.push_back({.name = "permutation.weight_gradients_by_slot_first",
                    .provenance = "invented after the suite: operator O3, swap index spaces",
                    .symptom = "d_weights is laid out as [K,T]",
                    .trigger = "more than one token and more than one slot",
                    .clauses = {"PERMUTATION-7b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::unpermute_backward>([](auto& a) {
                        if (!has_elements(a.d_weights)) return;
                        const std::vector<double> right = values_of(a.d_weights);
                        const Index tokens = view(a.d_weights).shape(0);
                        const Index slots = view(a.d_weights).shape(1);
                        each(a.d_weights, [&](double, Index i) {
                          return right[at(i % tokens * slots + i / tokens)];
                        });
                      });
                    }});
  faults.push_back({.name = "losses.no_coefficient_returns_early",
                    .provenance = "invented after the suite: operator O4, drop a zero case",
                    .symptom = "loss and gradient are not written",
                    .trigger = "a balance loss with the coefficient 0",
                    .clauses = {"ROUTING-14a", "GENERAL-1"},
                    .plant = [](Planted& planted) {
                      const auto skip = [](const auto& next, auto& a) {
                        const Copy loss(a.loss), gradient(a.d_logits);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK && a.coeff == 0) {
                          loss.write_back(), gradient.write_back();
                        }
                        return status;
                      };
                      planted.around<&Table::balance_loss_forward>(skip);
                      planted.around<&Table::balance_loss_backward>(skip);
                    }});
  faults.push_back({.name = "routing.bias_update_leaves_the_tail",
                    .provenance = "invented after the suite: operator O5, a tail is left unwritten",
                    .symptom = "the last experts keep their bias",
                    .trigger = "a number of experts that 16 does not divide",
                    .clauses = {"ROUTING-16a", "ROUTING-16b"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::bias_update>([](const auto& next, auto& a) {
                        const Copy before(a.expert_bias);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || !before.readable()) return status;
                        const Index experts = view(a.expert_bias).shape(0);
                        for (Index e = experts / 16 * 16; e < experts; ++e) {
                          view(a.expert_bias).store_integer(before.elements().load_integer(e), e);
                        }
                        return status;
                      });
                    }});
  faults.push_back(
      {.name = "mxfp8.column_scales_placed_by_counts",
       .provenance = "invented after the suite: operator O6, valid stride for padded stride",
       .symptom = "column-wise scales of later groups start too early",
       .trigger = "zones with a whole block of padding, linear scales",
       .clauses = {"MXFP8-6b", "MXFP8-6a"},
       .plant = [](Planted& planted) {
         planted.after<&Table::quantize>([](auto& a) {
           if (!has_elements(a.column_scales) || a.scale_layout != DROPLESS_SCALES_LINEAR) return;
           const std::vector<Index> right = integers_of(a.column_scales);
           const Index columns = view(a.x).shape(1);
           Index from = 0, to = 0;
           for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
             const Index blocks = (zone.end - zone.first + 31) / 32;
             const Index used = (zone.real_end - zone.first + 31) / 32;
             for (Index i = 0; i < used * columns; ++i) {
               view(a.column_scales)
                   .store_integer_flat(right[at(from * columns + i)], to * columns + i);
             }
             from += blocks, to += used;
           }
         });
       }});
  faults.push_back({.name = "losses.one_block_of_the_vocabulary",
                    .provenance = "invented after the suite: operator O13, fixed limit",
                    .symptom = "classes beyond the first 1024 are left out of the sum",
                    .trigger = "a vocabulary above 1024",
                    .clauses = {"LOSSES-1c", "LOSSES-1a", "LOSSES-1d"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::cross_entropy_forward>([](const auto& next, auto& a) {
                        const Copy logits(a.logits);
                        if (!logits.readable() || logits.elements().rank() != 2) return next(a);
                        const Index classes = logits.elements().shape(1);
                        each(logits.tensor(), [&](double l, Index i) {
                          const bool label =
                              has_elements(a.labels) &&
                              view(a.labels).load_integer(i / classes) == i % classes;
                          return i % classes < 1024 || label ? l : -1e30;
                        });
                        a.logits = logits.tensor();
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "permutation.combine_wraps_around",
                    .provenance = "invented after the suite: operator O14, contribute twice",
                    .symptom = "the first tokens are added up twice",
                    .trigger = "a number of tokens that 8 does not divide",
                    .clauses = {"PERMUTATION-6b", "PERMUTATION-6a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::unpermute_forward>([](auto& a) {
                        if (!has_elements(a.y)) return;
                        const Index tokens = view(a.y).shape(0), columns = view(a.y).shape(1);
                        for (Index t = tokens; t < (tokens + 7) / 8 * 8; ++t) {
                          for (Index c = 0; c < columns; ++c) {
                            view(a.y).store(2 * view(a.y).load(t % tokens, c), t % tokens, c);
                          }
                        }
                      });
                    }});
}

void add_memory(std::vector<Fault>& faults) {
  faults.push_back({.name = "permutation.plan_cached_by_address",
                    .provenance = "invented after the suite: operator O8, no generation",
                    .symptom = "a second call returns the first call's plan",
                    .trigger = "other ids at the same address",
                    .clauses = {"PERMUTATION-2", "PERMUTATION-1a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::permute_plan>([](const auto& next, auto& a) {
                        static Remembered plans;
                        if (!has_elements(a.ids)) return next(a);
                        const dropless_tensor* ids = plans.of(a.ids);
                        const std::vector<Index> kept = integers_of(ids);
                        const bool usable = std::all_of(
                            kept.begin(), kept.end(), [&](Index id) { return id < a.num_experts; });
                        if (!usable) ids = plans.anew(a.ids);  // of a problem with more experts
                        a.ids = ids;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "optimizer.decay_of_the_bf16_weight",
                    .provenance = "invented after the suite: operator O10, the wrong twin",
                    .symptom = "weight decay starts from the rounded weight, not from the master",
                    .trigger = "a bf16 weight with a master, and a weight decay",
                    .clauses = {"OPTIMIZER-1c", "OPTIMIZER-1e", "OPTIMIZER-1f"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::adamw>([](const auto& next, auto& a) {
                        const std::vector<double> master = values_of(a.master),
                                                  weight = values_of(a.weight);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || !has_elements(a.master)) return status;
                        each(a.master, [&](double p, Index i) {
                          const double lost = master[at(i)] - bf16(master[at(i)]);
                          return p + a.learning_rate * a.weight_decay * lost;
                        });
                        each(a.weight, [&](double, Index i) { return view(a.master).load(i); });
                        return status;
                      });
                    }});
  faults.push_back({.name = "layer.token_mask_not_in_the_backward_pass",
                    .provenance = "invented after the suite: operator O16, no backward twin",
                    .symptom = "masked tokens have gradients",
                    .trigger = "a token mask",
                    .clauses = {"LAYER-3b", "LAYER-3a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
                        if (a.forward == nullptr) return next(a);
                        Forward forward = *a.forward;
                        forward.token_mask = nullptr;
                        a.forward = &forward;
                        return next(a);
                      });
                    }});
}

}  // namespace

void add_later(std::vector<Fault>& faults) {
  add_numbers(faults);
  add_places(faults);
  add_memory(faults);
}

}  // namespace dropless::faults
