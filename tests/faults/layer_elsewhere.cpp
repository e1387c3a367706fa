// SPDX-License-Identifier: Apache-2.0
// Faults of layers that only a device shows.
#include "tests/faults/layers.h"

namespace dropless::faults {

void add_layer_elsewhere(std::vector<Fault>& faults) {
  const auto add = [&](Visibility visibility, const char* reason, const char* name,
                       const char* provenance, const char* symptom, const char* trigger) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = trigger,
                      .clauses = {},
                      .visibility = visibility,
                      .reason = reason});
  };
  const auto gpu = [&](auto... texts) {
    add(Visibility::gpu, "streams, graphs or an allocator of a device", texts...);
  };
  gpu("layer.counters_change_during_graph_capture", "Megatron-LM 4433",
      "a loss gap with CUDA graphs", "warm-up and capture passes");
  gpu("layer.output_filled_on_another_stream", "DeepEP 589", "NaN from combine",
      "memory that is filled while a kernel writes it");
  gpu("layer.capacity_cleared_in_replay", "Megatron-LM 6999",
      "static capacity is lost after the first replay", "a captured graph");
  gpu("layer.output_reused_across_streams", "Tutel 84", "a data race of overlapped steps",
      "overlap of exchange and compute");
}

}  // namespace dropless::faults
