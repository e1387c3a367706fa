// SPDX-License-Identifier: Apache-2.0
// Set-up of the permutation cases.
#include <algorithm>
#include <limits>

#include "conformance/cases/permutation/setup.h"
#include "conformance/judge/trust.h"

namespace dropless::conformance {

RoutedTokens routed_tokens(CaseRun& run, double missing) {
  const Model model = scaled(run.model(), run.has("divisor") ? run.integer("divisor") : 64);
  RoutedTokens routed;
  routed.tokens = run.integer("tokens");
  routed.top_k = model.top_k;
  routed.experts = model.experts;
  routed.hidden = model.hidden;
  Random random = run.random("routing");
  const std::string& load = run.word("load");
  routed.ids = ids_for_load(load, routed.tokens, routed.experts, routed.top_k, random, missing);
  const auto unrouted = [&] {
    return std::all_of(routed.ids.begin(), routed.ids.end(), [](Index id) { return id < 0; });
  };
  if (unrouted()) {  // a few pairs may all have been left out
    routed.ids = ids_for_load(load, routed.tokens, routed.experts, routed.top_k, random, 0);
  }
  // A list may say that nothing is routed, and a zone at a tile edge has 15 rows at least.
  const bool by_word =
      std::find(load_names().begin(), load_names().end(), load) != load_names().end();
  const Index least = load == "tile_edge" ? 32 : 1;
  if (by_word && load != "all_empty" && routed.tokens * routed.top_k >= least) {
    run.judge().require(!unrouted(), "the load routes at least one pair");
  }
  routed.plan = reference::permute_plan(run.profile(), routed.tokens, routed.top_k, routed.experts,
                                        routed.ids);
  routed.length = routed.plan.rows() + 7;
  return routed;
}

Index RoutedTokens::real_rows() const {
  return std::count_if(ids.begin(), ids.end(), [](Index id) { return id >= 0; });
}

void demand_variety(CaseRun& run, std::span<const double> results, Index elements,
                    std::string_view what) {
  if (elements == 0) return;
  run.judge().require(trust::distinct(results) > std::min<Index>(8, elements / 8), what);
}

PlanInputs plan_inputs(CaseRun& run, const RoutedTokens& routed) {
  std::vector<Index> source = routed.plan.source;
  Random random = run.random("source tail");
  while (static_cast<Index>(source.size()) < routed.length) {
    source.push_back(random.below(std::max<Index>(routed.tokens * routed.top_k, 1)));
  }
  Buffers& buffers = run.buffers();
  return {&buffers.input("offsets", DROPLESS_I64, {routed.experts + 1}, routed.plan.offsets),
          &buffers.input("row_map", DROPLESS_I64, routed.slots(), routed.plan.row_map),
          &buffers.input("source", DROPLESS_I64, {routed.length}, source)};
}

namespace {

template <class Wanted>
Judged row_flags(const RoutedTokens& routed, Index columns, Wanted wanted) {
  Judged flags(static_cast<std::size_t>(routed.length * columns), false);
  for (Index row = 0; row < routed.length; ++row) {
    if (!wanted(row)) continue;
    for (Index c = 0; c < columns; ++c) flags[static_cast<std::size_t>(row * columns + c)] = true;
  }
  return flags;
}

}  // namespace

Judged zone_elements(const RoutedTokens& routed, Index columns) {
  return row_flags(routed, columns, [&](Index row) { return row < routed.plan.rows(); });
}

Judged tail_elements(const RoutedTokens& routed, Index columns) {
  return row_flags(routed, columns, [&](Index row) { return row >= routed.plan.rows(); });
}

Judged padding_elements(const RoutedTokens& routed, Index columns) {
  return row_flags(routed, columns, [&](Index row) {
    return row < routed.plan.rows() && routed.plan.source[static_cast<std::size_t>(row)] < 0;
  });
}

void judge_tail(CaseRun& run, std::string_view what, const RoutedTokens& routed,
                const Buffer& buffer) {
  const Index columns = routed.length == 0 ? 0 : buffer.size() / routed.length;
  const Judged tail = tail_elements(routed, columns);
  if (run.profile().tail_rows == DROPLESS_TAIL_UNTOUCHED) {
    run.judge().untouched("PERMUTATION-8", what, buffer, tail);
  } else {
    const std::vector<std::uint8_t> zero(
        static_cast<std::size_t>(buffer.size()) * dtype_bytes(buffer.dtype()), 0);
    run.judge().exact_bytes("PERMUTATION-8", what, buffer, zero, tail);
  }
}

std::vector<double> with_hostile_padding(const RoutedTokens& routed, Index columns,
                                         std::vector<double> real) {
  real.resize(static_cast<std::size_t>(routed.length * columns));
  for (Index row = 0; row < routed.length; ++row) {
    const bool is_real =
        row < routed.plan.rows() && routed.plan.source[static_cast<std::size_t>(row)] >= 0;
    if (is_real) continue;
    for (Index c = 0; c < columns; ++c) {
      real[static_cast<std::size_t>(row * columns + c)] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  return real;
}

std::vector<std::string> top_k_models() {
  std::vector<std::string> names;
  for (const Model& model : models()) {
    if (model.top_k_routing) names.push_back(model.name);
  }
  return names;
}

std::vector<Parameter> permutation_parameters(std::vector<Parameter> more) {
  std::vector<Parameter> all = {
      {"model", top_k_models(), 0, 0, "published model: experts, top-k, hidden size"},
      {"divisor", {}, 1, 1024, "hidden size is divided by this"},
      {"tokens", {}, 0, 1 << 20, "tokens T"},
      load_parameter("how the tokens spread over the experts")};
  all.insert(all.end(), more.begin(), more.end());
  all.push_back({"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"});
  return all;
}

std::vector<Axis> permutation_axes(std::vector<std::string> models, std::vector<std::string> tokens,
                                   std::vector<std::string> loads, std::vector<Axis> more) {
  std::vector<Axis> axes = {{"model", std::move(models)},
                            {"divisor", {"64"}},
                            {"tokens", std::move(tokens)},
                            {"load", std::move(loads)}};
  axes.insert(axes.end(), more.begin(), more.end());
  axes.push_back({"seed", {"1"}});
  return axes;
}

void add_permutation(Registry& registry) {
  add_permutation_plans(registry);
  add_permutation_rows(registry);
  add_permutation_gradients(registry);
  add_permutation_refusals(registry);
  add_permutation_repeat(registry);
}

}  // namespace dropless::conformance
