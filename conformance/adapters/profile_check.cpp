// SPDX-License-Identifier: Apache-2.0
// Allowed sets of include/dropless/contract/profile.h, one row per field.
#include "conformance/adapters/profile_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "conformance/cases/case_id.h"

namespace dropless::conformance {
namespace {

using Allowed = std::vector<ProfileValue>;

// Words numbered 0, 1, 2, ... in the order of the enumeration.
Allowed words(std::initializer_list<const char*> names) {
  Allowed values;
  for (const char* name : names) values.push_back({static_cast<std::int32_t>(values.size()), name});
  return values;
}

Allowed numbers(std::initializer_list<std::int32_t> list) {
  Allowed values;
  for (const std::int32_t value : list) values.push_back({value, std::to_string(value)});
  return values;
}

Allowed range(std::int32_t least, std::int32_t most) {
  Allowed values;
  for (std::int32_t value = least; value <= most; ++value) {
    values.push_back({value, std::to_string(value)});
  }
  return values;
}

std::string list_of(const Allowed& allowed) {
  if (allowed.size() > 16) return fmt::format("{} to {}", allowed[0].word, allowed.back().word);
  std::vector<std::string> parts;
  for (const ProfileValue& one : allowed) {
    const std::string number = std::to_string(one.value);
    parts.push_back(number == one.word ? number : fmt::format("{} ({})", number, one.word));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

void require(bool met, std::string_view origin, std::string_view what) {
  if (!met) throw UsageError(fmt::format("{}: {}", origin, what));
}

}  // namespace

const std::vector<ProfileField>& profile_fields() {
  using P = dropless_profile;
  static const Allowed two_accumulators = words({"fp32", "tensor_core_25"});
  static const std::vector<ProfileField> fields{
      {"tie_rule", "ROUTING-5", &P::tie_rule,
       words({"lowest_index", "highest_index", "any", "declared"})},
      {"selection_order", "ROUTING-5", &P::selection_order,
       words({"descending_score", "ascending_id", "any"})},
      {"weight_source", "ROUTING-2", &P::weight_source, words({"gather", "subtract"})},
      {"group_width", "ROUTING-4", &P::group_width, words({"k_over_kept", "two"})},
      {"exponential", "ROUTING-6", &P::exponential, words({"accurate", "fast"})},
      {"device_values", "GENERAL-3", &P::device_values, words({"checked", "unchecked"})},
      {"balance_factor", "ROUTING-14", &P::balance_factor, words({"one", "top_k"})},
      {"balance_counts", "ROUTING-14", &P::balance_counts, words({"real", "clean_top_k"})},
      {"alignment", "PERMUTATION-3", &P::alignment, numbers({0, 1, 16, 32, 128, 256})},
      {"empty_expert", "PERMUTATION-3", &P::empty_expert, words({"none", "one_block"})},
      {"unpermute_order", "PERMUTATION-6", &P::unpermute_order, words({"slot_order", "any"})},
      {"tail_rows", "GROUPED_GEMM-4", &P::tail_rows, words({"untouched", "zero"})},
      {"scale_rule", "MXFP8-2", &P::scale_rule, words({"rceil", "floor", "ceil", "even"})},
      {"special_values", "MXFP8-4", &P::special_values, words({"element", "block"})},
      {"scale_padding_byte", "MXFP8-7", &P::scale_padding_byte, range(0, 255)},
      // Only the FP8 path of Hopper adds up in 13 bits: plain operands cannot declare it.
      {"accumulator_fp32", "GROUPED_GEMM-6", &P::accumulator_fp32, two_accumulators},
      {"accumulator_bf16", "GROUPED_GEMM-6", &P::accumulator_bf16, two_accumulators},
      {"accumulator_mxfp8", "GROUPED_GEMM-6", &P::accumulator_mxfp8,
       words({"fp32", "tensor_core_25", "hopper_fp8_13"})},
      {"promotion_period", "GROUPED_GEMM-6", &P::promotion_period, {}},  // any count, 0 = never
      {"partials", "GROUPED_GEMM-6", &P::partials, words({"fp32", "bf16"})},
      {"gemm_alignment", "GROUPED_GEMM-1", &P::gemm_alignment,
       numbers({0, 1, 2, 4, 8, 16, 32, 64, 128, 256})},
      {"dispatch_layout", "EXCHANGE-3", &P::dispatch_layout,
       words({"flat", "expert_major", "unordered_flat", "unordered_expert_major"})},
      {"flat_ids", "EXCHANGE-3", &P::flat_ids, words({"ascending", "in_place"})},
      {"combine_weighting", "EXCHANGE-6", &P::combine_weighting, words({"unweighted", "weighted"})},
      {"combine_rounding", "EXCHANGE-6", &P::combine_rounding,
       words({"once", "per_rank", "per_node"})},
      {"overflow_policy", "EXCHANGE-10", &P::overflow_policy,
       words({"error", "trap", "drop", "retry"})},
      {"replica_map", "EXCHANGE-0", &P::replica_map, words({"token_modulo", "declared"})},
      {"determinism", "GENERAL-1", &P::determinism, words({"any_threads", "same_threads", "no"})},
  };
  return fields;
}

dropless_profile completed(const dropless_profile& declared) {
  dropless_profile profile{};
  std::memcpy(&profile, &declared, std::min<std::size_t>(declared.struct_size, sizeof profile));
  profile.struct_size = sizeof profile;
  if (profile.alignment == 0) profile.alignment = 1;
  if (profile.gemm_alignment == 0) profile.gemm_alignment = 1;
  return profile;
}

std::string word_of(const ProfileField& field, std::int32_t value) {
  for (const ProfileValue& one : field.allowed) {
    if (one.value == value) return one.word;
  }
  return std::to_string(value);
}

void check_profile(const dropless_profile* declared, std::string_view origin) {
  require(declared != nullptr, origin,
          "profile is null; point it to {sizeof(dropless_profile), DROPLESS_STRUCT_VERSION}");
  require(declared->struct_size >= offsetof(dropless_profile, tie_rule) &&
              declared->struct_size <= (1u << 16),
          origin,
          fmt::format("profile.struct_size is {}; set it to sizeof(dropless_profile)",
                      declared->struct_size));
  require(declared->struct_version == DROPLESS_STRUCT_VERSION, origin,
          fmt::format("profile.struct_version is {}; set it to DROPLESS_STRUCT_VERSION ({})",
                      declared->struct_version, DROPLESS_STRUCT_VERSION));
  const dropless_profile profile = completed(*declared);
  for (const ProfileField& field : profile_fields()) {
    const std::int32_t value = profile.*field.member;
    const bool known = std::any_of(field.allowed.begin(), field.allowed.end(),
                                   [&](const ProfileValue& one) { return one.value == value; });
    require(known || (field.allowed.empty() && value >= 0), origin,
            field.allowed.empty()
                ? fmt::format("profile.{} is {}; declare 0 or more", field.name, value)
                : fmt::format("profile.{} is {}, which {} does not allow; declare one of {}",
                              field.name, value, field.clause, list_of(field.allowed)));
  }
  require(profile.tie_rule != DROPLESS_TIE_DECLARED || profile.tie_rank != nullptr, origin,
          "profile.tie_rule is 3 (declared) without an order; set profile.tie_rank");
  require(profile.replica_map != DROPLESS_REPLICA_DECLARED || profile.replica_copy != nullptr,
          origin, "profile.replica_map is 1 (declared) without a map; set profile.replica_copy");
}

}  // namespace dropless::conformance
