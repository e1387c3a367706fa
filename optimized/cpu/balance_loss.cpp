// SPDX-License-Identifier: Apache-2.0
// Balance loss coeff * E / K * sum_e f_e P_e (declared factor c = 1, counts of the real routing).
// ROUTING-14.
#include "optimized/cpu/operations.h"
#include "optimized/cpu/reduction.h"
#include "optimized/cpu/scores.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

constexpr double least_row_sum = 0x1p-126;

struct Balance {
  RouteSettings settings;
  int scope = 0;
  double factor = 0;  // coeff * c * E / K
  Tensor logits, ids, token_mask, accumulated_counts, accumulated_tokens;
  std::vector<Index> boundaries;  // [S+1]; the whole batch for the other scopes

  [[nodiscard]] bool counts(Index t) const {
    return !token_mask || token_mask.as<std::uint8_t>(t) != 0;
  }
};

Balance read_balance(const dropless_balance_loss_args& args) {
  Balance b;
  b.settings = read_route_settings(args.settings, false);
  const Index experts = b.settings.experts;
  b.scope = args.scope;
  b.factor = args.coeff * static_cast<double>(experts) / static_cast<double>(b.settings.top_k);
  refuse_if(b.scope < DROPLESS_SCOPE_MICRO_BATCH || b.scope > DROPLESS_SCOPE_GLOBAL,
            "scope: unknown");
  b.logits = tensor(args.logits, "logits", floats, {any, experts});
  const Index tokens = b.logits.shape[0];
  b.ids = tensor(args.ids, "ids", integers, {tokens, b.settings.top_k});
  b.token_mask = optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {tokens});
  check_ids(b.ids, experts, "ids");
  b.boundaries = {0, tokens};
  if (b.scope == DROPLESS_SCOPE_SEQUENCE) {
    const Tensor given =
        tensor(args.sequence_boundaries, "sequence_boundaries", {DROPLESS_I64}, {any});
    b.boundaries = integer_values(given);
    refuse_if(b.boundaries.empty() || b.boundaries.front() != 0,
              "sequence_boundaries: do not begin at 0");
    refuse_if(!std::is_sorted(b.boundaries.begin(), b.boundaries.end()),
              "sequence_boundaries: falling");
    refuse_if(b.boundaries.back() > tokens, "sequence_boundaries: beyond the tokens");
  }
  if (b.scope == DROPLESS_SCOPE_GLOBAL) {
    b.accumulated_counts =
        tensor(args.accumulated_counts, "accumulated_counts", {DROPLESS_I64}, {experts});
    b.accumulated_tokens =
        tensor(args.accumulated_tokens, "accumulated_tokens", {DROPLESS_I64}, {1});
  }
  return b;
}

// p_te of one token: softmax over E, or scores over their sum. Returns what the scores were divided
// by, 0 where that does not move with them.
double probabilities(const Balance& b, Index t, std::vector<float>& logits,
                     std::vector<double>& p) {
  load_run(b.logits.at(t, 0), b.logits.dtype, b.logits.inner_stride(), b.settings.experts,
           logits.data());
  score_row(b.settings.score_function, logits.data(), b.settings.experts, p.data());
  if (b.settings.score_function == DROPLESS_SCORE_SOFTMAX) return 0;
  double sum = 0;
  for (const double score : p) sum += score;
  const double divisor = std::max(sum, least_row_sum);
  for (double& score : p) score /= divisor;
  return sum > least_row_sum ? sum : 0;
}

// f_e = n_e / T_f for one range of tokens.
struct Scope {
  std::vector<double> f;
  Index tokens = 0;  // unmasked ones
};

std::vector<Index> count_ids(const Balance& b, Index begin, Index end, Index& tokens) {
  std::vector<Index> counts(static_cast<std::size_t>(b.settings.experts), 0);
  for (Index t = begin; t < end; ++t) {
    if (!b.counts(t)) continue;
    ++tokens;
    for (Index j = 0; j < b.settings.top_k; ++j) {
      const Index id = b.ids.integer(t, j);
      if (id >= 0) ++counts[static_cast<std::size_t>(id)];
    }
  }
  return counts;
}

// accumulate: counts of this micro-batch are not yet in the accumulated ones (forward).
Scope make_scope(const Balance& b, Index begin, Index end, bool accumulate) {
  Scope scope;
  std::vector<Index> counts = count_ids(b, begin, end, scope.tokens);
  Index counted_tokens = scope.tokens;
  if (b.scope == DROPLESS_SCOPE_GLOBAL) {
    const Index once = accumulate ? 1 : 0;
    for (Index e = 0; e < b.settings.experts; ++e) {
      std::int64_t& total = b.accumulated_counts.as<std::int64_t>(e);
      total += once * counts[static_cast<std::size_t>(e)];
      counts[static_cast<std::size_t>(e)] = total;
    }
    std::int64_t& total = b.accumulated_tokens.as<std::int64_t>(0);
    total += once * scope.tokens;
    counted_tokens = total;
  }
  for (const Index n : counts) {
    scope.f.push_back(
        counted_tokens == 0 ? 0.0 : static_cast<double>(n) / static_cast<double>(counted_tokens));
  }
  return scope;
}

Index sequences_with_tokens(const Balance& b) {
  Index sequences = 0;
  for (std::size_t s = 0; s + 1 < b.boundaries.size(); ++s) {
    bool some = false;
    for (Index t = b.boundaries[s]; t < b.boundaries[s + 1] && !some; ++t) some = b.counts(t);
    sequences += some ? 1 : 0;
  }
  return sequences;
}

std::vector<double> sum_probabilities(const Balance& b, Index begin, Index end, int threads) {
  const Index experts = b.settings.experts;
  return reduce_tokens(threads, end - begin, experts * 8, experts,
                       [&](Index first, Index last, double* sums) {
                         std::vector<float> logits(static_cast<std::size_t>(experts));
                         std::vector<double> p(static_cast<std::size_t>(experts));
                         for (Index t = begin + first; t < begin + last; ++t) {
                           if (!b.counts(t)) continue;
                           probabilities(b, t, logits, p);
                           for (std::size_t e = 0; e < p.size(); ++e) sums[e] += p[e];
                         }
                       });
}

}  // namespace

void balance_loss_forward(Call& call, const dropless_balance_loss_args& args) {
  const Balance b = read_balance(args);
  const Tensor loss = tensor(args.loss, "loss", {DROPLESS_FP32}, {1});
  const Index sequences = sequences_with_tokens(b);
  double total = 0;
  for (std::size_t s = 0; s + 1 < b.boundaries.size(); ++s) {
    const Index begin = b.boundaries[s], end = b.boundaries[s + 1];
    const Scope scope = make_scope(b, begin, end, true);
    if (scope.tokens == 0) continue;
    const std::vector<double> p_sums = sum_probabilities(b, begin, end, call.threads());
    double sum = 0;
    for (std::size_t e = 0; e < p_sums.size(); ++e) sum += scope.f[e] * p_sums[e];
    total += b.factor * sum / static_cast<double>(scope.tokens);
  }
  loss.as<float>(0) =
      static_cast<float>(sequences == 0 ? 0.0 : total / static_cast<double>(sequences));
  call.ran_simd();
}

void balance_loss_backward(Call& call, const dropless_balance_loss_args& args) {
  const Balance b = read_balance(args);
  const Index tokens = b.logits.shape[0], experts = b.settings.experts;
  const double d_loss = tensor(args.d_loss, "d_loss", {DROPLESS_FP32}, {1}).as<float>(0);
  const Tensor d_logits = tensor(args.d_logits, "d_logits", {DROPLESS_FP32}, {tokens, experts});
  const Index sequences = sequences_with_tokens(b);
  const bool softmax = b.settings.score_function == DROPLESS_SCORE_SOFTMAX;

  // Tokens outside every sequence have no gradient.
  for (Index t = b.boundaries.back(); t < tokens; ++t) {
    for (Index e = 0; e < experts; ++e) d_logits.as<float>(t, e) = 0;
  }
  for (std::size_t s = 0; s + 1 < b.boundaries.size(); ++s) {
    const Index begin = b.boundaries[s];
    const Scope scope = make_scope(b, begin, b.boundaries[s + 1], false);
    const double outer = scope.tokens == 0 ? 0.0
                                           : d_loss * b.factor / static_cast<double>(sequences) /
                                                 static_cast<double>(scope.tokens);
    const Index count = b.boundaries[s + 1] - begin;
    parallel_ranges(call.threads(), count, rows_per_task(experts * 8), [&](Index from, Index to) {
      std::vector<float> logits(static_cast<std::size_t>(experts));
      std::vector<double> p(static_cast<std::size_t>(experts)), scores, slopes(p.size());
      for (Index t = begin + from; t < begin + to; ++t) {
        if (!b.counts(t)) {
          for (Index e = 0; e < experts; ++e) d_logits.as<float>(t, e) = 0;
          continue;
        }
        const double divisor = probabilities(b, t, logits, p);
        double mean = 0;  // sum of f p: what the normalisation takes away from every expert
        for (std::size_t e = 0; e < p.size(); ++e) mean += scope.f[e] * p[e];
        if (!softmax) {
          const double scale = divisor == 0 ? least_row_sum : divisor;
          if (divisor == 0) mean = 0;
          scores = p;
          for (double& score : scores) score *= scale;
          slope_row(b.settings.score_function, logits.data(), experts, scores.data(),
                    slopes.data());
          for (double& slope : slopes) slope /= scale;
        }
        for (Index e = 0; e < experts; ++e) {
          const std::size_t i = static_cast<std::size_t>(e);
          const double inner = (scope.f[i] - mean) * (softmax ? p[i] : slopes[i]);
          d_logits.as<float>(t, e) = static_cast<float>(outer * inner);
        }
      }
    });
  }
  call.ran_simd();
}

}  // namespace dropless::cpu
