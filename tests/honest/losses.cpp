// SPDX-License-Identifier: Apache-2.0
// The losses in fp32: LOSSES-1, ROUTING-14 and 15 as kernels write them. Rows that are not finite
// stay the reference's.
#include <algorithm>
#include <cmath>

#include "tests/honest/arithmetic.h"
#include "tests/honest/balance.h"

namespace dropless::honest {
namespace {

using faults::view;

struct LogSumExp {
  float value;
  Floats p;
};

LogSumExp log_sum_exp(const Floats& logits, const Style& style) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  Floats p;
  for (const float l : logits) p.push_back(exponential(l - largest, style));
  const float sum = sum_of(p, style.order);
  for (float& x : p) x = style.reciprocal ? x * (1 / sum) : x / sum;
  return {largest + std::log(sum), std::move(p)};
}

bool usable(const Floats& logits) {
  const auto bad = [](float l) { return std::isnan(l) || (std::isinf(l) && l > 0); };
  return std::none_of(logits.begin(), logits.end(), bad) &&
         std::any_of(logits.begin(), logits.end(), [](float l) { return std::isfinite(l); });
}

// Rows that take part, each with what it adds to the mean; false when one is not usable.
template <class TakesPart, class Visit>
bool each_row(const dropless_tensor* tensor, TakesPart takes_part, Visit visit) {
  const TensorView logits = view(tensor);
  if (logits.size() == 0) return false;
  for (Index t = 0; t < logits.shape(0); ++t) {
    if (!takes_part(t)) continue;
    const Floats row = row_of(logits, t);
    if (!usable(row)) return false;
    visit(t, row);
  }
  return true;
}

float mean_of(const Floats& terms, const Style& style) {
  return terms.empty() ? 0 : sum_of(terms, style.order) / static_cast<float>(terms.size());
}

struct CrossEntropy {
  const dropless_cross_entropy_args& a;
  const Style& style;
  [[nodiscard]] Index label(Index t) const { return view(a.labels).load_integer(t); }

  void forward() const {
    Floats terms;
    const bool all = each_row(
        a.logits, [&](Index t) { return label(t) >= 0; },
        [&](Index t, const Floats& row) {
          terms.push_back(log_sum_exp(row, style).value - row[static_cast<std::size_t>(label(t))]);
        });
    if (all) view(a.loss).store(mean_of(terms, style), 0);
  }
  void backward() const {
    Index count = 0;
    for (const Index one : faults::integers_of(a.labels)) count += one >= 0;
    const float factor = static_cast<float>(view(a.d_loss).load(0)) / static_cast<float>(count);
    each_row(
        a.logits, [&](Index t) { return label(t) >= 0; },
        [&](Index t, const Floats& row) {
          const Floats p = log_sum_exp(row, style).p;
          for (std::size_t v = 0; v < p.size(); ++v) {
            const bool target = static_cast<Index>(v) == label(t);
            view(a.d_logits).store(factor * (target ? p[v] - 1 : p[v]), t, static_cast<Index>(v));
          }
        });
  }
};

struct ZLoss {
  const dropless_z_loss_args& a;
  const Style& style;
  [[nodiscard]] bool unmasked(Index t) const {
    return a.token_mask == nullptr || view(a.token_mask).load_integer(t) != 0;
  }

  void forward() const {
    Floats terms;
    const bool all = each_row(
        a.logits, [&](Index t) { return unmasked(t); },
        [&](Index, const Floats& row) {
          const float value = log_sum_exp(row, style).value;
          terms.push_back(value * value);
        });
    if (all) view(a.loss).store(static_cast<float>(a.coeff) * mean_of(terms, style), 0);
  }
  void backward() const {
    Index count = 0;
    for (Index t = 0; t < view(a.logits).shape(0); ++t) count += unmasked(t);
    const float factor = static_cast<float>(view(a.d_loss).load(0)) * static_cast<float>(a.coeff) *
                         2 / static_cast<float>(count);
    each_row(
        a.logits, [&](Index t) { return unmasked(t); },
        [&](Index t, const Floats& row) {
          const LogSumExp lse = log_sum_exp(row, style);
          for (std::size_t e = 0; e < row.size(); ++e) {
            view(a.d_logits).store(factor * lse.value * lse.p[e], t, static_cast<Index>(e));
          }
        });
  }
};

}  // namespace

void lose_in_fp32(Planted& variant, Style style) {
  variant.after<&Table::cross_entropy_forward>([style](auto& a) {
    CrossEntropy{a, style}.forward();
  });
  variant.after<&Table::cross_entropy_backward>([style](auto& a) {
    CrossEntropy{a, style}.backward();
  });
  variant.after<&Table::z_loss_forward>([style](auto& a) { ZLoss{a, style}.forward(); });
  variant.after<&Table::z_loss_backward>([style](auto& a) { ZLoss{a, style}.backward(); });
  balance_in_fp32(variant, style);
}

}  // namespace dropless::honest
