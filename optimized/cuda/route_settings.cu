// SPDX-License-Identifier: Apache-2.0
// Checks of the router's settings on the host and of ids on the device.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/elements.cuh"
#include "optimized/cuda/route_settings.h"

namespace dropless::cuda {
namespace {

constexpr Index most_experts = 1 << 24;

// One thread per pair; of two equal ids the later one refuses.
__global__ void check_ids_kernel(Tensor ids, Index experts, int* refusal) {
  const Index top_k = ids.shape[1], pairs = ids.shape[0] * top_k;
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index pair = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; pair < pairs;
       pair += step) {
    const Index t = pair / top_k, slot = pair % top_k;
    const Index id = ids.integer(t, slot);
    if (id == -1) continue;
    if (id < -1 || id >= experts) refuse_on_device(refusal, DeviceReason::id_out_of_range);
    bool twice = false;
    for (Index j = 0; j < slot; ++j) twice |= ids.integer(t, j) == id;
    if (twice) refuse_on_device(refusal, DeviceReason::duplicate_id);
  }
}

bool within(int value, int last) {
  return value >= 0 && value <= last;
}

void check_groups(const dropless_route_settings& s) {
  refuse_if(s.num_experts % s.num_groups != 0, "num_experts: not divisible by num_groups");
  refuse_if(s.kept_groups < 1 || s.kept_groups > s.num_groups,
            "kept_groups: outside 1 .. num_groups");
  refuse_if(s.top_k > s.num_experts / s.num_groups * s.kept_groups,
            "top_k exceeds the experts of kept groups");
  // The declared width of the sum is K / kept groups (ROUTING-4).
  refuse_if(s.group_score == DROPLESS_GROUP_SCORE_TOP_SUM && s.top_k % s.kept_groups != 0,
            "top_k: not divisible by kept_groups, the width of the group score is not whole");
}

}  // namespace

RouteSettings read_route_settings(const dropless_route_settings* given, bool with_bias) {
  const dropless_route_settings raw = read_struct(given, "settings");
  refuse_if(raw.num_groups < 0, "num_groups: negative");
  refuse_if(raw.top_k < 1, "top_k: below 1");
  refuse_if(raw.top_k > raw.num_experts, "top_k exceeds num_experts");
  refuse_if(!within(raw.score_function, DROPLESS_SCORE_SQRT_SOFTPLUS), "score_function: unknown");
  refuse_if(!within(raw.softmax_order, DROPLESS_SOFTMAX_AFTER_TOP_K), "softmax_order: unknown");
  refuse_if(!within(raw.eps_form, DROPLESS_EPS_MAXIMUM), "eps_form: unknown");
  refuse_if(!within(raw.group_score, DROPLESS_GROUP_SCORE_MAX), "group_score: unknown");
  const bool grouped = raw.num_groups > 1;
  if (grouped) check_groups(raw);
  if (raw.num_experts > most_experts) not_supported("num_experts: more than 2^24");

  RouteSettings s = {};
  s.experts = static_cast<int>(raw.num_experts);
  s.top_k = static_cast<int>(raw.top_k);
  s.groups = grouped ? static_cast<int>(raw.num_groups) : 1;
  s.kept_groups = grouped ? static_cast<int>(raw.kept_groups) : 1;
  s.score_function = raw.score_function;
  s.group_width = raw.group_score == DROPLESS_GROUP_SCORE_MAX
                      ? 1
                      : std::min(s.top_k / s.kept_groups, s.group_size());
  s.after_top_k = raw.score_function == DROPLESS_SCORE_SOFTMAX &&
                  raw.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
  s.renormalize = (raw.top_k == 1 ? raw.renormalize_single : raw.renormalize) != 0;
  s.eps_maximum = raw.eps_form == DROPLESS_EPS_MAXIMUM;
  s.eps = raw.renormalize_eps;
  s.scale = raw.scaling_factor;
  if (s.after_top_k) {
    refuse_if(s.renormalize, "softmax over the selected K together with renormalisation");
    refuse_if(with_bias, "softmax over the selected K together with an expert bias");
    refuse_if(grouped, "softmax over the selected K together with groups");
  }
  return s;
}

void check_ids(Call& call, const Tensor& ids, Index experts) {
  if (call.trusted() || ids.size() == 0) return;
  constexpr int threads = 256;
  check_ids_kernel<<<grid_size(ceil_div(ids.size(), threads), 4096), threads, 0, call.stream()>>>(
      ids, experts, call.refusal_word());
  check_launch("check_ids");
}

}  // namespace dropless::cuda
