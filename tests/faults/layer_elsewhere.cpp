// SPDX-License-Identifier: Apache-2.0
// Faults of layers that only a device shows.
#include "tests/faults/layers.h"

namespace dropless::faults {

void add_layer_elsewhere(std::vector<Fault>& faults) {
  const auto add = [&](Visibility visibility, const char* reason, const char* name,
                       const char* provenance, const char* symptom, const char* trigger,
                       std::vector<std::string> clauses = {}) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = trigger,
                      .clauses = std::move(clauses),
                      .visibility = visibility,
                      .reason = reason});
  };
  const auto gpu = [&](auto... texts) {
    add(Visibility::gpu, "streams, graphs or an allocator of a device", texts...);
  };
  gpu("layer.counters_change_during_graph_capture", "Megatron-LM 4433",
      "a loss gap with CUDA graphs", "warm-up and capture passes");
  gpu("layer.output_filled_on_another_stream", "DeepEP 589", "NaN from combine",
      "memory that is filled while a kernel writes it", std::vector<std::string>{"GENERAL-7"});
  gpu("layer.capacity_cleared_in_replay", "Megatron-LM 6999",
      "static capacity is lost after the first replay", "a captured graph");
  gpu("layer.output_reused_across_streams", "Tutel 84", "a data race of overlapped steps",
      "overlap of exchange and compute");
  // Planted where there is a GPU: dropless faults --gpu.
  gpu("layer.routing_frozen_in_replay", "Megatron-LM 6999, its kind",
      "every replay routes like the captured step", "a captured graph with other tokens",
      std::vector<std::string>{"GENERAL-7", "LAYER-1a"});
  gpu("layer.host_reads_the_counts", "Transformer Engine 3229",
      "the host waits in every step, no graphs", "group sizes are read back",
      std::vector<std::string>{"GENERAL-7"});
  gpu("grouped_gemm.accumulator_of_an_empty_contraction", "CUTLASS 2674; pytorch 172439",
      "an expert without tokens gets the gradient of the tile before", "an empty group",
      std::vector<std::string>{"GROUPED_GEMM-5"});
  gpu("permutation.vector_store_past_the_last_row", "numerics: vector stores of 16 bytes",
      "bytes behind the buffer are cleared", "a row that is no multiple of 16 bytes",
      std::vector<std::string>{"GENERAL-0"});
}

}  // namespace dropless::faults
