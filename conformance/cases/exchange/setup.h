// SPDX-License-Identifier: Apache-2.0
// What the exchange cases share: a group of ranks with experts, placements and nodes, and what each
// of them routes. Every rank draws the data of all ranks from the case id.
//
//     const World world(run);                          // from the parameters of the case
//     const Routing& routing = world.routing("first"); // ids of all ranks and the reference's plan
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/cases/case_run.h"
#include "conformance/cases/loads.h"
#include "conformance/cases/selection.h"
#include "conformance/ranks/rank_group.h"
#include "reference/exchange.h"

namespace dropless::conformance {

using Bytes = std::vector<std::uint8_t>;

inline std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// The ids of one step on all ranks, and what they amount to.
struct Routing {
  std::vector<std::vector<Index>> ids;  // [R] of [T_r,K]
  reference::ExchangePlan plan;         // under the capacity of EXCHANGE-9

  [[nodiscard]] Index tokens(Index rank) const { return plan.tokens(rank); }
  [[nodiscard]] const reference::ReceivedRows& received(Index rank) const {
    return plan.received[at(rank)];
  }
};
std::vector<reference::Indices> views(const std::vector<std::vector<Index>>& arrays);
Routing make_routing(const dropless_profile& profile, const reference::ExchangeSettings& settings,
                     std::vector<std::vector<Index>> ids);

// How a step differs from the parameters of the case; empty: it does not.
struct StepChange {
  std::string load = {}, share = {};
  Index tokens = -1;
  std::string reversed = {};  // the ids of the step of this name, last token first
};

class World {
 public:
  // From the parameters ranks, experts, top_k, tokens, placement, nodes. Bytes of a row are set by
  // the family before it opens a handle.
  explicit World(CaseRun& run);
  // Another group of the same case, blocks of experts on one node.
  World(CaseRun& run, RankGroup& group);

  CaseRun& run;
  RankGroup& group;
  const Index rank, ranks;
  reference::ExchangeSettings settings;

  // Drawn from the case id and `name`; load, share and tokens are the parameters unless changed.
  [[nodiscard]] const Routing& routing(const std::string& name,
                                       const StepChange& change = {}) const;
  [[nodiscard]] Index capacity() const;
  // Rows of this rank's receive buffers for a routing: the capacity, or under the policy retry what
  // the plan returned.
  [[nodiscard]] Index buffer_rows(const Routing& routing) const;
  [[nodiscard]] bool flat() const { return reference::is_flat_layout(run.profile()); }
  [[nodiscard]] bool unordered() const;
  [[nodiscard]] bool weighted() const;  // expert-major with a weighted combine
  // Every second rank's matrices have so many elements between their rows (GENERAL-6).
  [[nodiscard]] Layout gaps(Index elements, Poison poison = Poison::all_ones) const {
    return {.row_gap = rank % 2 == 1 ? elements : 0, .poison = poison};
  }
  // Waits for all ranks; ends the case on this rank when another one has left it, whose verdict
  // says why.
  void meet() const;
};

// Loads of the taxonomy (each source rank draws its own), and patterns of rank pairs:
//   to_self, to_next, to_first    all experts of a token on that rank, as many as it has
//   not_to_self                   any expert of other ranks
//   one_rank                      all experts of a token on one rank, which differs by token
//   spread                        on as many different ranks as possible
//   some_pairs                    nothing from rank r to r + 1, r + 3, ...
const std::vector<std::string>& exchange_load_names();
std::vector<Index> exchange_ids(const std::string& load,
                                const reference::ExchangeSettings& settings, Index rank,
                                Index tokens, Random& random, double missing = 0.05);
// Tokens of each rank: even, uneven, none_on_first, only_on_last, none.
const std::vector<std::string>& share_names();
std::vector<Index> tokens_of_ranks(const std::string& share, Index tokens, Index ranks);
// blocks, shuffled (one slot each), cyclic (slot s holds expert s mod E; E need not divide), hot
// (an expert on every rank).
std::vector<Index> placement_of(const std::string& placement, Index ranks, Index experts,
                                Random& random);

// Milliseconds that one rank waits before a call.
void wait_for(Index milliseconds);

// ranks, experts, top_k, tokens, share, load, placement, nodes, `more`, seed.
std::vector<Parameter> exchange_parameters(std::vector<Parameter> more = {});
// Why these do not go together.
std::string exchange_objection(const Values& values);

// What every family judges that makes a plan and looks at the order of the rows, and `more`.
std::vector<std::string> exchange_clauses(std::vector<std::string> more);
// Of judge_dispatch.
std::vector<std::string> delivery_clauses();

struct GroupAxes {
  std::vector<std::string> ranks = {"1", "2", "4", "8"};
  std::vector<std::string> experts = {"16"};
  std::vector<std::string> top_k = {"2"};
  std::vector<std::string> tokens = {"13"};
  std::vector<std::string> share = {"even"};
  std::vector<std::string> load = {"balanced"};
  std::vector<std::string> placement = {"blocks"};
  std::vector<std::string> nodes = {"one"};
};
// Pairwise over these and `more`, without what the objection of the family rules out.
using Objection = std::string (*)(const Values&);
std::vector<Values> exchange_cases(const GroupAxes& group, std::vector<Axis> more = {},
                                   Objection objection = exchange_objection);

void add_exchange(Registry& registry);
// One function per file of the stage.
void add_exchange_plans(Registry& registry);
void add_exchange_dispatch(Registry& registry);
void add_exchange_combine(Registry& registry);
void add_exchange_backward(Registry& registry);
void add_exchange_adjoint(Registry& registry);
void add_exchange_steps(Registry& registry);
void add_exchange_interleaving(Registry& registry);
void add_exchange_capacity(Registry& registry);
void add_exchange_overflow(Registry& registry);
void add_exchange_overflow_checks(Registry& registry);
void add_exchange_repeat(Registry& registry);
void add_exchange_refusals(Registry& registry);
void add_exchange_lost_ranks(Registry& registry);
void add_exchange_parity(Registry& registry);

}  // namespace dropless::conformance
