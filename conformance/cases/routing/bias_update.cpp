// SPDX-License-Identifier: Apache-2.0
// Cases of the expert-bias update.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "conformance/cases/loads.h"
#include "conformance/cases/routing/setup.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// Counts [n,E] as one row per micro-batch.
std::vector<Index> counts_of_kind(std::string_view kind, Index rows, Index experts,
                                  Random& random) {
  std::vector<Index> counts;
  for (Index i = 0; i < rows; ++i) {
    std::vector<Index> row(at(experts));
    if (kind == "zipf" || kind == "one_hot") {
      row = rows_per_expert(kind, experts, 64 * experts, random);
    } else {
      // A mean that bf16, or fp32, cannot tell from its neighbours; pairs above and below it, and
      // every third expert exactly on it.
      const Index mean = kind == "large" ? (Index{1} << 40) + 1 : 256;
      std::fill(row.begin(), row.end(), mean);
      for (Index e = 0; e + 1 < experts; e += 3) row[at(e)] += 1, row[at(e + 1)] -= 1;
    }
    counts.insert(counts.end(), row.begin(), row.end());
  }
  return counts;
}

// Loads of few experts can add up to the same for all of them: then no bias moves.
bool add_up_to_the_same(const std::vector<Index>& counts, Index experts) {
  std::vector<Index> sums(at(experts), 0);
  for (std::size_t i = 0; i < counts.size(); ++i) sums[i % at(experts)] += counts[i];
  return std::all_of(sums.begin(), sums.end(), [&](Index sum) { return sum == sums[0]; });
}

void run_bias_update(CaseRun& run) {
  Random random = run.random("data");
  const Index experts = run.integer("experts"), rows = run.integer("rows");
  const std::string& kind = run.word("counts");
  const double rate = run.word("rate") == "dyadic" ? 0x1p-10 : 0.001;
  std::vector<Index> counts = counts_of_kind(kind, rows, experts, random);
  for (int attempt = 0; attempt < 40 && add_up_to_the_same(counts, experts); ++attempt) {
    counts = counts_of_kind(kind, rows, experts, random);
  }
  std::vector<float> bias;
  std::vector<double> start;
  for (Index e = 0; e < experts; ++e) {
    bias.push_back(static_cast<float>(0.125 * random.normal()));
    start.push_back(bias.back());
  }
  const std::vector<float> expected = reference::bias_update(rate, experts, counts, bias);
  Index risen = 0, fallen = 0, kept = 0;
  for (std::size_t e = 0; e < at(experts); ++e) {
    risen += expected[e] > bias[e], fallen += expected[e] < bias[e], kept += expected[e] == bias[e];
  }
  run.judge().require(risen > 0 && fallen > 0, "biases that rise and biases that fall");
  run.judge().require(kind == "zipf" || kind == "one_hot" || kept > 0, "experts at the mean");

  Buffer& updated = run.buffers().in_out("expert_bias", DROPLESS_FP32, {experts}, start);
  auto args = make_args<dropless_bias_update_args>();
  args.rate = rate;
  args.counts = run.buffers().input("counts", DROPLESS_I64, {rows, experts}, counts).tensor();
  args.expert_bias = updated.tensor();
  run.perform("bias_update", run.implementation().bias_update, args);

  const std::vector<double> values(expected.begin(), expected.end());
  const char* clause =
      rows > 1 || kind == "large" || kind == "near" ? "ROUTING-16b" : "ROUTING-16a";
  if (rate == 0x1p-10) {
    run.judge().exact(clause, "expert_bias", updated, values);
  } else {  // the rate may have been rounded to fp32 first
    std::vector<double> exact;
    for (std::size_t e = 0; e < values.size(); ++e) {
      const double step = values[e] > start[e] ? rate : values[e] < start[e] ? -rate : 0;
      exact.push_back(start[e] + step);
    }
    run.judge().bounded(clause, "expert_bias", updated, exact, std::vector{rate * 0x1p-24});
  }
  Judged unmoved(values.size());
  for (std::size_t e = 0; e < values.size(); ++e) unmoved[e] = values[e] == start[e];
  run.judge().exact("ROUTING-16a", "expert_bias of experts at the mean", updated, start, unmoved);
}

Family bias_update_family() {
  Family family;
  family.name = "routing.bias_update";
  family.purpose =
      "The expert bias moves against the load by exactly one step: idle experts rise, experts at "
      "the mean stay, and counts are compared as integers";
  family.clauses = {"ROUTING-16a", "ROUTING-16b"};
  family.parameters = {
      word_parameter("counts", {"zipf", "one_hot", "near", "large"},
                     "load; near and large: one above, one below and one at the mean"),
      integer_parameter("experts", 3, 1024, "experts"),
      integer_parameter("rows", 1, 64, "micro-batches or ranks"),
      word_parameter("rate", {"dyadic", "decimal"}, "2^-10 or 0.001")};
  const auto one = [](const char* counts, const char* experts, const char* rows, const char* rate) {
    return Values{{"counts", counts}, {"experts", experts}, {"rows", rows}, {"rate", rate}};
  };
  family.select = tiers({one("zipf", "61", "1", "dyadic"), one("near", "9", "1", "dyadic")},
                        {one("one_hot", "16", "1", "dyadic"), one("large", "33", "3", "dyadic"),
                         one("zipf", "256", "4", "decimal"), one("near", "128", "5", "decimal")});
  family.run = run_bias_update;
  return family;
}

// ---- routing.bias_update_empty

// No rows of counts: every expert is at the mean of nothing, and none moves.
void run_bias_update_empty(CaseRun& run) {
  const std::vector<double> start = {0.5, -0.25, 1, 0};
  const std::vector<Index> none;
  Buffer& bias = run.buffers().in_out("expert_bias", DROPLESS_FP32, {4}, start);
  auto args = make_args<dropless_bias_update_args>();
  args.rate = 0.5;
  args.counts = run.buffers().input("counts", DROPLESS_I64, {0, 4}, none).tensor();
  args.expert_bias = bias.tensor();
  run.perform("bias_update", run.implementation().bias_update, args, "GENERAL-4");
  run.judge().exact("GENERAL-4", "expert_bias", bias, start);
}

Family bias_update_empty_family() {
  Family family;
  family.name = "routing.bias_update_empty";
  family.purpose = "Without any counts the expert bias stays as it was";
  family.clauses = {"GENERAL-4"};
  family.select = tiers({}, {Values{}});
  family.run = run_bias_update_empty;
  return family;
}

}  // namespace

void add_routing_bias_update(Registry& registry) {
  registry.add(bias_update_family());
  registry.add(bias_update_empty_family());
}

}  // namespace dropless::conformance
