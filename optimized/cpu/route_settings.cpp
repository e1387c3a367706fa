// SPDX-License-Identifier: Apache-2.0
// Checks of the router's settings and of ids.
#include "optimized/cpu/route_settings.h"

namespace dropless::cpu {
namespace {

bool within(int value, int last) {
  return value >= 0 && value <= last;
}

void check_groups(const RouteSettings& s) {
  refuse_if(s.experts % s.groups != 0, "num_experts: not divisible by num_groups");
  refuse_if(s.kept_groups < 1 || s.kept_groups > s.groups, "kept_groups: outside 1 .. num_groups");
  refuse_if(s.top_k > s.group_size() * s.kept_groups, "top_k exceeds the experts of kept groups");
  // The declared width of the sum is K / kept groups (ROUTING-4).
  refuse_if(s.group_score == DROPLESS_GROUP_SCORE_TOP_SUM && s.top_k % s.kept_groups != 0,
            "top_k: not divisible by kept_groups, the width of the group score is not whole");
}

}  // namespace

RouteSettings read_route_settings(const dropless_route_settings* given, bool with_bias) {
  const dropless_route_settings raw = read_struct(given, "settings");
  RouteSettings s = {};
  s.experts = raw.num_experts;
  s.top_k = raw.top_k;
  s.groups = std::max<Index>(raw.num_groups, 1);
  s.kept_groups = s.groups == 1 ? 1 : raw.kept_groups;
  s.score_function = raw.score_function;
  s.group_score = raw.group_score;
  s.after_top_k = raw.score_function == DROPLESS_SCORE_SOFTMAX &&
                  raw.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
  s.renormalize = (raw.top_k == 1 ? raw.renormalize_single : raw.renormalize) != 0;
  s.eps_maximum = raw.eps_form == DROPLESS_EPS_MAXIMUM;
  s.eps = raw.renormalize_eps;
  s.scale = raw.scaling_factor;

  refuse_if(raw.num_groups < 0, "num_groups: negative");
  refuse_if(s.top_k < 1, "top_k: below 1");
  refuse_if(s.top_k > s.experts, "top_k exceeds num_experts");
  refuse_if(!within(raw.score_function, DROPLESS_SCORE_SQRT_SOFTPLUS), "score_function: unknown");
  refuse_if(!within(raw.softmax_order, DROPLESS_SOFTMAX_AFTER_TOP_K), "softmax_order: unknown");
  refuse_if(!within(raw.eps_form, DROPLESS_EPS_MAXIMUM), "eps_form: unknown");
  refuse_if(!within(raw.group_score, DROPLESS_GROUP_SCORE_MAX), "group_score: unknown");
  if (s.groups > 1) check_groups(s);
  if (s.after_top_k) {
    refuse_if(s.renormalize, "softmax over the selected K together with renormalisation");
    refuse_if(with_bias, "softmax over the selected K together with an expert bias");
    refuse_if(s.groups > 1, "softmax over the selected K together with groups");
  }
  return s;
}

void check_ids(const Tensor& ids, Index experts, const char* name) {
  std::vector<Index> seen(static_cast<std::size_t>(std::max<Index>(experts, 0)), -1);
  for (Index t = 0; t < ids.shape[0]; ++t) {
    for (Index j = 0; j < ids.shape[1]; ++j) {
      const Index id = ids.integer(t, j);
      if (id == -1) continue;
      if (id < -1 || id >= experts) refuse(std::string(name) + ": outside -1 .. E-1");
      Index& last = seen[static_cast<std::size_t>(id)];
      if (last == t) refuse(std::string(name) + ": the same expert twice in a token");
      last = t;
    }
  }
}

}  // namespace dropless::cpu
