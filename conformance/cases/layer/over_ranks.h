// SPDX-License-Identifier: Apache-2.0
// What the cases of a layer over ranks share: LAYER-4 and EXCHANGE-13. The expectation is the
// layer on one rank, with the tokens of all ranks one after another; each rank's part of it is what
// the layer has to give there.
//
//     LayerGroup group(run, "only", tokens_of_all_ranks);
//     fill_layer(run, group.whole, group.total_tokens());
//     group.take_parts();
//     LayerExchange exchange(group);              // opens a handle with room for this layer
//     group.part.exchange = exchange.handle();
//     LayerCall call(run, group.part);
//     call.forward(true), call.backward(group.d_y(), true);
//     judge_over_ranks(run, group, call, clauses);
//     exchange.close();
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/cases/layer/setup.h"
#include "conformance/ranks/rank_group.h"

namespace dropless::conformance {

// A step of one layer on all ranks, as this rank sees it. Every rank draws all of it from the case.
class LayerGroup {
 public:
  // `name` tells the steps of a case apart.
  LayerGroup(CaseRun& run, std::string name, std::vector<Index> tokens_of_ranks);
  // From the parameters tokens (the most of a rank) and share.
  LayerGroup(CaseRun& run, std::string name);
  LayerGroup(const LayerGroup&) = delete;
  LayerGroup& operator=(const LayerGroup&) = delete;

  CaseRun& run;
  RankGroup& group;
  const Index rank, ranks;
  const std::string name;
  const std::vector<Index> tokens;  // of each rank
  LayerData whole;                  // all experts, the tokens of all ranks in their order
  std::vector<double> whole_d_y;
  LayerData own;   // this rank's tokens, all experts
  LayerData part;  // this rank's tokens and experts: what is handed over

  void take_parts();  // fills own and part
  // The tokens of one rank, with all experts or with its own.
  void take(Index of_rank, bool all_experts, LayerData& out) const;
  [[nodiscard]] Index total_tokens() const { return first_token(ranks); }
  [[nodiscard]] Index first_token(Index of_rank) const;
  [[nodiscard]] Index local_experts() const { return whole.experts() / ranks; }
  [[nodiscard]] Index first_expert() const { return rank * local_experts(); }
  [[nodiscard]] Index owner(Index expert) const { return expert / local_experts(); }
  [[nodiscard]] std::span<const double> d_y() const { return d_y_of(rank); }
  [[nodiscard]] std::span<const double> d_y_of(Index of_rank) const;

  // The ids that all ranks chose, from those of this one; ends the case when a rank has left it.
  [[nodiscard]] std::vector<Index> gathered_ids(const std::vector<Index>& of_this_rank) const;
};

// An open handle with room for a layer. A handle that the case left open is closed, not judged.
struct ExchangeRoom {
  Index experts = 0, top_k = 0, tokens = 0;
  Index row_bytes = 0, scale_bytes = 0;
};
class LayerExchange {
 public:
  explicit LayerExchange(const LayerGroup& group);
  LayerExchange(const LayerGroup& group, const ExchangeRoom& room);
  LayerExchange(const LayerExchange&) = delete;
  LayerExchange& operator=(const LayerExchange&) = delete;
  ~LayerExchange();
  void close();  // must succeed
  [[nodiscard]] dropless_exchange* handle() const { return exchange_; }
  // What the layer of a group sends: fp32 rows, and under MXFP8 the scales of the codes.
  [[nodiscard]] static ExchangeRoom room_of(const LayerGroup& group);

 private:
  CaseRun& run_;
  dropless_exchange* exchange_ = nullptr;
};

// The clauses that name y, d_x, the gradients of the experts, and those of what every rank holds.
struct ParityClauses {
  std::string y, d_x, experts, replicated;
};

// Routing by the judgement of one rank, then y, d_x and all gradients within the bounds of a layer.
void judge_over_ranks(const LayerGroup& group, const LayerCall& call, const ParityClauses& clauses);
// The same bit by bit, for data on which everything is exact; given ids. With exact_router also the
// gradients of the router, within their bounds otherwise.
void judge_exactly(const LayerGroup& group, const LayerCall& call, const ParityClauses& clauses,
                   bool exact_router);

// The case sees what it claims to: pairs go from lower to higher ranks and back, tokens have
// experts on several ranks, and several on one.
void require_traffic(const LayerGroup& group, const std::vector<Index>& all_ids);

// Parameters that every family has: ranks, tokens, share, nodes.
std::vector<Parameter> rank_parameters();
std::string rank_objection(const Values& values, Index experts);

// One function per file.
void add_layer_over_ranks(Registry& registry);
void add_layer_over_ranks_exact(Registry& registry);
void add_layer_over_ranks_refusals(Registry& registry);

}  // namespace dropless::conformance
