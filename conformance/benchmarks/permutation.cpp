// SPDX-License-Identifier: Apache-2.0
// Permute and unpermute against memcpy of the same bytes.
#include "conformance/benchmarks/comparison.h"
#include "conformance/benchmarks/operands.h"
#include "conformance/cases/loads.h"

namespace dropless::conformance {
namespace {

constexpr Index kTokens = 4096, kTopK = 8, kExperts = 256, kHidden = 2048;

}  // namespace

void add_permutation(std::vector<Comparison>& all, const dropless_implementation& implementation,
                     int threads, std::vector<std::string>& not_offered) {
  if (implementation.permute_plan == nullptr || implementation.permute_forward == nullptr) {
    not_offered.emplace_back("permute_plan, permute_forward");
    return;
  }
  Random random(Random::key_of("bench permutation"));
  const Index alignment = std::max(implementation.profile->alignment, 1);
  const Index rows = kTokens * kTopK + kExperts * (alignment - 1 + alignment);
  auto ids = bench_tensor(DROPLESS_I64, {kTokens, kTopK});
  const auto chosen = ids_for_load("zipf", kTokens, kExperts, kTopK, random);
  std::copy(chosen.begin(), chosen.end(), ids->as<Index>());
  auto counts = bench_tensor(DROPLESS_I64, {kExperts});
  auto offsets = bench_tensor(DROPLESS_I64, {kExperts + 1});
  auto row_map = bench_tensor(DROPLESS_I64, {kTokens, kTopK});
  auto source = bench_tensor(DROPLESS_I64, {rows});
  auto demand = bench_tensor(DROPLESS_I64, {1});
  auto plan_args = make_args<dropless_permute_plan_args>();
  plan_args.num_experts = kExperts;
  plan_args.row_capacity = -1;
  plan_args.ids = ids->tensor(), plan_args.tokens_per_expert = counts->tensor();
  plan_args.offsets = offsets->tensor(), plan_args.row_map = row_map->tensor();
  plan_args.source = source->tensor(), plan_args.demand = demand->tensor();
  call_operation(implementation, threads, implementation.permute_plan, plan_args);

  auto x = bench_tensor(DROPLESS_BF16, {kTokens, kHidden});
  fill_normal(*x, Random(1));
  auto permuted = bench_tensor(DROPLESS_BF16, {rows, kHidden});
  auto from = bench_tensor(DROPLESS_BF16, {rows, kHidden});
  fill_normal(*from, Random(2));
  const double used = static_cast<double>(offsets->as<Index>()[kExperts]);
  const std::string suffix = ", " + std::to_string(threads) + " threads";

  Comparison permute;
  permute.name = "permutation.permute";
  permute.what = "T=4096 K=8 E=256 H=2048 bf16, zipf" + suffix;
  permute.peer_name = "memcpy of the rows" + suffix;
  permute.bytes = permute.peer_bytes = used * kHidden * 2 * 2;
  permute.operation = [=, &implementation] {
    auto args = make_args<dropless_permute_args>();
    args.offsets = offsets->tensor(), args.row_map = row_map->tensor();
    args.source = source->tensor(), args.x = x->tensor(), args.rows = permuted->tensor();
    call_operation(implementation, threads, implementation.permute_forward, args);
  };
  permute.peer = [=] {
    split(static_cast<Index>(used), threads, [&](Index first, Index last) {
      std::memcpy(permuted->as<std::uint16_t>() + first * kHidden,
                  from->as<std::uint16_t>() + first * kHidden,
                  static_cast<std::size_t>((last - first) * kHidden * 2));
    });
  };
  permute.target_ratio = 0.6;
  all.push_back(permute);

  if (implementation.unpermute_forward == nullptr) {
    not_offered.emplace_back("unpermute_forward");
    return;
  }
  auto weights = bench_tensor(DROPLESS_FP32, {kTokens, kTopK});
  fill_normal(*weights, Random(3));
  auto y = bench_tensor(DROPLESS_BF16, {kTokens, kHidden});
  Comparison unpermute = permute;
  unpermute.name = "permutation.unpermute_weighted";
  unpermute.target_ratio = 0;
  unpermute.bytes = (static_cast<double>(kTokens * kTopK) + kTokens) * kHidden * 2;
  unpermute.operation = [=, &implementation] {
    auto args = make_args<dropless_unpermute_args>();
    args.row_map = row_map->tensor(), args.rows = from->tensor();
    args.weights = weights->tensor(), args.y = y->tensor();
    call_operation(implementation, threads, implementation.unpermute_forward, args);
  };
  all.push_back(unpermute);
}

}  // namespace dropless::conformance
