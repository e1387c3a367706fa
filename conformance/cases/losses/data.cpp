// SPDX-License-Identifier: Apache-2.0
// Inputs of the loss cases.
#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/cases/loads.h"
#include "conformance/cases/losses/setup.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

void mask_tokens(RoutingData& data, std::string_view mask) {
  if (mask == "no") return;
  for (Index t = 0; t < data.tokens; ++t) {
    data.mask.push_back(mask == "some" && t % 4 != 3 && t != 0 ? 1 : 0);
    if (!data.is_masked(t)) continue;
    for (Index e = 0; e < data.experts(); ++e) data.logits[at(t * data.experts() + e)] = nan;
  }
}

// A row whose logits sum up to a logarithm near zero has hardly a z-loss, and may be all there is.
void keep_from_zero(std::span<double> row, dropless_dtype dtype) {
  double sum = 0;
  for (const double l : row) sum += std::exp(l);
  if (!(std::abs(std::log(sum)) < 0.5)) return;
  for (double& l : row) l = tolerances::round_to(dtype, l + 1);
}

std::vector<double> logits_of_kind(Index tokens, Index width, dropless_dtype dtype,
                                   std::string_view kind, Random& random) {
  std::vector<double> logits;
  for (Index t = 0; t < tokens; ++t) {
    const double centre = kind == "large" ? (t % 2 == 0 ? 1e4 : -1e4) : 1;
    for (Index v = 0; v < width; ++v) {
      const double l = tolerances::round_to(dtype, centre + 2 * random.normal());
      const bool masked = kind == "masked_experts" && v != t % width && random.chance(0.3);
      logits.push_back(masked ? -infinity : l);
    }
    keep_from_zero(std::span(logits).last(at(width)), dtype);
    // Labels of rows 1 and 2 count: one row has nothing but low logits, one spans both ends.
    const bool spans = t % 3 == 2 || tokens == 1;
    if (kind == "large" && spans && width > 1) {
      logits[at(t * width)] = 1e4, logits[at(t * width + 1)] = -1e4;
      for (Index v = 0; v < 2; ++v) {
        logits[at(t * width + v)] = tolerances::round_to(dtype, logits[at(t * width + v)]);
      }
    }
  }
  return logits;
}

}  // namespace

BalanceData balance_data(CaseRun& run, dropless_route_settings settings, Index tokens,
                         dropless_dtype dtype, std::string_view mask) {
  Random random = run.random("data");
  BalanceData data;
  data.routing.settings = settings;
  data.routing.tokens = tokens;
  data.routing.dtype = dtype;
  draw_clear_rows(run, data.routing, normal_row(data.routing, random, 1.5));
  data.ids = ids_for_load("zipf", tokens, settings.num_experts, settings.top_k, random, 0.1);
  mask_tokens(data.routing, mask);
  for (Index i = 0; i < tokens * settings.top_k; ++i) {
    if (data.routing.is_masked(i / settings.top_k)) data.ids[at(i)] = -1;
  }
  return data;
}

ZData z_data(const CaseRun& run, Index tokens, Index experts, dropless_dtype dtype,
             std::string_view mask, std::string_view kind) {
  Random random = run.random("data");
  ZData data;
  data.routing.settings = route_settings(experts, 1, "softmax", false);
  data.routing.tokens = tokens;
  data.routing.dtype = dtype;
  data.routing.logits = logits_of_kind(tokens, experts, dtype, kind, random);
  mask_tokens(data.routing, mask);
  return data;
}

CrossEntropyData cross_entropy_data(const CaseRun& run, Index tokens, Index vocabulary,
                                    dropless_dtype dtype, std::string_view labels,
                                    std::string_view kind) {
  Random random = run.random("data");
  CrossEntropyData data;
  data.tokens = tokens;
  data.vocabulary = vocabulary;
  data.dtype = dtype;
  data.logits = logits_of_kind(tokens, vocabulary, dtype, kind, random);
  for (Index t = 0; t < tokens; ++t) {
    const Index label = t == 1 ? vocabulary - 1 : random.below(vocabulary);
    const bool ignored = labels == "none" || (labels == "some" && t % 3 == 0);
    data.labels.push_back(ignored ? (t % 2 == 0 ? -100 : -1) : label);
  }
  // The last label that counts is the least likely one: otherwise there may be no loss to see.
  const auto last = std::find_if(data.labels.rbegin(), data.labels.rend(),
                                 [](Index label) { return label >= 0; });
  if (last != data.labels.rend()) {
    const auto row = std::span(data.logits)
                         .subspan(at((std::distance(last, data.labels.rend()) - 1) * vocabulary),
                                  at(vocabulary));
    *last = std::distance(row.begin(), std::min_element(row.begin(), row.end()));
  }
  return data;
}

}  // namespace dropless::conformance
