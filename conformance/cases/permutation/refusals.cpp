// SPDX-License-Identifier: Apache-2.0
// What a plan must refuse (GENERAL-3), each beside a control that succeeds.
#include "conformance/cases/permutation/setup.h"

namespace dropless::conformance {
namespace {

void run_refusals(CaseRun& run) {
  constexpr Index kTokens = 3, kTopK = 2, kExperts = 4;
  const Index a = std::max(run.profile().alignment, 1);
  const std::string& what = run.word("what");
  std::vector<Index> ids = {0, 1, 2, -1, 3, 0};
  const auto good = reference::permute_plan(run.profile(), kTokens, kTopK, kExperts, ids);
  Index capacity = -1, length = good.rows();
  if (what == "id_too_large") ids[3] = kExperts;
  if (what == "id_below_minus_one") ids[3] = -2;
  if (what == "duplicate_id") ids[3] = 2;
  if (what == "source_too_short") length = good.rows() - 1;
  if (what == "capacity_unaligned") capacity = a + 1;

  Buffers& buffers = run.buffers();
  const auto call = [&](const std::vector<Index>& chosen, Index rows, Index row_capacity,
                        bool refuse) {
    Buffer& id_buffer = buffers.input("ids", DROPLESS_I32, {kTokens, kTopK}, chosen);
    Buffer& counts = buffers.output("tokens_per_expert", DROPLESS_I64, {kExperts});
    Buffer& offsets = buffers.output("offsets", DROPLESS_I64, {kExperts + 1});
    Buffer& row_map = buffers.output("row_map", DROPLESS_I64, {kTokens, kTopK});
    Buffer& source = buffers.output("source", DROPLESS_I64, {rows});
    Buffer& demand = buffers.output("demand", DROPLESS_I64, {1});
    auto args = make_args<dropless_permute_plan_args>();
    args.num_experts = kExperts, args.row_capacity = row_capacity;
    args.ids = id_buffer.tensor(), args.tokens_per_expert = counts.tensor();
    args.offsets = offsets.tensor(), args.row_map = row_map.tensor();
    args.source = source.tensor(), args.demand = demand.tensor();
    const auto entry = run.implementation().permute_plan;
    if (refuse) {
      run.refused("GENERAL-3", what, "permute_plan", entry, args);
    } else {
      run.perform("permute_plan", entry, args);
      run.judge().exact("PERMUTATION-2", "row_map of the control", row_map, good.row_map);
    }
  };
  call({0, 1, 2, -1, 3, 0}, good.rows(), -1, false);
  // With alignment 1 every capacity is aligned: nothing to refuse there.
  if (what == "capacity_unaligned" && a == 1) return;
  call(ids, length, capacity, true);
}

}  // namespace

void add_permutation_refusals(Registry& registry) {
  const std::vector<std::string> whats = {"id_too_large", "id_below_minus_one", "duplicate_id",
                                          "source_too_short", "capacity_unaligned"};
  registry.add({"permutation.refusals",
                "Proves that an illegal routing or capacity is refused and nothing is written.",
                {"GENERAL-3", "PERMUTATION-2"},
                {{"what", whats, 0, 0, "what is wrong with the request"}},
                [whats](Tier tier) {
                  if (tier != Tier::smoke) return std::vector<Values>{};
                  return product({{"what", whats}});
                },
                run_refusals});
}

}  // namespace dropless::conformance
