// SPDX-License-Identifier: Apache-2.0
// ROUTING-14 in fp32. Calls with a row that has no scores stay the reference's.
#include "tests/honest/balance.h"

#include <algorithm>

#include "tests/honest/router.h"

namespace dropless::honest {
namespace {

using faults::view;
using Args = dropless_balance_loss_args;

constexpr float smallest_sum = 0x1p-126f;

// The unmasked tokens of one scope, their probabilities, and f.
struct Scope {
  std::vector<Index> tokens;
  std::vector<RouterToken> rows;
  Floats sums;  // of the scores of a row; 1 for softmax
  Floats f;     // [E]
};

class Balance {
 public:
  Balance(const Args& a, const Style& style)
      : a_(a), style_(style), settings_(completed(a.settings)), experts_(settings_.num_experts) {
    const Index tokens = view(a.logits).shape(0);
    std::vector<Index> bounds = {0, tokens};
    if (a.scope == DROPLESS_SCOPE_SEQUENCE) bounds = faults::integers_of(a.sequence_boundaries);
    for (std::size_t s = 0; s + 1 < bounds.size(); ++s) add(bounds[s], bounds[s + 1]);
  }
  [[nodiscard]] bool usable() const { return usable_ && !scopes_.empty(); }

  void forward() const {
    Floats losses;
    for (const Scope& scope : scopes_) {
      Floats terms;
      for (Index e = 0; e < experts_; ++e) {
        Floats column;
        for (std::size_t i = 0; i < scope.rows.size(); ++i) column.push_back(p(scope, i, e));
        const float mean = sum_of(column, style_.order) / static_cast<float>(scope.rows.size());
        terms.push_back(scope.f[static_cast<std::size_t>(e)] * mean);
      }
      losses.push_back(factor() * sum_of(terms, style_.order));
    }
    view(a_.loss).store(sum_of(losses, style_.order) / static_cast<float>(losses.size()), 0);
  }

  void backward() const {
    const float d_loss =
        static_cast<float>(view(a_.d_loss).load(0)) * factor() / static_cast<float>(scopes_.size());
    for (const Scope& scope : scopes_) {
      for (std::size_t i = 0; i < scope.rows.size(); ++i) {
        const float each = d_loss / static_cast<float>(scope.rows.size());
        Floats q, terms;
        for (Index e = 0; e < experts_; ++e) {
          q.push_back(each * scope.f[static_cast<std::size_t>(e)]);
          terms.push_back(q.back() * p(scope, i, e));
        }
        write_row(scope, i, q, sum_of(terms, style_.order));
      }
    }
  }

 private:
  [[nodiscard]] float factor() const {
    return static_cast<float>(a_.coeff) * static_cast<float>(experts_) /
           static_cast<float>(settings_.top_k);
  }

  [[nodiscard]] float p(const Scope& scope, std::size_t row, Index e) const {
    return scope.rows[row].scores[static_cast<std::size_t>(e)] / scope.sums[row];
  }

  void write_row(const Scope& scope, std::size_t row, const Floats& q, float dot) const {
    for (Index e = 0; e < experts_; ++e) {
      const auto k = static_cast<std::size_t>(e);
      const RouterToken& token = scope.rows[row];
      const float slope = settings_.score_function == DROPLESS_SCORE_SOFTMAX
                              ? token.scores[k]
                              : pointwise_slope(settings_.score_function, token.logits[k],
                                                token.scores[k], style_) /
                                    scope.sums[row];
      view(a_.d_logits).store(slope * (q[k] - dot), scope.tokens[row], e);
    }
  }

  void add(Index first, Index end) {
    Scope scope;
    std::vector<Index> counts(static_cast<std::size_t>(experts_));
    for (Index t = first; t < end; ++t) {
      if (a_.token_mask != nullptr && view(a_.token_mask).load_integer(t) == 0) continue;
      RouterToken token = router_token(settings_, view(a_.logits), t, style_);
      const bool softmax = settings_.score_function == DROPLESS_SCORE_SOFTMAX;
      const float sum = token.undefined || softmax ? 1 : sum_of(token.scores, style_.order);
      usable_ = usable_ && !token.undefined && all_finite(token.scores) && sum >= smallest_sum;
      for (const Index id : selected_of(view(a_.ids), t)) {
        if (id >= 0) ++counts[static_cast<std::size_t>(id)];
      }
      scope.tokens.push_back(t);
      scope.sums.push_back(sum);
      scope.rows.push_back(std::move(token));
    }
    if (scope.tokens.empty()) return;
    auto tokens = static_cast<float>(scope.tokens.size());
    if (a_.scope == DROPLESS_SCOPE_GLOBAL) {
      counts = faults::integers_of(a_.accumulated_counts);
      tokens = static_cast<float>(view(a_.accumulated_tokens).load_integer(0));
    }
    for (const Index count : counts) scope.f.push_back(static_cast<float>(count) / tokens);
    scopes_.push_back(std::move(scope));
  }

  const Args& a_;
  const Style& style_;
  const dropless_route_settings settings_;
  Index experts_;
  std::vector<Scope> scopes_;
  bool usable_ = true;
};

}  // namespace

void balance_in_fp32(Planted& variant, Style style) {
  variant.after<&Table::balance_loss_forward>([style](auto& a) {
    const Balance balance(a, style);
    if (balance.usable()) balance.forward();
  });
  variant.after<&Table::balance_loss_backward>([style](auto& a) {
    const Balance balance(a, style);
    if (balance.usable()) balance.backward();
  });
}

}  // namespace dropless::honest
