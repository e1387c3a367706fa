// SPDX-License-Identifier: Apache-2.0
// One AdamW step from known state, and its expectation.
#include "conformance/cases/optimizer/setup.h"

#include <algorithm>
#include <cmath>

#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

bool exact_in_fp32(double x) {
  return tolerances::round_to(DROPLESS_FP32, x) == x;
}

bool is_power_of_two(double x) {
  int exponent = 0;
  return std::frexp(x, &exponent) == 0.5;
}

// A moment is judged within 2 ulp, plus one for each constant that fp32 has to round first and for
// the scaled gradient (twice in its square): OPTIMIZER-1a, 1b.
double moment_error(const AdamwData& data, double beta, int power, double moment, double gauge) {
  double ulps = 2;
  if (!exact_in_fp32(beta) || !is_power_of_two(1 - beta)) ulps += 1;
  if (!is_power_of_two(data.settings.gradient_scale)) ulps += power;
  return tolerances::adamw_moment(moment, gauge) * ulps / 2;
}

}  // namespace

std::vector<double> random_gradient(Index size, dropless_dtype dtype, Random& random) {
  std::vector<double> gradient;
  for (Index i = 0; i < size; ++i) {
    const double magnitude = std::pow(10.0, -9 * random.uniform() * random.uniform());
    const double g = i % 17 == 5 ? 0 : magnitude * random.normal();
    gradient.push_back(tolerances::round_to(dtype, g));
  }
  return gradient;
}

AdamwData adamw_data(Index size, dropless_dtype gradient_dtype, dropless_dtype weight_dtype,
                     dropless_dtype moment_dtype, Random& random) {
  AdamwData data;
  data.settings.learning_rate = 0x1p-7;
  data.settings.beta1 = 0.875;
  data.settings.beta2 = 1 - 0x1p-6;
  data.settings.eps = 1e-8;
  data.settings.weight_decay = 0.125;
  data.gradient_dtype = gradient_dtype;
  data.weight_dtype = weight_dtype;
  data.moment_dtype = moment_dtype;
  data.gradient = random_gradient(size, gradient_dtype, random);
  data.first_moment.assign(at(size), 0);
  data.second_moment.assign(at(size), 0);
  for (Index i = 0; i < size; ++i) {
    const double magnitude = std::exp2(2 * random.uniform() - 1);
    data.weight.push_back(
        tolerances::round_to(weight_dtype, random.chance(0.5) ? magnitude : -magnitude));
  }
  return data;
}

const dropless_tensor* AdamwCall::tensor_of(const Buffer& buffer) {
  if (buffer.shape().size() == 1) return buffer.tensor();
  dropless_tensor column = *buffer.tensor();
  column.rank = 1, column.shape[1] = column.strides[1] = 0;
  return &columns_.emplace_back(column);
}

AdamwCall::AdamwCall(CaseRun& run, const AdamwData& data, const std::string& prefix,
                     const Layout& layout)
    : args(make_args<dropless_adamw_args>()), run_(run) {
  Buffers& buffers = run.buffers();
  const Shape shape = layout.row_gap > 0 ? Shape{data.size(), 1} : Shape{data.size()};
  args.learning_rate = data.settings.learning_rate;
  args.beta1 = data.settings.beta1;
  args.beta2 = data.settings.beta2;
  args.eps = data.settings.eps;
  args.weight_decay = data.settings.weight_decay;
  args.gradient_scale = data.scale_in_tensor ? 7 : data.settings.gradient_scale;
  args.step = data.settings.step;
  args.seed = data.seed;
  args.weight_rounding = data.rounding;
  args.gradient = tensor_of(
      buffers.input(prefix + "gradient", data.gradient_dtype, shape, data.gradient, layout));
  first_moment =
      &buffers.in_out(prefix + "first_moment", data.moment_dtype, shape, data.first_moment, layout);
  second_moment =
      &buffers.in_out(prefix + "second_moment", DROPLESS_FP32, shape, data.second_moment, layout);
  if (data.has_master) {
    master = &buffers.in_out(prefix + "master", DROPLESS_FP32, shape, data.weight, layout);
    weight = &buffers.output(prefix + "weight", data.weight_dtype, shape, layout);
    args.master = tensor_of(*master);
  } else {
    weight = &buffers.in_out(prefix + "weight", data.weight_dtype, shape, data.weight, layout);
  }
  args.first_moment = tensor_of(*first_moment);
  args.second_moment = tensor_of(*second_moment);
  args.weight = tensor_of(*weight);
  if (data.scale_in_tensor) {
    const std::vector<double> scale = {data.settings.gradient_scale};
    args.gradient_scale_tensor =
        buffers.input(prefix + "gradient_scale", DROPLESS_FP32, {1}, scale).tensor();
  }
}

void AdamwCall::perform(int threads, std::string_view clause) {
  const auto entry = run_.implementation().adamw;
  if (threads > 0) {
    run_.perform_with_threads(threads, "adamw", entry, args);
  } else {
    run_.perform("adamw", entry, args, clause);
  }
}

ExpectedAdamw expected_adamw(const AdamwData& data) {
  const reference::AdamwSettings& s = data.settings;
  const double c1 = 1 - std::pow(s.beta1, static_cast<double>(s.step));
  const double c2 = 1 - std::pow(s.beta2, static_cast<double>(s.step));
  ExpectedAdamw out;
  for (std::size_t i = 0; i < data.gradient.size(); ++i) {
    const reference::AdamwElement element = reference::adamw(
        s, data.gradient[i], data.first_moment[i], data.second_moment[i], data.weight[i]);
    // Where old and new part of the first moment cancel, its ulp and that of the update are those
    // of the parts.
    const double gauge = std::abs(s.beta1 * data.first_moment[i]) +
                         std::abs((1 - s.beta1) * s.gradient_scale * data.gradient[i]);
    const double divisor = std::sqrt(element.second_moment / c2) + s.eps;
    const double update_gauge =
        s.learning_rate * (gauge / c1 / divisor + std::abs(s.weight_decay * data.weight[i]));
    out.first_moment.push_back(element.first_moment);
    out.first_error.push_back(moment_error(data, s.beta1, 1, element.first_moment, gauge));
    out.second_moment.push_back(element.second_moment);
    out.second_error.push_back(moment_error(data, s.beta2, 2, element.second_moment, 0));
    out.weight.push_back(element.weight);
    out.weight_error.push_back(
        tolerances::adamw_weight(element.weight, element.update, update_gauge));
  }
  return out;
}

void judge_adamw(CaseRun& run, const AdamwData& data, const AdamwCall& call) {
  Judge& judge = run.judge();
  const ExpectedAdamw expected = expected_adamw(data);
  const bool scaled = data.settings.gradient_scale != 1;
  judge.bounded(data.moment_dtype == DROPLESS_BF16 ? "OPTIMIZER-1f"
                : scaled                           ? "OPTIMIZER-1j"
                                                   : "OPTIMIZER-1a",
                "first_moment", *call.first_moment, expected.first_moment, expected.first_error);
  judge.bounded(scaled ? "OPTIMIZER-1j" : "OPTIMIZER-1b", "second_moment", *call.second_moment,
                expected.second_moment, expected.second_error);
  const std::string clause = data.moment_dtype == DROPLESS_BF16 ? "OPTIMIZER-1f" : "OPTIMIZER-1c";
  if (!data.has_master) {
    judge.bounded(data.weight_dtype == DROPLESS_BF16 && data.moment_dtype == DROPLESS_FP32
                      ? "OPTIMIZER-1d"
                      : clause,
                  "weight", *call.weight, expected.weight, expected.weight_error);
    return;
  }
  judge.bounded(clause, "master", *call.master, expected.weight, expected.weight_error);
  std::vector<double> rounded = call.master->values();
  for (double& p : rounded) p = tolerances::round_to(data.weight_dtype, p);
  judge.exact("OPTIMIZER-1e", "weight against the new master", *call.weight, rounded);
}

}  // namespace dropless::conformance
