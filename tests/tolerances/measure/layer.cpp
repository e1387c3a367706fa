// SPDX-License-Identifier: Apache-2.0
// The bound of a whole layer: fp32 layers in any order, with or without stored intermediates, and
// broken ones.
#include <cstdint>

#include "tests/tolerances/measure/judged_layer.h"
#include "tests/tolerances/measure/proof.h"

namespace dropless::tolerances {
namespace {

using models::LayerFault;
using models::LayerMode;

struct FaultCase {
  const char* name;
  LayerFault fault;
  const char* output;  // where it shows
};

const FaultCase faults[] = {
    {"weights forgotten", LayerFault::weights_forgotten, "y"},
    {"scaling factor on the shared expert", LayerFault::scaling_on_shared, "y"},
    {"shared gate forgotten", LayerFault::shared_gate_forgotten, "y"},
    {"gate and up exchanged", LayerFault::gate_and_up_exchanged, "y"},
    {"a row dropped", LayerFault::row_dropped, "y"},
    {"router gradient forgotten", LayerFault::router_gradient_forgotten, "d_x"},
    {"a token missing in wgrad", LayerFault::wgrad_row_dropped, "down"},
    {"d_up with the slope", LayerFault::derivative_of_gate_only, "gate-up"},
    {"expert output in e4m3", LayerFault::rounded_twice, "y"},
    {"combine in bf16", LayerFault::bf16_combine, "y"},
};

bool applies(const LayerKind& setup, const FaultCase& fault) {
  const bool plain_fp32 = setup.storage == DROPLESS_FP32 && setup.recipe == DROPLESS_RECIPE_PLAIN;
  switch (fault.fault) {
    case LayerFault::gate_and_up_exchanged:
    case LayerFault::derivative_of_gate_only:
      return setup.activation != DROPLESS_RELU2;
    case LayerFault::rounded_twice:
    case LayerFault::bf16_combine:
      return plain_fp32;  // below the roundings that a bf16 layer may make anyway
    case LayerFault::router_gradient_forgotten:
      return setup.recipe == DROPLESS_RECIPE_PLAIN;
    default:
      return true;
  }
}

Gate layer_gate(const LayerKind& setup, double factor) {
  const LayerMode legal[] = {{true, false, LayerFault::none},
                             {true, true, LayerFault::none},
                             {false, false, LayerFault::none},
                             {false, true, LayerFault::none}};
  Gate gate(setup.name, factor);
  for (const std::uint64_t seed : {1, 2, 3}) {
    const JudgedLayer layer(setup, seed);
    for (const LayerMode& mode : legal) {
      const auto got = models::fp32_layer(layer.data, layer.reference.trace, mode);
      layer.each(got, [&](const char* name, const Doubles& exact, const Approximate& bound,
                          const models::Floats& computed) {
        for (std::size_t i = 0; i < exact.size(); ++i) {
          gate.legal(name, DROPLESS_FP32, exact[i], bound.error[i], computed[i]);
        }
      });
    }
    for (const FaultCase& fault : faults) {
      if (!applies(setup, fault)) continue;
      const auto got =
          models::fp32_layer(layer.data, layer.reference.trace, {true, false, fault.fault});
      layer.each(got, [&](const std::string& name, const Doubles& exact, const Approximate& bound,
                          const models::Floats& computed) {
        if (name != fault.output) return;
        for (std::size_t i = 0; i < exact.size(); ++i) {
          gate.fault(fault.name, DROPLESS_FP32, exact[i], bound.error[i], computed[i]);
        }
      });
    }
  }
  return gate;
}

}  // namespace

void add_layer(std::vector<Proof>& proofs) {
  for (const LayerKind& kind : layer_kinds()) {
    const bool plain = kind.storage == DROPLESS_FP32 && kind.recipe == DROPLESS_RECIPE_PLAIN;
    const bool mxfp8 = kind.recipe == DROPLESS_RECIPE_MXFP8;
    proofs.push_back({kind.name, "Layer",
                      plain   ? "combine in bf16"
                      : mxfp8 ? "a row dropped"
                              : "router gradient forgotten",
                      [kind](double factor) { return layer_gate(kind, factor); }, 1.0 / 64,
                      mxfp8 ? 1e5 : 512});
  }
}

}  // namespace dropless::tolerances
