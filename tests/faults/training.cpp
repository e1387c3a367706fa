// SPDX-License-Identifier: Apache-2.0
// Faults of whole training runs: no built-in implementation offers a training step yet.
#include "tests/faults/planted.h"

namespace dropless::faults {

void add_training(std::vector<Fault>& faults) {
  const auto add = [&](const char* name, const char* provenance, const char* symptom,
                       const char* trigger) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = trigger,
                      .clauses = {},
                      .visibility = Visibility::ranks,
                      .reason = "a training step over several ranks"});
  };
  add("training.same_seed_for_all_experts", "fastmoe 4; Megatron-Bridge 5396",
      "all experts start equal", "one seed for all ranks");
  add("training.overflowed_gradient_enters_the_momentum", "DeepSpeed 8435",
      "a run never trains again after one Inf", "a step that is discarded");
  add("training.auxiliary_loss_tracked_twice", "Megatron-LM 7172; megablocks 113",
      "double entries in the bookkeeping of losses", "recompute");
  add("training.expert_gradients_of_idle_ranks", "Automodel 2995",
      "optimizer state drifts between ranks", "a rank that receives no tokens");
  add("training.graph_capture_and_long_runs", "Megatron-LM 5966, 5749",
      "the gradient norm oscillates, then NaN or a deadlock", "hundreds of captured steps");
  add("training.dense_gradients_averaged_once_more", "pytorch 160285; Megatron-LM 7165",
      "the norm of expert gradients doubles with the number of ranks",
      "expert and data parallelism together");
}

}  // namespace dropless::faults
