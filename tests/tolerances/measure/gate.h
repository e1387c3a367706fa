// SPDX-License-Identifier: Apache-2.0
// The gate of one bound: legal computations must pass it, every fault of its size class must fail
// it. Both are counted in units of the bound.
//
// A bound that is too tight by more than 1 / honest, or too loose by more than the smallest fault,
// turns the gate red; `factor` makes the bound wrong on purpose, to prove that.
#pragma once

#include <dropless/contract.h>

#include <map>
#include <string>

namespace dropless::tolerances {

class Gate {
 public:
  explicit Gate(std::string bound, double factor = 1) : bound_(std::move(bound)), factor_(factor) {}

  // One result of a legal computation, one of a faulty one. A fault is seen when at least one of
  // its results is outside the rounded interval of `dtype`.
  void legal(const std::string& name, dropless_dtype dtype, double exact, double error, double got);
  void fault(const std::string& name, dropless_dtype dtype, double exact, double error, double got);

  // All legal ones inside, all faults seen, and at least one of each.
  [[nodiscard]] bool passed() const;
  [[nodiscard]] double honest() const { return honest_; }  // largest |got - exact| / E
  [[nodiscard]] const std::string& honest_name() const { return honest_name_; }
  [[nodiscard]] double smallest_fault() const;
  [[nodiscard]] std::string smallest_fault_name() const;
  [[nodiscard]] bool sees(const std::string& fault) const;
  // Results that were judged, legal and faulty ones.
  [[nodiscard]] long elements() const { return legal_results_ + faulty_results_; }
  [[nodiscard]] const std::string& bound() const { return bound_; }
  [[nodiscard]] std::string complaints() const;  // why it did not pass

 private:
  struct Fault {
    bool seen = false;
    double size = 0;  // largest |got - exact| / E (narrow outputs: beyond their own rounding)
  };
  std::string bound_;
  double factor_;
  long legal_results_ = 0, faulty_results_ = 0;
  double honest_ = 0;
  std::string honest_name_, first_rejected_;
  std::map<std::string, Fault> faults_;
};

}  // namespace dropless::tolerances
