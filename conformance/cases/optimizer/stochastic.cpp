// SPDX-License-Identifier: Apache-2.0
// Cases of stochastic rounding of bf16 weights: neighbours, three z-tests, seeds.
#include <fmt/format.h>

#include <cmath>

#include "conformance/cases/optimizer/setup.h"
#include "tolerances/float_format.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

// Chance that a right implementation fails one of the three tests: 1.2e-7.
constexpr double z_limit = 5.5;

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

struct Neighbours {
  double low, high;
};

// The bf16 values around x; both x where bf16 holds it.
Neighbours around(double x) {
  const double nearest = tolerances::round_to(DROPLESS_BF16, x);
  if (nearest == x) return {x, x};
  const double gap = tolerances::ulp(DROPLESS_BF16, x);
  return nearest < x ? Neighbours{nearest, nearest + gap} : Neighbours{nearest - gap, nearest};
}

void judge_neighbours(CaseRun& run, const AdamwData& data, const std::vector<double>& got) {
  const ExpectedAdamw expected = expected_adamw(data);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool still = data.gradient[i] == 0;
    const double error = still ? 0 : expected.weight_error[i];
    const double low = around(expected.weight[i] - error).low;
    const double high = around(expected.weight[i] + error).high;
    const bool inside = got[i] >= low && got[i] <= high;
    run.judge().holds("OPTIMIZER-1g", "weight", inside,
                      inside ? "" : fmt::format("{} or {}", low, high),
                      inside ? "" : fmt::format("{}", got[i]), fmt::format("[{}]", i));
  }
}

// Rounding errors in units of the gap: their mean, their relation to the fraction (nearest rounding
// and one random number for all elements show there), and that of neighbours.
void judge_statistics(CaseRun& run, const AdamwData& data, const std::vector<double>& got) {
  const ExpectedAdamw expected = expected_adamw(data);
  double mean = 0, with_fraction = 0, with_previous = 0;
  double mean_variance = 0, fraction_variance = 0, previous_variance = 0;
  double previous = 0, previous_v = 0;
  Index inexact = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (data.gradient[i] == 0) continue;
    const auto [low, high] = around(expected.weight[i]);
    if (low == high) continue;
    const double fraction = (expected.weight[i] - low) / (high - low);
    const double v = fraction * (1 - fraction);
    const double error = (got[i] - expected.weight[i]) / (high - low);
    const double centred = fraction - 0.5;
    mean += error, mean_variance += v;
    with_fraction += error * centred, fraction_variance += v * centred * centred;
    with_previous += error * previous, previous_variance += v * previous_v;
    previous = error, previous_v = v;
    ++inexact;
  }
  run.judge().require(inexact >= 1000, "at least 1000 weights between two bf16 values");
  const auto z_test = [&](const char* what, double sum, double variance) {
    const double z = sum / std::sqrt(variance);
    run.judge().holds("OPTIMIZER-1h", what, std::abs(z) < z_limit, fmt::format("|z| < {}", z_limit),
                      fmt::format("z = {:.2f}", z));
  };
  z_test("mean rounding error", mean, mean_variance);
  z_test("rounding error against the fraction", with_fraction, fraction_variance);
  z_test("rounding errors of neighbours", with_previous, previous_variance);
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
