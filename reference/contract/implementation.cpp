// SPDX-License-Identifier: Apache-2.0
// The table of operations, one per profile.
#include "reference/implementation.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>

#include "reference/contract/call.h"
#include "reference/contract/operations.h"

namespace dropless::reference {
namespace {

struct Limits {
  const char* name;
  std::int32_t dropless_profile::*member;
  std::int32_t most;
};

// Enumerators count from 0 to `most`.
constexpr Limits kLimits[] = {
    {"tie_rule", &dropless_profile::tie_rule, DROPLESS_TIE_DECLARED},
    {"selection_order", &dropless_profile::selection_order, DROPLESS_ORDER_ANY},
    {"weight_source", &dropless_profile::weight_source, DROPLESS_WEIGHT_SUBTRACT},
    {"group_width", &dropless_profile::group_width, DROPLESS_GROUP_WIDTH_TWO},
    {"balance_factor", &dropless_profile::balance_factor, DROPLESS_BALANCE_FACTOR_TOP_K},
    {"balance_counts", &dropless_profile::balance_counts, DROPLESS_BALANCE_COUNTS_CLEAN_TOP_K},
    {"empty_expert", &dropless_profile::empty_expert, DROPLESS_EMPTY_EXPERT_ONE_BLOCK},
    {"tail_rows", &dropless_profile::tail_rows, DROPLESS_TAIL_ZERO},
    {"scale_rule", &dropless_profile::scale_rule, DROPLESS_SCALE_EVEN},
    {"dispatch_layout", &dropless_profile::dispatch_layout,
     DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR},
    {"flat_ids", &dropless_profile::flat_ids, DROPLESS_FLAT_IDS_IN_PLACE},
    {"combine_weighting", &dropless_profile::combine_weighting, DROPLESS_COMBINE_WEIGHTED},
    {"combine_rounding", &dropless_profile::combine_rounding, DROPLESS_COMBINE_ROUNDS_PER_NODE},
    {"overflow_policy", &dropless_profile::overflow_policy, DROPLESS_OVERFLOW_RETRY},
    {"replica_map", &dropless_profile::replica_map, DROPLESS_REPLICA_DECLARED},
    {"special_values", &dropless_profile::special_values, DROPLESS_SPECIAL_BLOCK},
    {"scale_padding_byte", &dropless_profile::scale_padding_byte, 255},
};

// Every choice that changes what the reference computes; the others it satisfies whatever they say.
void check_profile(const dropless_profile& profile) {
  for (const Limits& limits : kLimits) {
    const std::int32_t value = profile.*limits.member;
    if (value < 0 || value > limits.most) {
      throw Refused("profile." + std::string(limits.name) + " = " + std::to_string(value) +
                    " is outside 0 .. " + std::to_string(limits.most));
    }
  }
  // PERMUTATION-3.
  constexpr std::int32_t kAlignments[] = {0, 1, 16, 32, 128, 256};
  if (std::find(std::begin(kAlignments), std::end(kAlignments), profile.alignment) ==
      std::end(kAlignments)) {
    throw Refused("profile.alignment = " + std::to_string(profile.alignment) +
                  " is none of 1, 16, 32, 128 and 256");
  }
  // GROUPED_GEMM-1: any power of two up to the largest alignment of zones; 0 means 1.
  const std::int32_t gemm_alignment = profile.gemm_alignment;
  if (gemm_alignment < 0 || gemm_alignment > 256 || (gemm_alignment & (gemm_alignment - 1)) != 0) {
    throw Refused("profile.gemm_alignment = " + std::to_string(gemm_alignment) +
                  " is no power of two up to 256");
  }
  if (profile.tie_rule == DROPLESS_TIE_DECLARED && profile.tie_rank == nullptr) {
    throw Refused("profile.tie_rule is a declared order, but profile.tie_rank is null");
  }
}

struct Table {
  dropless_profile profile;
  dropless_implementation implementation{};

  explicit Table(const dropless_profile& of) : profile(of) {
    dropless_implementation& i = implementation;
    i.struct_size = sizeof i;
    i.contract_version = DROPLESS_CONTRACT_VERSION;
    i.name = "reference";
    i.version = "0.1.0";
    i.build = "C++20, double, no contraction, compiler " __VERSION__;
    i.memory_space = DROPLESS_HOST;
    i.profile = &profile;
    i.context = &profile;
#define DROPLESS_OFFER(name, args) i.name = contract::entry<args, contract::name>
    DROPLESS_OFFER(route_forward, dropless_route_args);
    DROPLESS_OFFER(route_backward, dropless_route_backward_args);
    DROPLESS_OFFER(balance_loss_forward, dropless_balance_loss_args);
    DROPLESS_OFFER(balance_loss_backward, dropless_balance_loss_args);
    DROPLESS_OFFER(z_loss_forward, dropless_z_loss_args);
    DROPLESS_OFFER(z_loss_backward, dropless_z_loss_args);
    DROPLESS_OFFER(bias_update, dropless_bias_update_args);
    DROPLESS_OFFER(permute_plan, dropless_permute_plan_args);
    DROPLESS_OFFER(permute_forward, dropless_permute_args);
    DROPLESS_OFFER(permute_backward, dropless_permute_backward_args);
    DROPLESS_OFFER(unpermute_forward, dropless_unpermute_args);
    DROPLESS_OFFER(unpermute_backward, dropless_unpermute_backward_args);
    DROPLESS_OFFER(quantize, dropless_quantize_args);
    DROPLESS_OFFER(dequantize, dropless_dequantize_args);
    DROPLESS_OFFER(gemm_fprop, dropless_gemm_fprop_args);
    DROPLESS_OFFER(gemm_dgrad, dropless_gemm_dgrad_args);
    DROPLESS_OFFER(gemm_wgrad, dropless_gemm_wgrad_args);
    DROPLESS_OFFER(activation_forward, dropless_activation_args);
    DROPLESS_OFFER(activation_backward, dropless_activation_backward_args);
    DROPLESS_OFFER(cross_entropy_forward, dropless_cross_entropy_args);
    DROPLESS_OFFER(cross_entropy_backward, dropless_cross_entropy_args);
    DROPLESS_OFFER(adamw, dropless_adamw_args);
    DROPLESS_OFFER(layer_forward, dropless_layer_args);
    DROPLESS_OFFER(layer_backward, dropless_layer_backward_args);
    DROPLESS_OFFER(layer_release, dropless_layer_args);
    DROPLESS_OFFER(exchange_capacity, dropless_exchange_capacity_args);
    DROPLESS_OFFER(exchange_open, dropless_exchange_open_args);
    DROPLESS_OFFER(exchange_plan, dropless_exchange_plan_args);
    DROPLESS_OFFER(exchange_dispatch, dropless_exchange_dispatch_args);
    DROPLESS_OFFER(exchange_combine, dropless_exchange_combine_args);
    DROPLESS_OFFER(exchange_dispatch_backward, dropless_exchange_dispatch_backward_args);
    DROPLESS_OFFER(exchange_combine_backward, dropless_exchange_combine_backward_args);
    DROPLESS_OFFER(exchange_close, dropless_exchange_close_args);
    DROPLESS_OFFER(synchronize, dropless_synchronize_args);
#undef DROPLESS_OFFER
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
};

bool same_profile(const dropless_profile& a, const dropless_profile& b) {
  // Without padding bytes: integers from the front, two pointers at the end.
  return std::memcmp(&a, &b, offsetof(dropless_profile, determinism) + sizeof a.determinism) == 0 &&
         a.tie_rank == b.tie_rank && a.replica_copy == b.replica_copy;
}

}  // namespace

const dropless_implementation& implementation() {
  static const dropless_profile profile = [] {
    dropless_profile p{};
    p.struct_size = sizeof p;
    p.struct_version = DROPLESS_STRUCT_VERSION;
    return p;
  }();
  return implementation(profile);
}

const dropless_implementation& implementation(const dropless_profile& declared) {
  dropless_profile profile = contract::completed(&declared, "profile");
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  check_profile(profile);
  // One table per distinct profile: handed-out references stay valid for the whole process.
  static std::mutex mutex;
  static std::deque<Table> tables;
  const std::lock_guard lock(mutex);
  for (const Table& table : tables) {
    if (same_profile(table.profile, profile)) return table.implementation;
  }
  return tables.emplace_back(profile).implementation;
}

}  // namespace dropless::reference
