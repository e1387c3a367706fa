// SPDX-License-Identifier: Apache-2.0
// The gate of one bound: legal computations must pass it, every fault of its size class must fail
// it. It counts in units of the bound and prints one line:
//
//     bound                honest max   smallest fault
//     gemm bf16 25-bit     0.56         3.9   split-K with bf16 partials
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
  [[nodiscard]] double smallest_fault() const;
  [[nodiscard]] std::string complaints() const;  // why it did not pass
  void print() const;

 private:
  struct Fault {
    bool seen = false;
    double size = 0;  // largest |got - exact| / E (narrow outputs: beyond their own rounding)
  };
  std::string bound_;
  double factor_;
  long legal_results_ = 0;
  double honest_ = 0;
  std::string honest_name_, first_rejected_;
  std::map<std::string, Fault> faults_;
};

}  // namespace dropless::tolerances
