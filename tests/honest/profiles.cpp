// SPDX-License-Identifier: Apache-2.0
// Variants of the profile: the reference under every other choice that it may declare.
#include "tests/honest/variant.h"

namespace dropless::honest {
namespace {

// Odd indices first: a total order that is neither ascending nor descending (ROUTING-5).
std::int64_t odd_first(std::int64_t count, std::int64_t index) {
  return index % 2 == 1 ? index / 2 : count / 2 + index / 2;
}
// From the middle outwards, to both sides.
std::int64_t middle_first(std::int64_t count, std::int64_t index) {
  const std::int64_t middle = count / 2;
  return index < middle ? 2 * (middle - index) - 1 : 2 * (index - middle);
}

template <auto field, std::int32_t value>
void plant(Planted& variant) {
  variant.declare([](dropless_profile& profile) { profile.*field = value; });
}

template <std::int64_t (*rank)(std::int64_t, std::int64_t)>
void plant_order(Planted& variant) {
  variant.declare([](dropless_profile& profile) {
    profile.tie_rule = DROPLESS_TIE_DECLARED;
    profile.tie_rank = rank;
  });
}

// Declares that any of the equal ones may be selected, and takes the last.
void plant_any_of_equals(Planted& variant) {
  variant.declare([](dropless_profile& profile) { profile.tie_rule = DROPLESS_TIE_ANY; });
  variant.behave_as(
      [](dropless_profile& profile) { profile.tie_rule = DROPLESS_TIE_HIGHEST_INDEX; });
}

template <std::int32_t alignment>
void plant_blocks(Planted& variant) {
  variant.declare([](dropless_profile& profile) {
    profile.alignment = alignment;
    profile.empty_expert = DROPLESS_EMPTY_EXPERT_ONE_BLOCK;
  });
}

void plant_demanding_gemm(Planted& variant) {
  variant.declare([](dropless_profile& profile) {
    profile.alignment = 32;
    profile.gemm_alignment = 32;
  });
}

// What one published stack declares together: everything at once meets what single choices do not.
void plant_many(Planted& variant) {
  variant.declare([](dropless_profile& profile) {
    profile.tie_rule = DROPLESS_TIE_HIGHEST_INDEX;
    profile.selection_order = DROPLESS_ORDER_ASCENDING_ID;
    profile.weight_source = DROPLESS_WEIGHT_SUBTRACT;
    profile.group_width = DROPLESS_GROUP_WIDTH_TWO;
    profile.exponential = DROPLESS_EXPONENTIAL_FAST;
    profile.balance_factor = DROPLESS_BALANCE_FACTOR_TOP_K;
    profile.alignment = 128;
    profile.gemm_alignment = 128;
    profile.empty_expert = DROPLESS_EMPTY_EXPERT_ONE_BLOCK;
    profile.unpermute_order = DROPLESS_UNPERMUTE_ANY_ORDER;
    profile.tail_rows = DROPLESS_TAIL_ZERO;
    profile.scale_rule = DROPLESS_SCALE_FLOOR;
    profile.special_values = DROPLESS_SPECIAL_BLOCK;
    profile.scale_padding_byte = 127;
    profile.accumulator_bf16 = DROPLESS_ACCUMULATOR_TENSOR_CORE_25;
    profile.accumulator_mxfp8 = DROPLESS_ACCUMULATOR_TENSOR_CORE_25;
    profile.determinism = DROPLESS_DETERMINISTIC_SAME_THREADS;
  });
}

// The K experts of every token in another order than that of their scores (ROUTING-5).
void plant_any_output_order(Planted& variant) {
  variant.declare([](dropless_profile& profile) { profile.selection_order = DROPLESS_ORDER_ANY; });
  variant.after<&Table::route_forward>([](dropless_route_args& a) {
    if (a.given_ids != nullptr) return;
    const auto ids = faults::view(a.ids), weights = faults::view(a.weights);
    const Index k = ids.shape(1);
    for (Index t = 0; t < ids.shape(0); ++t) {
      std::vector<Index> old_ids;
      std::vector<double> old_weights;
      for (Index j = 0; j < k; ++j) {
        old_ids.push_back(ids.load_integer(t, j));
        old_weights.push_back(weights.load(t, j));
      }
      for (Index j = 0; j < k; ++j) {
        const auto from = static_cast<std::size_t>((j + t + 1) % k);
        ids.store_integer(old_ids[from], t, j);
        weights.store(old_weights[from], t, j);
      }
    }
  });
}

}  // namespace

void add_profiles(std::vector<Variant>& variants) {
  using P = dropless_profile;
  const auto add = [&](const char* name, const char* difference, void (*plant_it)(Planted&)) {
    variants.push_back({name, difference, plant_it});
  };
  add("tie-highest", "equal values: highest index first",
      plant<&P::tie_rule, DROPLESS_TIE_HIGHEST_INDEX>);
  add("tie-odd-first", "equal values: a declared order, odd indices first", plant_order<odd_first>);
  add("tie-middle-first", "equal values: a declared order, from the middle outwards",
      plant_order<middle_first>);
  add("tie-any", "equal values: any is declared, the last is taken", plant_any_of_equals);
  add("order-ascending-id", "ids of a token in ascending order",
      plant<&P::selection_order, DROPLESS_ORDER_ASCENDING_ID>);
  add("order-any", "ids of a token in an order of their own", plant_any_output_order);
  add("weights-subtract", "weights are biased scores minus the bias",
      plant<&P::weight_source, DROPLESS_WEIGHT_SUBTRACT>);
  add("group-width-two", "group scores add up two members",
      plant<&P::group_width, DROPLESS_GROUP_WIDTH_TWO>);
  add("fast-exponential", "declares a fast exponential",
      plant<&P::exponential, DROPLESS_EXPONENTIAL_FAST>);
  add("balance-top-k", "balance loss with c = K",
      plant<&P::balance_factor, DROPLESS_BALANCE_FACTOR_TOP_K>);
  add("balance-clean-counts", "balance loss counts the clean top-k",
      plant<&P::balance_counts, DROPLESS_BALANCE_COUNTS_CLEAN_TOP_K>);
  add("align-16", "zones of 16 rows, one block for an empty expert", plant_blocks<16>);
  add("align-32", "zones of 32 rows, which the grouped GEMM demands", plant_demanding_gemm);
  add("align-128", "zones of 128 rows, one block for an empty expert", plant_blocks<128>);
  add("align-256", "zones of 256 rows, none for an empty expert", plant<&P::alignment, 256>);
  add("tail-zero", "rows beyond the last zone are written as zero",
      plant<&P::tail_rows, DROPLESS_TAIL_ZERO>);
  add("scale-floor", "MXFP8 scales by FLOOR", plant<&P::scale_rule, DROPLESS_SCALE_FLOOR>);
  add("scale-ceil", "MXFP8 scales by CEIL", plant<&P::scale_rule, DROPLESS_SCALE_CEIL>);
  add("scale-even", "MXFP8 scales by EVEN", plant<&P::scale_rule, DROPLESS_SCALE_EVEN>);
  add("special-block", "a NaN or Inf makes its block NaN",
      plant<&P::special_values, DROPLESS_SPECIAL_BLOCK>);
  add("scale-padding", "padding of packed scales holds another byte",
      plant<&P::scale_padding_byte, 255>);
  add("same-threads", "deterministic for equal thread counts only",
      plant<&P::determinism, DROPLESS_DETERMINISTIC_SAME_THREADS>);
  add("many-choices", "seventeen other choices at once", plant_many);
}

}  // namespace dropless::honest
