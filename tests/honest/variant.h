// SPDX-License-Identifier: Apache-2.0
// Honest variants: implementations that differ from the reference in ways that the contract allows.
// No case may fail for them, and none may be mistrusted.
//
//     variants.push_back({"gemm-pairwise", "every product and partial sum in fp32, as a tree",
//                         [](Planted& one) { accumulate_with(one, {...}); }});
//
// `dropless run --implementation honest:gemm-pairwise` runs it. The mechanism is the one that
// plants faults; what is planted here is legal. Values are computed from the clauses, in fp32, and
// never from the bounds (tolerances/).
#pragma once

#include <string>
#include <vector>

#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::honest {

using dropless::TensorView;
using faults::Index;
using faults::Planted;
using faults::Table;

enum class Base { reference, cpu };

struct Variant {
  std::string name;
  std::string difference;  // from the reference under the default profile
  void (*plant)(Planted&) = nullptr;
  Base base = Base::reference;
};

// Throws std::logic_error when a name occurs twice.
const std::vector<Variant>& all_variants();

// One function per kind of difference.
void add_accumulators(std::vector<Variant>& variants);
void add_profiles(std::vector<Variant>& variants);
void add_arithmetic(std::vector<Variant>& variants);
void add_threads(std::vector<Variant>& variants);

}  // namespace dropless::honest
