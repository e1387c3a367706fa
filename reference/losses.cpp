// SPDX-License-Identifier: Apache-2.0
// z-loss (ROUTING-15) and cross-entropy (LOSSES-1); the balance loss has its own file.
#include "reference/losses.h"

#include <cmath>

#include "reference/checks.h"
#include "reference/scores.h"

namespace dropless::reference {
namespace {

Index tokens_of(Index width, Input logits, const char* width_name) {
  if (width < 1) {
    if (logits.empty()) return 0;
    throw Refused(std::string(width_name) + " = " + std::to_string(width) + " is below 1");
  }
  if (logits.size() % at(width) != 0) {
    throw Refused("logits has " + std::to_string(logits.size()) + " elements, no multiple of " +
                  width_name + " = " + std::to_string(width));
  }
  return static_cast<Index>(logits.size()) / width;
}

bool is_masked(Mask token_mask, Index t) {
  return !token_mask.empty() && token_mask[at(t)] == 0;
}

Index count_unmasked(Index tokens, Mask token_mask) {
  if (!token_mask.empty()) check_size(token_mask.size(), tokens, "token_mask");
  Index count = 0;
  for (Index t = 0; t < tokens; ++t) count += is_masked(token_mask, t) ? 0 : 1;
  return count;
}

// Number of labelled tokens; refuses a label beyond the vocabulary.
Index count_labelled(Index vocabulary, Input logits, Indices labels) {
  check_size(logits.size(), static_cast<Index>(labels.size()) * vocabulary, "logits");
  Index count = 0;
  for (std::size_t t = 0; t < labels.size(); ++t) {
    if (labels[t] >= vocabulary) {
      throw Refused("labels[" + std::to_string(t) + "] = " + std::to_string(labels[t]) +
                    " is not below the vocabulary of " + std::to_string(vocabulary));
    }
    count += labels[t] >= 0 ? 1 : 0;
  }
  return count;
}

}  // namespace

Loss z_loss(double coeff, Index num_experts, Input logits, Mask token_mask) {
  const Index tokens = tokens_of(num_experts, logits, "num_experts");
  const Index scope = count_unmasked(tokens, token_mask);
  Loss loss;
  if (scope == 0) return loss;  // GENERAL-4
  for (Index t = 0; t < tokens; ++t) {
    if (is_masked(token_mask, t)) continue;
    const LogSumExp lse = log_sum_exp(logits.subspan(at(t * num_experts), at(num_experts)));
    loss.value += lse.value() * lse.value();
    loss.gauge += lse.gauge() * lse.gauge();
  }
  loss.value *= coeff / static_cast<double>(scope);
  loss.gauge *= std::abs(coeff) / static_cast<double>(scope);
  return loss;
}

// d/dl_e of lse^2 = 2 lse softmax_e.
Gauged z_loss_backward(double coeff, Index num_experts, Input logits, Mask token_mask,
                       double d_loss) {
  const Index tokens = tokens_of(num_experts, logits, "num_experts");
  const Index scope = count_unmasked(tokens, token_mask);
  Gauged d_logits{Doubles(logits.size(), 0.0), Doubles(logits.size(), 0.0)};
  for (Index t = 0; t < tokens; ++t) {
    if (is_masked(token_mask, t)) continue;
    const Input row = logits.subspan(at(t * num_experts), at(num_experts));
    const LogSumExp lse = log_sum_exp(row);
    const Doubles p = softmax(row);
    const double factor = d_loss * coeff * 2 / static_cast<double>(scope);
    for (Index e = 0; e < num_experts; ++e) {
      d_logits.value[at(t * num_experts + e)] = factor * lse.value() * p[at(e)];
      d_logits.gauge[at(t * num_experts + e)] = std::abs(factor) * lse.gauge() * p[at(e)];
    }
  }
  return d_logits;
}

Loss cross_entropy(Index vocabulary, Input logits, Indices labels) {
  const Index labelled = count_labelled(vocabulary, logits, labels);
  Loss loss;
  if (labelled == 0) return loss;
  for (std::size_t t = 0; t < labels.size(); ++t) {
    if (labels[t] < 0) continue;
    const Input row = logits.subspan(t * at(vocabulary), at(vocabulary));
    const LogSumExp lse = log_sum_exp(row);
    const double target = row[at(labels[t])];
    // (largest - target) first: near 1e4 the parts are large and their difference is small.
    loss.value += (lse.largest - target) + lse.log_sum;
    loss.gauge += lse.gauge() + std::abs(target);
  }
  loss.value /= static_cast<double>(labelled);
  loss.gauge /= static_cast<double>(labelled);
  return loss;
}

// d/dz_v of lse - z_label = softmax_v - [v = label].
Gauged cross_entropy_backward(Index vocabulary, Input logits, Indices labels, double d_loss) {
  const Index labelled = count_labelled(vocabulary, logits, labels);
  Gauged d_logits{Doubles(logits.size(), 0.0), Doubles(logits.size(), 0.0)};
  for (std::size_t t = 0; t < labels.size(); ++t) {
    if (labels[t] < 0) continue;
    const Doubles p = softmax(logits.subspan(t * at(vocabulary), at(vocabulary)));
    const double factor = d_loss / static_cast<double>(labelled);
    for (Index v = 0; v < vocabulary; ++v) {
      const double target = v == labels[t] ? 1 : 0;
      d_logits.value[t * at(vocabulary) + at(v)] = factor * (p[at(v)] - target);
      d_logits.gauge[t * at(vocabulary) + at(v)] = std::abs(factor) * (p[at(v)] + target);
    }
  }
  return d_logits;
}

}  // namespace dropless::reference
