// SPDX-License-Identifier: Apache-2.0
// The gate of one bound.
#include "tests/tolerances/measure/gate.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "tolerances/interval.h"

namespace dropless::tolerances {

namespace {
double in_bounds(double exact, double error, double got) {
  const double distance = std::abs(got - exact);
  return distance == 0 ? 0 : distance / error;
}
}  // namespace

void Gate::legal(const std::string& name, dropless_dtype dtype, double exact, double error,
                 double got) {
  ++legal_results_;
  error *= factor_;
  if (!contains(rounded_interval(dtype, exact, error), got) && first_rejected_.empty()) {
    char text[200];
    std::snprintf(text, sizeof text, "%s: exact %.9g, got %.9g, bound %.3g", name.c_str(), exact,
                  got, error);
    first_rejected_ = text;
  }
  if (dtype != DROPLESS_FP32) return;  // the distance would be that of the output rounding
  const double size = in_bounds(exact, error, got);
  if (size > honest_ && std::isfinite(size)) {
    honest_ = size;
    honest_name_ = name;
  }
}

void Gate::fault(const std::string& name, dropless_dtype dtype, double exact, double error,
                 double got) {
  ++faulty_results_;
  Fault& fault = faults_[name];
  error *= factor_;
  const Interval interval = rounded_interval(dtype, exact, error);
  fault.seen = fault.seen || !contains(interval, got);
  const double size = dtype == DROPLESS_FP32    ? in_bounds(exact, error, got)
                      : contains(interval, got) ? 0
                                                : 1 + excess(interval, got, error);
  if (!(size <= fault.size)) fault.size = size;
}

bool Gate::passed() const {
  return complaints().empty();
}

double Gate::smallest_fault() const {
  double smallest = std::numeric_limits<double>::infinity();
  for (const auto& [name, fault] : faults_) smallest = std::min(smallest, fault.size);
  return smallest;
}

std::string Gate::smallest_fault_name() const {
  for (const auto& [name, fault] : faults_) {
    if (fault.size == smallest_fault()) return name;
  }
  return "";
}

bool Gate::sees(const std::string& fault) const {
  const auto found = faults_.find(fault);
  return found != faults_.end() && found->second.seen;
}

std::string Gate::complaints() const {
  std::string all;
  if (legal_results_ == 0) all += "no legal result; ";
  if (faults_.empty()) all += "no fault; ";
  if (!first_rejected_.empty()) all += "rejects a legal result, " + first_rejected_ + "; ";
  for (const auto& [name, fault] : faults_) {
    if (!fault.seen) all += "does not see: " + name + " (" + std::to_string(fault.size) + "); ";
  }
  return all;
}

}  // namespace dropless::tolerances
