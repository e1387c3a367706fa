// SPDX-License-Identifier: Apache-2.0
// Permutation: the plan, and rows to their experts. PERMUTATION-1 to 5. The declared alignment is
// 1: zones made here have no padding, zones given by others may have some.
#include "optimized/cpu/operations.h"
#include "optimized/cpu/row_map.h"

namespace dropless::cpu {
namespace {

constexpr Index alignment = 1;  // PERMUTATION-3, as declared in the profile

// Checks ids and counts them per chunk of tokens: counts[chunk * experts + expert].
std::vector<Index> count_pairs(const Tensor& ids, Index experts, Index tokens_per_chunk,
                               int threads) {
  const Index tokens = ids.shape[0], top_k = ids.shape[1];
  const Index chunks = ceil_div(tokens, tokens_per_chunk);
  std::vector<Index> counts(static_cast<std::size_t>(chunks * experts), 0);
  parallel_for(threads, chunks, [&](Index chunk) {
    Index* here = counts.data() + chunk * experts;
    std::vector<Index> seen(static_cast<std::size_t>(experts), -1);  // last token with this id
    const Index end = std::min(tokens, (chunk + 1) * tokens_per_chunk);
    for (Index t = chunk * tokens_per_chunk; t < end; ++t) {
      for (Index j = 0; j < top_k; ++j) {
        const Index id = ids.integer(t, j);
        if (id == -1) continue;
        refuse_if(id < -1 || id >= experts, "ids: outside -1 .. E-1");
        Index& last = seen[static_cast<std::size_t>(id)];
        refuse_if(last == t, "ids: the same expert twice in a token");
        last = t;
        ++here[id];
      }
    }
  });
  return counts;
}

}  // namespace

void permute_plan(Call& call, const dropless_permute_plan_args& args) {
  const Index experts = args.num_experts, capacity = args.row_capacity;
  refuse_if(experts < 0, "num_experts: negative");
  refuse_if(capacity < -1, "row_capacity: below -1");
  refuse_if(capacity > 0 && capacity % alignment != 0,
            "row_capacity: not a multiple of the alignment");
  const Tensor ids = tensor(args.ids, "ids", integers, {any, any});
  const Index tokens = ids.shape[0], top_k = ids.shape[1];
  const Tensor tokens_per_expert =
      tensor(args.tokens_per_expert, "tokens_per_expert", {DROPLESS_I64}, {experts});
  const Tensor offsets = tensor(args.offsets, "offsets", {DROPLESS_I64}, {experts + 1});
  const Tensor row_map = tensor(args.row_map, "row_map", {DROPLESS_I64}, {tokens, top_k});
  const Tensor source = tensor(args.source, "source", {DROPLESS_I64}, {any});
  const Tensor demand = tensor(args.demand, "demand", {DROPLESS_I64}, {1});

  // A stable counting sort by expert: chunks of tokens count, then each knows where its pairs go.
  const Index tokens_per_chunk =
      std::max<Index>(1024, ceil_div(tokens, 4 * thread_count(call.threads())));
  const Index chunks = ceil_div(tokens, tokens_per_chunk);
  std::vector<Index> position = count_pairs(ids, experts, tokens_per_chunk, call.threads());
  std::vector<Index> starts(static_cast<std::size_t>(experts) + 1, 0);
  Index total = 0;
  for (Index e = 0; e < experts; ++e) {
    starts[static_cast<std::size_t>(e)] = total;
    for (Index chunk = 0; chunk < chunks; ++chunk) {
      Index& here = position[static_cast<std::size_t>(chunk * experts + e)];
      const Index pairs = here;
      here = total;
      total += pairs;
    }
  }
  starts.back() = total;
  const Index kept = capacity < 0 ? total : std::min(total, capacity);
  refuse_if(source.shape[0] < kept, "source: shorter than the rows of the plan");

  for (Index e = 0; e <= experts; ++e) {
    offsets.as<std::int64_t>(e) = std::min(starts[static_cast<std::size_t>(e)], kept);
  }
  for (Index e = 0; e < experts; ++e) {
    tokens_per_expert.as<std::int64_t>(e) =
        offsets.as<std::int64_t>(e + 1) - offsets.as<std::int64_t>(e);
  }
  demand.as<std::int64_t>(0) = total;
  parallel_for(call.threads(), chunks, [&](Index chunk) {
    Index* next = position.data() + chunk * experts;
    const Index end = std::min(tokens, (chunk + 1) * tokens_per_chunk);
    for (Index t = chunk * tokens_per_chunk; t < end; ++t) {
      for (Index j = 0; j < top_k; ++j) {
        const Index id = ids.integer(t, j);
        const Index row = id < 0 ? kept : next[id]++;
        row_map.as<std::int64_t>(t, j) = row < kept ? row : -1;
        if (row < kept) source.as<std::int64_t>(row) = t * top_k + j;
      }
    }
  });
  call.ran("cpu");
}

void permute_forward(Call& call, const dropless_permute_args& args) {
  const Tensor x = tensor(args.x, "x", any_dtype, {any, any});
  const Index tokens = x.shape[0], hidden = x.shape[1];
  const Tensor rows = tensor(args.rows, "rows", {x.dtype}, {any, hidden});
  const RowMap map(args.row_map, tokens, any, rows.shape[0]);
  const Padding padding(args.offsets, args.source, rows.shape[0], tokens * map.top_k());
  const Tensor weights =
      optional_tensor(args.weights, "weights", {DROPLESS_FP32}, {tokens, map.top_k()});
  const Tensor row_weights =
      optional_tensor(args.row_weights, "row_weights", {DROPLESS_FP32}, {rows.shape[0]});
  const Tensor scales =
      optional_tensor(args.scales, "scales", {DROPLESS_U8, DROPLESS_E8M0}, {tokens, any});
  const Tensor row_scales =
      optional_tensor(args.row_scales, "row_scales", {DROPLESS_U8, DROPLESS_E8M0},
                      {rows.shape[0], scales.given ? scales.shape[1] : any});
  refuse_if(weights.given != row_weights.given, "weights and row_weights: only one given");
  refuse_if(scales.given != row_scales.given, "scales and row_scales: only one given");

  const Index grain = rows_per_task(hidden * x.element * std::max<Index>(map.top_k(), 1));
  parallel_ranges(call.threads(), tokens, grain, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      for (Index j = 0; j < map.top_k(); ++j) {
        const Index row = map(t, j);
        if (row < 0) continue;
        copy_row(x, t, rows, row);
        if (weights) row_weights.as<std::uint32_t>(row) = weights.as<std::uint32_t>(t, j);
        if (scales) copy_row(scales, t, row_scales, row);
      }
    }
  });
  for (const Index row : padding.rows()) {
    zero_row(rows, row);
    if (row_weights) row_weights.as<std::uint32_t>(row) = 0;
    if (row_scales) zero_row(row_scales, row);
  }
  call.ran("cpu");
}

}  // namespace dropless::cpu
