// SPDX-License-Identifier: Apache-2.0
// Permute and weighted unpermute of the rows of 256 experts, by a plan made on the host.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/benchmarks/device/benchmark.h"
#include "conformance/cases/case_run.h"
#include "conformance/cases/loads.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// Rows sorted by (expert, token, slot) in zones of the profile's alignment (PERMUTATION-2, 3).
struct Plan {
  std::vector<Index> offsets, row_map, source;
};

Plan make_plan(const DeviceSizes& sizes, const dropless_profile& profile) {
  Random random(Random::key_of("bench permutation"));
  const auto ids = ids_for_load("balanced", sizes.tokens, sizes.experts, sizes.top_k, random);
  std::vector<Index> counts(at(sizes.experts), 0);
  for (const Index id : ids) ++counts[at(id)];
  Plan plan;
  plan.offsets = aligned_offsets(counts, std::max(profile.alignment, 1),
                                 profile.empty_expert == DROPLESS_EMPTY_EXPERT_ONE_BLOCK);
  plan.source.assign(at(plan.offsets.back()), -1);
  std::vector<Index> next = plan.offsets;
  for (std::size_t pair = 0; pair < ids.size(); ++pair) {
    const Index row = next[at(ids[pair])]++;
    plan.row_map.push_back(row);
    plan.source[at(row)] = static_cast<Index>(pair);
  }
  return plan;
}

}  // namespace

void add_permutation(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
                     const DeviceSizes& sizes) {
  const auto plan = std::make_shared<const Plan>(make_plan(sizes, *table.profile));
  const Index tokens = sizes.tokens, k = sizes.top_k, hidden = sizes.hidden;
  const std::string keys =
      fmt::format("tokens={} experts={} top_k={} hidden={}", tokens, sizes.experts, k, hidden);
  const std::string what = fmt::format("T={} E={} K={} H={}, {} rows bf16", tokens, sizes.experts,
                                       k, hidden, plan->offsets.back());

  DeviceBenchmark permute;
  permute.name = "permutation.permute";
  permute.what = what;
  permute.request = "permute " + keys;
  permute.bytes = static_cast<double>((tokens + plan->offsets.back()) * hidden * 2);
  permute.mark = {MarkKind::microseconds_at_most, 160};
  if (table.permute_forward == nullptr) permute.missing = {"permute_forward"};
  permute.make_set = [plan, tokens, k, hidden](DeviceBench& bench) {
    const auto n = static_cast<Index>(plan->source.size());
    const auto experts = static_cast<Index>(plan->offsets.size()) - 1;
    const DeviceTensor offsets = bench.integers({experts + 1}, plan->offsets);
    const DeviceTensor row_map = bench.integers({tokens, k}, plan->row_map);
    const DeviceTensor source = bench.integers({n}, plan->source);
    const DeviceTensor x = bench.normal(DROPLESS_BF16, {tokens, hidden});
    const DeviceTensor rows = bench.tensor(DROPLESS_BF16, {n, hidden});
    OperandSet set;
    set.call = [=, &bench] {
      auto args = make_args<dropless_permute_args>();
      args.offsets = offsets->get(), args.row_map = row_map->get(), args.source = source->get();
      args.x = x->get(), args.rows = rows->get();
      bench.call("permute_forward", bench.table().permute_forward, args);
    };
    set.outputs = {{"rows", rows, rows->size()}};
    return set;
  };
  all.push_back(permute);

  DeviceBenchmark unpermute;
  unpermute.name = "permutation.unpermute_weighted";
  unpermute.what = what;
  unpermute.request = "unpermute " + keys;
  unpermute.bytes = static_cast<double>((tokens + tokens * k) * hidden * 2);
  unpermute.mark = {MarkKind::microseconds_at_most, 160};
  if (table.unpermute_forward == nullptr) unpermute.missing = {"unpermute_forward"};
  unpermute.make_set = [plan, tokens, k, hidden](DeviceBench& bench) {
    const auto n = static_cast<Index>(plan->source.size());
    const DeviceTensor row_map = bench.integers({tokens, k}, plan->row_map);
    const DeviceTensor rows = bench.normal(DROPLESS_BF16, {n, hidden});
    const DeviceTensor weights = bench.normal(DROPLESS_FP32, {tokens, k});
    const DeviceTensor y = bench.tensor(DROPLESS_BF16, {tokens, hidden});
    OperandSet set;
    set.call = [=, &bench] {
      auto args = make_args<dropless_unpermute_args>();
      args.row_map = row_map->get(), args.rows = rows->get();
      args.weights = weights->get(), args.y = y->get();
      bench.call("unpermute_forward", bench.table().unpermute_forward, args);
    };
    set.outputs = {{"y", y, y->size()}};
    return set;
  };
  all.push_back(unpermute);
}

}  // namespace dropless::conformance
