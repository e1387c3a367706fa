// SPDX-License-Identifier: Apache-2.0
// Backward of routing: d_logits and d_expert_scale with the selection held constant. ROUTING-12.
#include <cmath>

#include "optimized/cpu/operations.h"
#include "optimized/cpu/reduction.h"
#include "optimized/cpu/scores.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

// One selected slot of a token.
struct Slot {
  Index id;
  double gradient;  // d loss / d weight
  double score;     // that enters the normalisation: score, or exp(l - max) after top-k
  double share;     // weight before scaling factor and expert scale
};

struct Backward {
  RouteSettings settings;
  Tensor logits, token_mask, expert_scale, ids, d_weights, d_logits;
};

// share_j = score_j / D and its derivative by the scores: d_score_j = g_j / D - [D moves] (sum of g
// share) / D (ROUTING-6). Writes shares, returns the gradient by each score.
std::vector<double> normalise(const RouteSettings& s, std::vector<Slot>& slots,
                              const std::vector<double>& share_gradients) {
  double sum = 0;
  for (const Slot& slot : slots) sum += slot.score;
  double divisor = 1;
  bool divisor_moves = false;
  if (s.after_top_k) {
    divisor = sum;
    divisor_moves = true;
  } else if (s.renormalize) {
    divisor = s.eps_maximum ? std::max(sum, s.eps) : sum + s.eps;
    divisor_moves = !s.eps_maximum || sum > s.eps;
  }
  double mean = 0;
  for (std::size_t j = 0; j < slots.size(); ++j) {
    slots[j].share = divisor == 0 ? 0 : slots[j].score / divisor;
    mean += share_gradients[j] * slots[j].share;
  }
  std::vector<double> gradients(slots.size(), 0.0);
  for (std::size_t j = 0; j < slots.size() && divisor != 0; ++j) {
    gradients[j] = (share_gradients[j] - (divisor_moves ? mean : 0.0)) / divisor;
  }
  return gradients;
}

class TokenBackward {
 public:
  explicit TokenBackward(const Backward& in)
      : in_(in),
        s_(in.settings),
        logits_(static_cast<std::size_t>(s_.experts)),
        scores_(static_cast<std::size_t>(s_.experts)),
        gradient_(static_cast<std::size_t>(s_.experts)) {}

  // Adds to d_scale [E] when it is not null.
  void run(Index t, double* d_scale) {
    std::fill(gradient_.begin(), gradient_.end(), 0.0);
    if (!in_.token_mask || in_.token_mask.as<std::uint8_t>(t) != 0) differentiate(t, d_scale);
    for (Index e = 0; e < s_.experts; ++e) {
      in_.d_logits.as<float>(t, e) = static_cast<float>(gradient_[static_cast<std::size_t>(e)]);
    }
  }

 private:
  void differentiate(Index t, double* d_scale) {
    load_run(in_.logits.at(t, 0), in_.logits.dtype, in_.logits.inner_stride(), s_.experts,
             logits_.data());
    read_slots(t);
    if (slots_.empty()) return;
    if (s_.after_top_k) {
      double most = -std::numeric_limits<double>::infinity();
      for (const Slot& slot : slots_) most = std::max(most, logit(slot.id));
      for (Slot& slot : slots_) {
        // Masked experts weigh 0 even where all are masked (ROUTING-7).
        slot.score = std::isinf(logit(slot.id)) && logit(slot.id) < 0
                         ? 0.0
                         : std::exp(logit(slot.id) - most);
      }
    } else if (s_.score_function == DROPLESS_SCORE_SOFTMAX) {
      score_row(s_.score_function, logits_.data(), s_.experts, scores_.data());
      for (Slot& slot : slots_) slot.score = scores_[static_cast<std::size_t>(slot.id)];
    } else {
      for (Slot& slot : slots_) {
        score_row(s_.score_function, &logits_[static_cast<std::size_t>(slot.id)], 1, &slot.score);
      }
    }
    share_gradients_.clear();
    for (const Slot& slot : slots_) {
      const double scale = in_.expert_scale ? in_.expert_scale.as<float>(slot.id) : 1.0;
      share_gradients_.push_back(slot.gradient * s_.scale * scale);
    }
    const std::vector<double> score_gradients = normalise(s_, slots_, share_gradients_);
    if (d_scale != nullptr) {
      for (const Slot& slot : slots_) d_scale[slot.id] += slot.gradient * slot.share * s_.scale;
    }
    to_logits(score_gradients);
  }

  void read_slots(Index t) {
    slots_.clear();
    for (Index j = 0; j < s_.top_k; ++j) {
      const Index id = in_.ids.integer(t, j);
      if (id >= 0) slots_.push_back({id, in_.d_weights.as<float>(t, j), 0, 0});
    }
  }

  void to_logits(const std::vector<double>& score_gradients) {
    if (s_.after_top_k) {  // d exp(l) = exp(l) dl; the maximum cancels
      for (std::size_t j = 0; j < slots_.size(); ++j) {
        at(slots_[j].id) += score_gradients[j] * slots_[j].score;
      }
    } else if (s_.score_function == DROPLESS_SCORE_SOFTMAX) {
      double mean = 0;
      for (std::size_t j = 0; j < slots_.size(); ++j) mean += score_gradients[j] * slots_[j].score;
      for (std::size_t e = 0; e < gradient_.size(); ++e) gradient_[e] = -mean * scores_[e];
      for (std::size_t j = 0; j < slots_.size(); ++j) {
        at(slots_[j].id) += score_gradients[j] * slots_[j].score;
      }
    } else {
      for (std::size_t j = 0; j < slots_.size(); ++j) {
        const Index id = slots_[j].id;
        double slope = 0;
        slope_row(s_.score_function, &logits_[static_cast<std::size_t>(id)], 1, &slots_[j].score,
                  &slope);
        at(id) += score_gradients[j] * slope;
      }
    }
  }

  double& at(Index id) { return gradient_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] double logit(Index id) const {
    return static_cast<double>(logits_[static_cast<std::size_t>(id)]);
  }

  const Backward& in_;
  const RouteSettings& s_;
  std::vector<float> logits_;
  std::vector<double> scores_, gradient_, share_gradients_;
  std::vector<Slot> slots_;
};

}  // namespace

void route_backward(Call& call, const dropless_route_backward_args& args) {
  Backward in = {};
  in.settings = read_route_settings(args.settings, false);
  const Index experts = in.settings.experts, top_k = in.settings.top_k;
  in.logits = tensor(args.logits, "logits", floats, {any, experts});
  const Index tokens = in.logits.shape[0];
  in.token_mask = optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {tokens});
  in.expert_scale = optional_tensor(args.expert_scale, "expert_scale", {DROPLESS_FP32}, {experts});
  in.ids = tensor(args.ids, "ids", integers, {tokens, top_k});
  in.d_weights = tensor(args.d_weights, "d_weights", {DROPLESS_FP32}, {tokens, top_k});
  in.d_logits = tensor(args.d_logits, "d_logits", {DROPLESS_FP32}, {tokens, experts});
  const Tensor d_scale =
      optional_tensor(args.d_expert_scale, "d_expert_scale", {DROPLESS_FP32}, {experts});
  check_ids(in.ids, experts, "ids");

  const std::vector<double> sums =
      reduce_tokens(call.threads(), tokens, experts * 16, d_scale.given ? experts : 0,
                    [&](Index begin, Index end, double* sum) {
                      TokenBackward token(in);
                      for (Index t = begin; t < end; ++t)
                        token.run(t, d_scale.given ? sum : nullptr);
                    });
  for (Index e = 0; d_scale && e < experts; ++e) {
    d_scale.as<float>(e) = static_cast<float>(sums[static_cast<std::size_t>(e)]);
  }
  call.ran_simd();
}

}  // namespace dropless::cpu
