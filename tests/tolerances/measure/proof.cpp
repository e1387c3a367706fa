// SPDX-License-Identifier: Apache-2.0
// The list of proofs.
#include "tests/tolerances/measure/proof.h"

namespace dropless::tolerances {

std::vector<Proof> all_proofs() {
  std::vector<Proof> proofs;
  add_gemm(proofs);
  add_sums(proofs);
  add_routing(proofs);
  add_activation(proofs);
  add_losses(proofs);
  add_optimizer(proofs);
  add_layer(proofs);
  return proofs;
}

}  // namespace dropless::tolerances
