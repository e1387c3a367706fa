// SPDX-License-Identifier: Apache-2.0
// The exact grouped GEMM.
#include "tests/oracles/exact_gemm.h"

#include <cmath>
#include <sstream>

#include "tests/oracles/exact_sum.h"

namespace dropless::oracles {
namespace {

using reference::Index;

double at(const reference::Doubles& values, Index index) {
  return values.at(static_cast<std::size_t>(index));
}

// One output element: its exact value and the exact sum of the magnitudes of its terms.
struct Element {
  ExactSum value, gauge;
  Index terms = 0;

  void add(double alpha, double a, double b) {
    value.add_product(alpha, a, b);
    gauge.add_product(std::fabs(alpha), std::fabs(a), std::fabs(b));
    ++terms;
  }
};

// (terms + 4) * 2^-53 * gauge covers a sum of double products in any order, the factor alpha and
// the addend; 2^-1074 covers results that are subnormal in double.
std::string compare(const GemmProblem& problem, const Element& element, double got, double gauge,
                    const char* what, Index index) {
  ExactSum error = element.value;
  error.add(-got);
  ExactSum gauge_error = element.gauge;
  gauge_error.add(-gauge);
  const long double unit = std::ldexp(static_cast<long double>(element.terms + 4), -53);
  const long double allowed = problem.exact_in_double ? 0 : unit * element.gauge.approximate();
  const bool value_right =
      problem.exact_in_double ? error.is_zero() : std::fabs(error.approximate()) <= allowed;
  const bool gauge_right =
      std::fabs(gauge_error.approximate()) <= unit * element.gauge.approximate();
  if (value_right && gauge_right) return "";
  std::ostringstream text;
  text << what << " element " << index << ": " << (value_right ? "gauge" : "value") << " got "
       << std::hexfloat << (value_right ? gauge : got) << ", exact "
       << (value_right ? element.gauge : element.value).approximate() << ", terms " << std::dec
       << element.terms;
  return text.str();
}

// Expert of a real row, -1 for padding and for rows beyond the last zone.
Index expert_of(const GemmProblem& problem, Index row) {
  for (Index e = 0; e < problem.shape.num_experts; ++e) {
    const Index first = problem.offsets.at(static_cast<std::size_t>(e));
    const Index zone = problem.offsets.at(static_cast<std::size_t>(e + 1)) - first;
    const Index real =
        problem.counts.empty() ? zone : problem.counts.at(static_cast<std::size_t>(e));
    if (row >= first && row < first + real) return e;
  }
  return -1;
}

std::string check_size(const reference::Gauged& got, Index expected) {
  const auto size = static_cast<std::size_t>(expected);
  if (got.value.size() == size && got.gauge.size() == size) return "";
  return "wrong number of elements";
}

}  // namespace

std::string check_fprop(const GemmProblem& problem, const reference::Gauged& got) {
  const auto [experts, out, in, rows] = problem.shape;
  if (auto wrong = check_size(got, rows * out); !wrong.empty()) return wrong;
  for (Index row = 0; row < rows; ++row) {
    const Index e = expert_of(problem, row);
    for (Index o = 0; o < out; ++o) {
      Element element;
      for (Index i = 0; e >= 0 && i < in; ++i) {
        element.add(problem.alpha, at(problem.a, row * in + i),
                    at(problem.b, (e * out + o) * in + i));
      }
      if (e >= 0 && !problem.addend.empty()) element.add(1, 1, at(problem.addend, e * out + o));
      const Index index = row * out + o;
      auto wrong =
          compare(problem, element, at(got.value, index), at(got.gauge, index), "fprop", index);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

std::string check_dgrad(const GemmProblem& problem, const reference::Gauged& got) {
  const auto [experts, out, in, rows] = problem.shape;
  if (auto wrong = check_size(got, rows * in); !wrong.empty()) return wrong;
  for (Index row = 0; row < rows; ++row) {
    const Index e = expert_of(problem, row);
    for (Index i = 0; i < in; ++i) {
      Element element;
      for (Index o = 0; e >= 0 && o < out; ++o) {
        element.add(problem.alpha, at(problem.a, row * out + o),
                    at(problem.b, (e * out + o) * in + i));
      }
      const Index index = row * in + i;
      auto wrong =
          compare(problem, element, at(got.value, index), at(got.gauge, index), "dgrad", index);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

std::string check_wgrad(const GemmProblem& problem, const reference::Gauged& got) {
  const auto [experts, out, in, rows] = problem.shape;
  if (auto wrong = check_size(got, experts * out * in); !wrong.empty()) return wrong;
  for (Index index = 0; index < experts * out * in; ++index) {
    const Index i = index % in;
    const Index o = index / in % out;
    Element element;
    for (Index row = 0; row < rows; ++row) {
      if (expert_of(problem, row) != index / in / out) continue;
      element.add(problem.alpha, at(problem.a, row * out + o), at(problem.b, row * in + i));
    }
    if (problem.beta != 0) element.add(problem.beta, 1, at(problem.addend, index));
    auto wrong =
        compare(problem, element, at(got.value, index), at(got.gauge, index), "wgrad", index);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace dropless::oracles
