// SPDX-License-Identifier: Apache-2.0
// The proof that a bound is tight: legal computations stay below it, and the fault of its size
// class exceeds it.
//
//     for (const Proof& proof : all_proofs()) {
//       const Gate gate = proof.measure(1);   // 1: the bound as it is
//       gate.honest(), gate.smallest_fault(), gate.elements()
//     }
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/tolerances/measure/gate.h"

namespace dropless::tolerances {

struct Proof {
  std::string bound;
  std::string anchor;      // heading of tolerances/derivations.md
  std::string size_class;  // the fault that this heading names and that the bound has to see
  std::function<Gate(double factor)> measure;
  // Factors that make the bound wrong: below the first one legal results are rejected, above the
  // second one a fault is missed. 0: no such factor, see `because`.
  double too_tight = 0, too_loose = 0;
  std::string because = {};
};

// Every bound of tolerances/bounds.h and layer.h, in their order.
std::vector<Proof> all_proofs();

// One function per heading of bounds.h.
void add_gemm(std::vector<Proof>& proofs);
void add_sums(std::vector<Proof>& proofs);
void add_routing(std::vector<Proof>& proofs);
void add_activation(std::vector<Proof>& proofs);
void add_losses(std::vector<Proof>& proofs);
void add_optimizer(std::vector<Proof>& proofs);
void add_layer(std::vector<Proof>& proofs);

}  // namespace dropless::tolerances
