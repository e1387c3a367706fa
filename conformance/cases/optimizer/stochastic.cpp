// SPDX-License-Identifier: Apache-2.0
// Cases of stochastic rounding of bf16 weights: neighbours, three z-tests, seeds.
#include <fmt/format.h>

#include <cmath>

#include "conformance/cases/optimizer/setup.h"
#include "conformance/judge/rounding_statistics.h"

namespace dropless::conformance {
namespace {

AdamwData stochastic_data(CaseRun& run) {
  Random random = run.random("data");
  AdamwData data = adamw_data(run.integer("elements"), DROPLESS_FP32, DROPLESS_BF16,
                              run.word("moment") == "bf16" ? DROPLESS_BF16 : DROPLESS_FP32, random);
  data.settings.weight_decay = 0;  // so that a zero gradient leaves the weight where it is
  data.settings.learning_rate = 0.011;
  data.settings.eps = 1e-3;  // updates of all sizes below the learning rate
  data.rounding = DROPLESS_ROUND_STOCHASTIC;
  data.seed = static_cast<std::uint64_t>(run.integer("seed"));
  return data;
}

void judge_neighbours(CaseRun& run, const AdamwData& data, const std::vector<double>& got) {
  const ExpectedAdamw expected = expected_adamw(data);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool still = data.gradient[i] == 0;
    const double error = still ? 0 : expected.weight_error[i];
    const double low = bf16_neighbours(expected.weight[i] - error).low;
    const double high = bf16_neighbours(expected.weight[i] + error).high;
    const bool inside = got[i] >= low && got[i] <= high;
    run.judge().holds("OPTIMIZER-1g", "weight", inside,
                      inside ? "" : fmt::format("{} or {}", low, high),
                      inside ? "" : fmt::format("{}", got[i]), fmt::format("[{}]", i));
  }
}

void judge_statistics(CaseRun& run, const AdamwData& data, const std::vector<double>& got) {
  std::vector<bool> moves;
  for (const double gradient : data.gradient) moves.push_back(gradient != 0);
  const RoundingTests found = rounding_tests(expected_adamw(data).weight, got, moves);
  run.judge().require(found.inexact >= 1000, "at least 1000 weights between two bf16 values");
  for (const RoundingTest& test : found.tests) {
    run.judge().holds("OPTIMIZER-1h", test.what, std::abs(test.z) < rounding_z_limit,
                      fmt::format("|z| < {}", rounding_z_limit), fmt::format("z = {:.2f}", test.z));
  }
}

void run_stochastic(CaseRun& run) {
  const AdamwData data = stochastic_data(run);
  AdamwCall call(run, data);
  call.perform();
  const std::vector<double> got = call.weight->values();
  judge_neighbours(run, data, got);
  judge_statistics(run, data, got);

  AdamwCall again(run, data, "again ");
  again.perform();
  run.judge().same_bytes("OPTIMIZER-1i", "weight with the same seed", *again.weight,
                         call.weight->bytes());
  AdamwData reseeded = data;
  reseeded.seed += 1;
  AdamwCall other(run, reseeded, "other ");
  other.perform();
  Index different = 0;
  const std::vector<double> other_got = other.weight->values();
  for (std::size_t i = 0; i < got.size(); ++i) different += other_got[i] != got[i];
  run.judge().holds("OPTIMIZER-1i", "weight with another seed", different > data.size() / 16,
                    "other bits in many elements",
                    fmt::format("{} of {} differ", different, data.size()));
}

Family stochastic_family() {
  Family family;
  family.name = "optimizer.stochastic";
  family.purpose =
      "Stochastic rounding of bf16 weights gives neighbours, is unbiased and independent by three "
      "z-tests, and depends on the seed alone";
  family.clauses = {"OPTIMIZER-1g", "OPTIMIZER-1h", "OPTIMIZER-1i"};
  family.parameters = {word_parameter("moment", {"fp32", "bf16"}, "storage of the first moment"),
                       integer_parameter("elements", 2048, 1 << 20, "parameters"),
                       integer_parameter("seed", 0, 1 << 30, "seed of the rounding")};
  const auto one = [](const char* moment, const char* elements, const char* seed) {
    return Values{{"moment", moment}, {"elements", elements}, {"seed", seed}};
  };
  family.select = tiers({one("fp32", "4096", "1")},
                        {one("bf16", "8192", "0"), one("fp32", "4097", "123456789")});
  family.run = run_stochastic;
  return family;
}

}  // namespace

void add_optimizer_stochastic(Registry& registry) {
  registry.add(stochastic_family());
}

}  // namespace dropless::conformance
