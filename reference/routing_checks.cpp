// SPDX-License-Identifier: Apache-2.0
// What routing refuses (GENERAL-3): settings that contradict each other, and ids that are none.
#include "reference/routing_checks.h"

#include <cmath>

#include "reference/checks.h"

namespace dropless::reference {
namespace {

std::string number(Index value) {
  return std::to_string(value);
}

void check_range(Index value, Index low, Index high, const char* what) {
  if (value < low || value > high) {
    throw Refused(std::string(what) + " = " + number(value) + " is outside " + number(low) +
                  " .. " + number(high));
  }
}

void check_groups(const dropless_route_settings& s) {
  if (s.num_groups < 0) throw Refused("num_groups = " + number(s.num_groups) + " is negative");
  if (!has_groups(s)) return;
  if (s.num_experts % s.num_groups != 0) {
    throw Refused("num_experts = " + number(s.num_experts) +
                  " is not divisible by num_groups = " + number(s.num_groups));
  }
  check_range(s.kept_groups, 1, s.num_groups, "kept_groups");
  const Index reachable = s.num_experts / s.num_groups * s.kept_groups;
  if (s.top_k > reachable) {
    throw Refused("top_k = " + number(s.top_k) + " is above the " + number(reachable) +
                  " experts of the kept groups");
  }
}

}  // namespace

bool has_groups(const dropless_route_settings& settings) {
  return settings.num_groups > 1;
}

bool renormalizes(const dropless_route_settings& settings) {
  return (settings.top_k == 1 ? settings.renormalize_single : settings.renormalize) != 0;
}

bool softmax_after_top_k(const dropless_route_settings& settings) {
  return settings.score_function == DROPLESS_SCORE_SOFTMAX &&
         settings.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
}

void check_route_settings(const dropless_route_settings& s) {
  if (s.num_experts < 1) throw Refused("num_experts = " + number(s.num_experts) + " is below 1");
  if (s.top_k < 1) throw Refused("top_k = " + number(s.top_k) + " is below 1");
  if (s.top_k > s.num_experts) {
    throw Refused("top_k = " + number(s.top_k) +
                  " is above num_experts = " + number(s.num_experts));
  }
  check_range(s.score_function, DROPLESS_SCORE_SOFTMAX, DROPLESS_SCORE_SQRT_SOFTPLUS,
              "score_function");
  check_range(s.softmax_order, DROPLESS_SOFTMAX_BEFORE_TOP_K, DROPLESS_SOFTMAX_AFTER_TOP_K,
              "softmax_order");
  check_range(s.renormalize, 0, 1, "renormalize");
  check_range(s.renormalize_single, 0, 1, "renormalize_single");
  check_range(s.eps_form, DROPLESS_EPS_ADDED, DROPLESS_EPS_MAXIMUM, "eps_form");
  check_range(s.group_score, DROPLESS_GROUP_SCORE_TOP_SUM, DROPLESS_GROUP_SCORE_MAX, "group_score");
  if (!std::isfinite(s.renormalize_eps) || s.renormalize_eps < 0) {
    throw Refused("renormalize_eps = " + std::to_string(s.renormalize_eps) +
                  " is not a finite number of at least 0");
  }
  if (!std::isfinite(s.scaling_factor)) throw Refused("scaling_factor is not finite");
  check_groups(s);
  if (softmax_after_top_k(s) && renormalizes(s)) {
    throw Refused("softmax over the selected experts cannot be renormalised: it adds up to 1");
  }
  if (softmax_after_top_k(s) && has_groups(s)) {
    throw Refused("softmax over the selected experts cannot be group-limited, num_groups = " +
                  number(s.num_groups));
  }
}

void check_route_selection(const dropless_route_settings& s, const dropless_profile& profile,
                           bool has_bias) {
  check_route_settings(s);
  if (softmax_after_top_k(s) && has_bias) {
    throw Refused("softmax over the selected experts cannot have an expert_bias");
  }
  const bool divides_k = has_groups(s) && s.group_score == DROPLESS_GROUP_SCORE_TOP_SUM &&
                         profile.group_width == DROPLESS_GROUP_WIDTH_K_OVER_KEPT;
  if (divides_k && s.top_k % s.kept_groups != 0) {
    throw Refused("top_k = " + number(s.top_k) +
                  " is not divisible by kept_groups = " + number(s.kept_groups));
  }
  if (profile.tie_rule == DROPLESS_TIE_DECLARED && profile.tie_rank == nullptr) {
    throw Refused("the profile declares a tie order without its tie_rank function");
  }
}

void check_ids(Index tokens, Index top_k, Index num_experts, Indices ids, const char* what) {
  check_size(ids.size(), tokens * top_k, what);
  std::vector<Index> last_token(at(num_experts), -1);
  for (Index t = 0; t < tokens; ++t) {
    for (Index j = 0; j < top_k; ++j) {
      const Index id = ids[at(t * top_k + j)];
      if (id == -1) continue;
      const bool in_range = id >= 0 && id < num_experts;
      if (in_range && last_token[at(id)] != t) {
        last_token[at(id)] = t;
        continue;
      }
      throw Refused(std::string(what) + "[" + number(t) + "," + number(j) + "] = " + number(id) +
                    (in_range ? " repeats an expert of its token"
                              : " is outside -1 .. " + number(num_experts - 1)));
    }
  }
}

}  // namespace dropless::reference
