// SPDX-License-Identifier: Apache-2.0
// Faults of the router's losses; cross-entropy is in losses_cross_entropy.cpp.
#include <algorithm>
#include <cmath>

#include "reference/scores.h"
#include "tests/faults/loss_changes.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

using Balance = dropless_balance_loss_args;

void add_balance(std::vector<Fault>& faults) {
  faults.push_back({.name = "losses.softmax_twice",
                    .provenance = "transformers 39055, 39056, 45120",
                    .symptom = "a weak balance gradient",
                    .trigger = "probabilities under the name of logits",
                    .clauses = {"ROUTING-14b", "ROUTING-14a"},
                    .plant = [](Planted& planted) {
                      around_balance(planted, [](const auto& next, auto& a) {
                        const Copy logits(a.logits, DROPLESS_FP32);
                        if (!logits.readable() || a.logits->rank != 2) return next(a);
                        for (Index t = 0; t < a.logits->shape[0]; ++t) {
                          std::vector<double> row;
                          for (Index e = 0; e < a.logits->shape[1]; ++e) {
                            row.push_back(logits.elements().load(t, e));
                          }
                          row = reference::softmax(row);
                          for (Index e = 0; e < a.logits->shape[1]; ++e) {
                            logits.elements().store(row[static_cast<std::size_t>(e)], t, e);
                          }
                        }
                        a.logits = logits.tensor();
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "losses.always_softmax",
                    .provenance = "Megatron-LM 1438",
                    .symptom = "the loss uses softmax scores though routing uses sigmoid",
                    .trigger = "sigmoid scores",
                    .clauses = {"ROUTING-14b", "ROUTING-14a"},
                    .plant = [](Planted& planted) {
                      change_loss_settings(planted, [](dropless_route_settings& s) {
                        s.score_function = DROPLESS_SCORE_SOFTMAX;
                      });
                    }});
  faults.push_back({.name = "losses.reduced_over_the_wrong_axis",
                    .provenance = "transformers 28093; hyper-parallel 752",
                    .symptom = "a constant loss",
                    .trigger = "any imbalance",
                    .clauses = {"ROUTING-14a", "ROUTING-14g"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::balance_loss_forward>([](Balance& a) {
                        each(a.loss, [&](double l, Index) { return l == 0 ? 0 : a.coeff; });
                      });
                    }});
  faults.push_back({.name = "losses.coefficient_ignored",
                    .provenance = "transformers 44242",
                    .symptom = "the coefficient has no effect",
                    .trigger = "a coefficient other than 1",
                    .clauses = {"ROUTING-14a", "ROUTING-14g"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::balance_loss_forward>([](Balance& a) { a.coeff = 1; });
                    }});
  faults.push_back({.name = "losses.factor_one_of_k",
                    .provenance = "DeepSpeed 5156; ST-MoE and DeepSeek define f differently",
                    .symptom = "the loss is K times too large",
                    .trigger = "K above 1",
                    .clauses = {"ROUTING-14c", "ROUTING-14a"},
                    .plant = [](Planted& planted) {
                      planted.behave_as([](dropless_profile& p) {
                        p.balance_factor = DROPLESS_BALANCE_FACTOR_TOP_K;
                      });
                    }});
  faults.push_back({.name = "losses.balances_another_routing",
                    .provenance = "Megatron-LM 5195, 2767",
                    .symptom = "the loss map ignores groups and bias",
                    .trigger = "a routing that differs from the plain top-k",
                    .clauses = {"ROUTING-14d", "ROUTING-14a"},
                    .plant = [](Planted& planted) {
                      planted.behave_as([](dropless_profile& p) {
                        p.balance_counts = DROPLESS_BALANCE_COUNTS_CLEAN_TOP_K;
                      });
                    }});
  faults.push_back({.name = "losses.padding_in_the_balance_loss",
                    .provenance = "transformers 28517, 38910; Megatron-LM 2121",
                    .symptom = "padding changes the balance loss",
                    .trigger = "a token mask",
                    .clauses = {"ROUTING-14g"},
                    .plant = [](Planted& planted) {
                      around_balance(planted, [](const auto& next, auto& a) {
                        a.token_mask = nullptr;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "losses.masked_tokens_in_the_divisor",
                    .provenance = "transformers 28517: an unmasked mean",
                    .symptom = "the loss shrinks with every padding token",
                    .trigger = "a token mask",
                    .clauses = {"ROUTING-14g"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::balance_loss_forward>([](Balance& a) {
                        if (a.token_mask == nullptr) return;
                        const double all = static_cast<double>(view(a.logits).shape(0));
                        double real = 0;
                        for (const Index m : integers_of(a.token_mask)) real += m != 0 ? 1 : 0;
                        each(a.loss, [&](double l, Index) { return l * real / all; });
                      });
                    }});
  faults.push_back({.name = "losses.empty_batch_divides_by_zero",
                    .provenance = "operator O4: drop a zero case (vmoe 218)",
                    .symptom = "the loss of no tokens is NaN",
                    .trigger = "only masked tokens, or none",
                    .clauses = {"ROUTING-14g", "GENERAL-4"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::balance_loss_forward>([](Balance& a) {
                        bool any = a.token_mask == nullptr && view(a.logits).shape(0) > 0;
                        for (const Index m : integers_of(a.token_mask)) any = any || m != 0;
                        if (!any) each(a.loss, [](double, Index) { return std::nan(""); });
                      });
                    }});
  faults.push_back(
      {.name = "losses.tokens_without_experts_left_out",
       .provenance = "operator O10: value of the wrong twin (T of routed tokens only)",
       .symptom = "the mean is over tokens that have an expert",
       .trigger = "tokens whose ids are all -1",
       .clauses = {"ROUTING-14a"},
       .plant = [](Planted& planted) {
         planted.around<&Table::balance_loss_forward>([](const auto& next, Balance& a) {
           const dropless_status status = next(a);
           if (status != DROPLESS_OK || a.scope == DROPLESS_SCOPE_GLOBAL || !has_elements(a.ids)) {
             return status;
           }
           std::vector<std::uint8_t> kept;
           const Index k = view(a.ids).shape(1);
           for (Index t = 0; t < view(a.ids).shape(0); ++t) {
             bool routed = false;
             for (Index j = 0; j < k; ++j) {
               routed = routed || view(a.ids).load_integer(t, j) >= 0;
             }
             const bool masked = a.token_mask != nullptr && view(a.token_mask).load_integer(t) == 0;
             kept.push_back(routed && !masked ? 1 : 0);
           }
           dropless_tensor mask{sizeof mask, DROPLESS_STRUCT_VERSION};
           mask.data = kept.data();
           mask.dtype = DROPLESS_U8;
           mask.rank = 1;
           mask.shape[0] = static_cast<Index>(kept.size());
           mask.strides[0] = 1;
           a.token_mask = &mask;
           return next(a);
         });
       }});
}

void add_scopes(std::vector<Fault>& faults) {
  faults.push_back({.name = "losses.sequences_as_one_batch",
                    .provenance = "Megatron-LM 5798",
                    .symptom = "the loss of sequences is that of the micro-batch",
                    .trigger = "the sequence scope",
                    .clauses = {"ROUTING-14e", "ROUTING-14g"},
                    .plant = [](Planted& planted) {
                      around_balance(planted, [](const auto& next, auto& a) {
                        if (a.scope == DROPLESS_SCOPE_SEQUENCE) {
                          a.scope = DROPLESS_SCOPE_MICRO_BATCH;
                          a.sequence_boundaries = nullptr;
                        }
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "losses.empty_sequences_counted",
                    .provenance = "Megatron-LM 5798: a divisor of the wrong shape",
                    .symptom = "the mean is over all sequences, those without tokens included",
                    .trigger = "a sequence that is empty or wholly masked",
                    .clauses = {"ROUTING-14e", "ROUTING-14g"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::balance_loss_forward>([](Balance& a) {
                        if (a.scope != DROPLESS_SCOPE_SEQUENCE) return;
                        const std::vector<Index> ends = integers_of(a.sequence_boundaries);
                        const std::vector<Index> mask = integers_of(a.token_mask);
                        double used = 0;
                        for (std::size_t s = 0; s + 1 < ends.size(); ++s) {
                          bool any = false;
                          for (Index t = ends[s]; t < ends[s + 1]; ++t) {
                            any = any || mask.empty() || mask[static_cast<std::size_t>(t)] != 0;
                          }
                          used += any ? 1 : 0;
                        }
                        const double all = std::max(1.0, static_cast<double>(ends.size()) - 1);
                        each(a.loss, [&](double l, Index) { return l * used / all; });
                      });
                    }});
  faults.push_back({.name = "losses.summed_over_sequences",
                    .provenance = "Megatron-LM 5798; Megatron-LM 673",
                    .symptom = "the loss grows with the number of sequences",
                    .trigger = "the sequence scope",
                    .clauses = {"ROUTING-14e", "ROUTING-14g"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::balance_loss_forward>([](Balance& a) {
                        if (a.scope != DROPLESS_SCOPE_SEQUENCE) return;
                        const auto sequences =
                            static_cast<double>(view(a.sequence_boundaries).size() - 1);
                        each(a.loss, [&](double l, Index) { return l * sequences; });
                      });
                    }});
  faults.push_back({.name = "losses.global_counts_of_this_batch_only",
                    .provenance = "Megatron-LM 5047, 3768, 5007",
                    .symptom = "the global loss is scaled like the plain one",
                    .trigger = "the global scope",
                    .clauses = {"ROUTING-14f", "ROUTING-14g"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::balance_loss_forward>(
                          [](const auto& next, Balance& a) {
                            const dropless_status status = next(a);
                            if (status != DROPLESS_OK || a.scope != DROPLESS_SCOPE_GLOBAL) {
                              return status;
                            }
                            Balance local = a;
                            local.scope = DROPLESS_SCOPE_MICRO_BATCH;
                            local.accumulated_counts = local.accumulated_tokens = nullptr;
                            return next(local);
                          });
                    }});
  faults.push_back({.name = "losses.global_counts_not_kept",
                    .provenance = "Megatron-LM 4433: counters restored at the wrong time",
                    .symptom = "this micro-batch is not added to the sums",
                    .trigger = "the global scope",
                    .clauses = {"ROUTING-14f"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::balance_loss_forward>(
                          [](const auto& next, Balance& a) {
                            const Copy counts(a.accumulated_counts);
                            const dropless_status status = next(a);
                            if (status == DROPLESS_OK && a.scope == DROPLESS_SCOPE_GLOBAL) {
                              counts.write_back();
                            }
                            return status;
                          });
                    }});
  faults.push_back({.name = "losses.global_token_count_forgotten",
                    .provenance = "Megatron-LM 7452 item 10, 7481",
                    .symptom = "the number of tokens is that of one micro-batch",
                    .trigger = "the global scope",
                    .clauses = {"ROUTING-14f"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::balance_loss_forward>(
                          [](const auto& next, Balance& a) {
                            const Copy tokens(a.accumulated_tokens);
                            const dropless_status status = next(a);
                            if (status == DROPLESS_OK && a.scope == DROPLESS_SCOPE_GLOBAL) {
                              tokens.write_back();
                            }
                            return status;
                          });
                    }});
  faults.push_back({.name = "losses.counts_summed_in_fp32",
                    .provenance = "Megatron-LM 7081: counts in a narrow format",
                    .symptom = "accumulated counts above 2^24 are rounded",
                    .trigger = "the global scope and many tokens",
                    .clauses = {"ROUTING-14f"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::balance_loss_forward>([](Balance& a) {
                        if (a.scope != DROPLESS_SCOPE_GLOBAL) return;
                        each_integer(a.accumulated_counts, [](Index n, Index) {
                          return static_cast<Index>(static_cast<float>(n));
                        });
                      });
                    }});
}

void add_balance_gradient(std::vector<Fault>& faults) {
  faults.push_back(
      {.name = "losses.nan_gradient_at_balance",
       .provenance = "vmoe 218",
       .symptom = "NaN gradient at perfect balance",
       .trigger = "a derivative through a deviation of 0",
       .clauses = {"ROUTING-14h"},
       .plant = [](Planted& planted) {
         planted.after<&Table::balance_loss_backward>([](Balance& a) {
           const std::vector<Index> ids = integers_of(a.ids);
           std::vector<Index> counts(static_cast<std::size_t>(view(a.logits).shape(1)), 0);
           for (const Index id : ids) {
             if (id >= 0) ++counts[static_cast<std::size_t>(id)];
           }
           const bool even = std::all_of(counts.begin(), counts.end(),
                                         [&](Index n) { return n == counts.front() && n > 0; });
           if (even) each(a.d_logits, [](double, Index) { return std::nan(""); });
         });
       }});
  faults.push_back({.name = "losses.uniform_loss_is_zero",
                    .provenance = "transformers 28093: balanced must give 1, not 0",
                    .symptom = "the loss is measured from the balanced state",
                    .trigger = "always",
                    .clauses = {"ROUTING-14h", "ROUTING-14a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::balance_loss_forward>([](Balance& a) {
                        each(a.loss, [&](double l, Index) { return l == 0 ? 0 : l - a.coeff; });
                      });
                    }});
  faults.push_back({.name = "losses.cotangent_ignored",
                    .provenance = "Megatron-LM 3959: a loss scaled apart from the main one",
                    .symptom = "the gradient does not know the loss scale",
                    .trigger = "a cotangent other than 1",
                    .clauses = {"ROUTING-14i"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::balance_loss_backward>(
                          [](const auto& next, Balance& a) {
                            const Copy one(a.d_loss);
                            if (one.readable())
                              each(one.tensor(), [](double, Index) { return 1.0; });
                            a.d_loss = one.tensor();
                            return next(a);
                          });
                    }});
  faults.push_back({.name = "losses.gradient_of_the_sum",
                    .provenance = "Megatron-LM 673, 906: not averaged",
                    .symptom = "the gradient explodes with the number of tokens",
                    .trigger = "more than one token",
                    .clauses = {"ROUTING-14i"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::balance_loss_backward>([](Balance& a) {
                        const auto tokens = static_cast<double>(view(a.logits).shape(0));
                        each(a.d_logits, [&](double d, Index) { return d * tokens; });
                      });
                    }});
  faults.push_back({.name = "losses.gradient_of_selected_experts_only",
                    .provenance = "operator O16: no backward twin (Megatron-LM 955)",
                    .symptom = "experts that were not selected get no gradient",
                    .trigger = "always",
                    .clauses = {"ROUTING-14i"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::balance_loss_backward>([](Balance& a) {
                        const Index experts = view(a.d_logits).shape(1), k = view(a.ids).shape(1);
                        each(a.d_logits, [&](double d, Index i) {
                          for (Index j = 0; j < k; ++j) {
                            if (view(a.ids).load_integer(i / experts, j) == i % experts) return d;
                          }
                          return 0.0;
                        });
                      });
                    }});
}

}  // namespace

void add_losses(std::vector<Fault>& faults) {
  add_balance(faults);
  add_scopes(faults);
  add_balance_gradient(faults);
  add_z_loss(faults);
  add_cross_entropy(faults);
}

}  // namespace dropless::faults
