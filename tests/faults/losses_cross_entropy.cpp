// SPDX-License-Identifier: Apache-2.0
// Faults of the z-loss and of the cross-entropy.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "reference/scores.h"
#include "tests/faults/loss_changes.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

using ZLoss = dropless_z_loss_args;
using CrossEntropy = dropless_cross_entropy_args;

std::vector<double> row_of(const dropless_tensor* logits, Index t) {
  std::vector<double> row;
  for (Index e = 0; e < view(logits).shape(1); ++e) row.push_back(view(logits).load(t, e));
  return row;
}

// Mean over unmasked tokens of term(row), times the coefficient.
template <class Term>
void change_z_loss(Planted& planted, Term term) {
  planted.after<&Table::z_loss_forward>([term](ZLoss& a) {
    double sum = 0, tokens = 0;
    for (Index t = 0; t < view(a.logits).shape(0); ++t) {
      if (a.token_mask != nullptr && view(a.token_mask).load_integer(t) == 0) continue;
      sum += term(row_of(a.logits, t));
      tokens += 1;
    }
    if (tokens > 0) view(a.loss).store(a.coeff * sum / tokens, 0);
  });
}

double labelled_tokens(const CrossEntropy& a) {
  double labelled = 0;
  for (const Index label : integers_of(a.labels)) labelled += label >= 0 ? 1 : 0;
  return labelled;
}

void add_cross_entropy_values(std::vector<Fault>& faults) {
  faults.push_back({.name = "losses.binary_logarithm",
                    .provenance = "operator O9: factor (bits for nats)",
                    .symptom = "the loss is measured in bits",
                    .trigger = "always",
                    .clauses = {"LOSSES-1a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::cross_entropy_forward>([](CrossEntropy& a) {
                        each(a.loss, [](double l, Index) { return l / std::numbers::ln2; });
                      });
                    }});
  faults.push_back({.name = "losses.sum_over_tokens",
                    .provenance = "Megatron-LM 673, 906: not averaged",
                    .symptom = "the loss grows with the batch",
                    .trigger = "more than one labelled token",
                    .clauses = {"LOSSES-1a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::cross_entropy_forward>([](CrossEntropy& a) {
                        const double labelled = labelled_tokens(a);
                        each(a.loss, [&](double l, Index) { return l * labelled; });
                      });
                    }});
  faults.push_back({.name = "losses.label_shifted",
                    .provenance = "Megatron-LM 7452: vocabulary offsets",
                    .symptom = "the loss is that of the next label",
                    .trigger = "always",
                    .clauses = {"LOSSES-1a", "LOSSES-1d"},
                    .plant = [](Planted& planted) {
                      const auto shifted = [](const auto& next, CrossEntropy& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        const Copy labels(a.labels);
                        const Index vocabulary = view(a.logits).shape(1);
                        each_integer(labels.tensor(), [&](Index label, Index) {
                          return label < 0 ? label : (label + 1) % vocabulary;
                        });
                        a.labels = labels.tensor();
                        return next(a);
                      };
                      planted.around<&Table::cross_entropy_forward>(shifted);
                      planted.around<&Table::cross_entropy_backward>(shifted);
                    }});
  faults.push_back({.name = "losses.ignored_labels_in_the_mean",
                    .provenance = "transformers 28517: an unmasked mean",
                    .symptom = "ignored tokens shrink the loss",
                    .trigger = "negative labels",
                    .clauses = {"LOSSES-1a", "LOSSES-1b", "LOSSES-1c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::cross_entropy_forward>([](CrossEntropy& a) {
                        const auto all = static_cast<double>(view(a.labels).size());
                        const double labelled = labelled_tokens(a);
                        each(a.loss,
                             [&](double l, Index) { return all > 0 ? l * labelled / all : l; });
                      });
                    }});
  faults.push_back({.name = "losses.ignored_labels_are_label_zero",
                    .provenance = "operator O1: neutral element (index 0 for padding)",
                    .symptom = "ignored tokens are trained towards label 0",
                    .trigger = "negative labels",
                    .clauses = {"LOSSES-1b", "LOSSES-1a", "LOSSES-1c"},
                    .plant = [](Planted& planted) {
                      const auto zeroed = [](const auto& next, CrossEntropy& a) {
                        const Copy labels(a.labels);
                        each_integer(labels.readable() ? labels.tensor() : nullptr,
                                     [](Index label, Index) { return std::max<Index>(label, 0); });
                        a.labels = labels.tensor();
                        return next(a);
                      };
                      planted.around<&Table::cross_entropy_forward>(zeroed);
                      planted.around<&Table::cross_entropy_backward>(zeroed);
                    }});
  faults.push_back({.name = "losses.no_label_divides_by_zero",
                    .provenance = "operator O4: drop a zero case (vmoe 218)",
                    .symptom = "the loss of a batch without labels is NaN",
                    .trigger = "only negative labels",
                    .clauses = {"LOSSES-1b", "LOSSES-1a", "GENERAL-4"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::cross_entropy_forward>([](CrossEntropy& a) {
                        if (labelled_tokens(a) > 0) return;
                        each(a.loss, [](double, Index) { return std::nan(""); });
                      });
                    }});
  faults.push_back({.name = "losses.exponential_overflows",
                    .provenance = "operator O1: neutral element (the maximum is not subtracted)",
                    .symptom = "large logits give an infinite loss",
                    .trigger = "logits above 88",
                    .clauses = {"LOSSES-1c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::cross_entropy_forward>([](CrossEntropy& a) {
                        float most = 0;
                        for (const double l : values_of(a.logits)) {
                          most = std::max(most, std::exp(static_cast<float>(l)));
                        }
                        if (std::isinf(most)) each(a.loss, [&](double, Index) { return most; });
                      });
                    }});
  faults.push_back({.name = "losses.logits_in_bf16",
                    .provenance = "AstrAI 57, at the head of the model",
                    .symptom = "fp32 logits are rounded before the loss",
                    .trigger = "fp32 logits",
                    .clauses = {"LOSSES-1a", "LOSSES-1c", "LOSSES-1d"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::cross_entropy_forward>(
                          [](const auto& next, CrossEntropy& a) {
                            const Copy logits(a.logits);
                            if (logits.readable()) {
                              each(logits.tensor(), [](double l, Index) { return bf16(l); });
                            }
                            a.logits = logits.tensor();
                            return next(a);
                          });
                    }});
}

void add_cross_entropy_gradient(std::vector<Fault>& faults) {
  faults.push_back({.name = "losses.gradient_lacks_the_mean",
                    .provenance = "Megatron-LM 673, 906: not averaged",
                    .symptom = "the gradient grows with the batch",
                    .trigger = "more than one labelled token",
                    .clauses = {"LOSSES-1d"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::cross_entropy_backward>([](CrossEntropy& a) {
                        const double labelled = labelled_tokens(a);
                        each(a.d_logits, [&](double d, Index) { return d * labelled; });
                      });
                    }});
  faults.push_back({.name = "losses.gradient_divides_by_all_tokens",
                    .provenance = "transformers 28517: an unmasked mean",
                    .symptom = "ignored tokens shrink the gradient",
                    .trigger = "negative labels",
                    .clauses = {"LOSSES-1d", "LOSSES-1b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::cross_entropy_backward>([](CrossEntropy& a) {
                        const auto all = static_cast<double>(view(a.labels).size());
                        const double labelled = labelled_tokens(a);
                        each(a.d_logits,
                             [&](double d, Index) { return all > 0 ? d * labelled / all : d; });
                      });
                    }});
  faults.push_back(
      {.name = "losses.gradient_of_ignored_tokens",
       .provenance = "operator O16: mask only in the forward pass (transformers 48687)",
       .symptom = "ignored tokens have a gradient",
       .trigger = "negative labels",
       .clauses = {"LOSSES-1b"},
       .plant = [](Planted& planted) {
         planted.after<&Table::cross_entropy_backward>([](CrossEntropy& a) {
           const double labelled = std::max(1.0, labelled_tokens(a));
           for (Index t = 0; t < view(a.labels).size(); ++t) {
             if (view(a.labels).load_integer(t) >= 0) continue;
             const auto p = reference::softmax(row_of(a.logits, t));
             for (Index e = 0; e < view(a.d_logits).shape(1); ++e) {
               view(a.d_logits).store(p[static_cast<std::size_t>(e)] / labelled, t, e);
             }
           }
         });
       }});
  faults.push_back({.name = "losses.label_term_missing",
                    .provenance = "operator O18: an incomplete derivative",
                    .symptom = "the gradient is the softmax alone",
                    .trigger = "always",
                    .clauses = {"LOSSES-1d"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::cross_entropy_backward>([](CrossEntropy& a) {
                        const double share =
                            view(a.d_loss).load(0) / std::max(1.0, labelled_tokens(a));
                        for (Index t = 0; t < view(a.labels).size(); ++t) {
                          const Index label = view(a.labels).load_integer(t);
                          if (label < 0) continue;
                          const double d = view(a.d_logits).load(t, label);
                          view(a.d_logits).store(d + share, t, label);
                        }
                      });
                    }});
  faults.push_back({.name = "losses.cross_entropy_cotangent_ignored",
                    .provenance = "Megatron-LM 3959: a loss scaled apart from the main one",
                    .symptom = "the gradient does not know the loss scale",
                    .trigger = "a cotangent other than 1",
                    .clauses = {"LOSSES-1d"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::cross_entropy_backward>(
                          [](const auto& next, CrossEntropy& a) {
                            const Copy one(a.d_loss);
                            if (one.readable())
                              each(one.tensor(), [](double, Index) { return 1.0; });
                            a.d_loss = one.tensor();
                            return next(a);
                          });
                    }});
  faults.push_back({.name = "losses.refusals_swallowed",
                    .provenance = "operator O19: a missing check (transformers 48421)",
                    .symptom = "a label beyond the vocabulary is accepted",
                    .trigger = "an illegal request",
                    .clauses = {"GENERAL-3"},
                    .plant = [](Planted& planted) {
                      swallow_refusals<&Table::cross_entropy_forward>(planted);
                      swallow_refusals<&Table::balance_loss_forward>(planted);
                      swallow_refusals<&Table::z_loss_forward>(planted);
                    }});
}

}  // namespace

void add_z_loss(std::vector<Fault>& faults) {
  faults.push_back({.name = "losses.z_loss_of_probabilities",
                    .provenance = "transformers 48421",
                    .symptom = "the logits were overwritten by probabilities",
                    .trigger = "always",
                    .clauses = {"ROUTING-15a"},
                    .plant = [](Planted& planted) {
                      change_z_loss(planted, [](const std::vector<double>& row) {
                        const double z = reference::log_sum_exp(reference::softmax(row)).value();
                        return z * z;
                      });
                    }});
  faults.push_back({.name = "losses.z_loss_not_squared",
                    .provenance = "operator O18: an incomplete formula",
                    .symptom = "the square is left out",
                    .trigger = "always",
                    .clauses = {"ROUTING-15a"},
                    .plant = [](Planted& planted) {
                      change_z_loss(planted, [](const std::vector<double>& row) {
                        return reference::log_sum_exp(row).value();
                      });
                    }});
  faults.push_back({.name = "losses.z_loss_overflows",
                    .provenance = "operator O1: neutral element (the maximum is not subtracted)",
                    .symptom = "large logits give an infinite loss",
                    .trigger = "logits above 88",
                    .clauses = {"ROUTING-15a"},
                    .plant = [](Planted& planted) {
                      change_z_loss(planted, [](const std::vector<double>& row) {
                        float sum = 0;
                        for (const double l : row) sum += std::exp(static_cast<float>(l));
                        const double z = reference::log_sum_exp(row).value();
                        return std::isinf(sum) ? static_cast<double>(sum) : z * z;
                      });
                    }});
  faults.push_back({.name = "losses.z_loss_counts_padding",
                    .provenance = "transformers 38910; Megatron-LM 2121",
                    .symptom = "padding changes the z-loss",
                    .trigger = "a token mask",
                    .clauses = {"ROUTING-15a"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::z_loss_forward>(
                          [](ZLoss& a) { a.token_mask = nullptr; });
                    }});
  faults.push_back({.name = "losses.z_loss_masked_experts_count_one",
                    .provenance = "operator O1: neutral element (0 for -Inf)",
                    .symptom = "masked experts enter the sum with exp(0)",
                    .trigger = "logits of -Inf",
                    .clauses = {"ROUTING-15a"},
                    .plant = [](Planted& planted) {
                      change_z_loss(planted, [](std::vector<double> row) {
                        for (double& l : row) l = std::isinf(l) ? 0 : l;
                        const double z = reference::log_sum_exp(row).value();
                        return z * z;
                      });
                    }});
  faults.push_back({.name = "losses.z_loss_gradient_halved",
                    .provenance = "operator O9: factor never applied (Megatron-LM 5047)",
                    .symptom = "the factor 2 of the derivative is missing",
                    .trigger = "always",
                    .clauses = {"ROUTING-15b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::z_loss_backward>([](ZLoss& a) {
                        each(a.d_logits, [](double d, Index) { return d / 2; });
                      });
                    }});
  faults.push_back({.name = "losses.z_loss_gradient_of_padding",
                    .provenance = "transformers 38910, in the backward pass",
                    .symptom = "masked tokens have a gradient",
                    .trigger = "a token mask",
                    .clauses = {"ROUTING-15b"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::z_loss_backward>(
                          [](ZLoss& a) { a.token_mask = nullptr; });
                    }});
}

void add_cross_entropy(std::vector<Fault>& faults) {
  add_cross_entropy_values(faults);
  add_cross_entropy_gradient(faults);
  faults.push_back({.name = "losses.gradient_depends_on_parallel_degree",
                    .provenance = "Megatron-LM 5047, 3959, 1532, 673",
                    .symptom = "a loss term is scaled by a group size",
                    .trigger = "tensor or context parallelism",
                    .clauses = {},
                    .visibility = Visibility::ranks,
                    .reason = "the factor is the size of a group of ranks"});
  faults.push_back({.name = "losses.gathered_logits_in_a_parallel_loss",
                    .provenance = "Megatron-LM 7452, further item",
                    .symptom = "the cross-entropy is too large by log(TP)",
                    .trigger = "a vocabulary that is split over ranks",
                    .clauses = {},
                    .visibility = Visibility::ranks,
                    .reason = "the vocabulary has to be split over ranks"});
  faults.push_back({.name = "losses.reduced_in_place",
                    .provenance = "Megatron-LM 7452 item 10, 7481",
                    .symptom = "the gradient is doubled with a padding mask",
                    .trigger = "an in-place all-reduce of the local count",
                    .clauses = {},
                    .visibility = Visibility::ranks,
                    .reason = "needs an all-reduce"});
}

}  // namespace dropless::faults
