// SPDX-License-Identifier: Apache-2.0
// Faults of layers, exchange and training that one rank on a CPU cannot show: they wait for the
// cases that can.
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
  const auto ranks = [&](auto... texts) {
    add(Visibility::ranks, "needs the exchange between ranks", texts...);
  };
  const auto training = [&](auto... texts) {
    add(Visibility::ranks, "needs a training step, which no built-in implementation offers yet",
        texts...);
  };
  gpu("layer.counters_change_during_graph_capture", "Megatron-LM 4433",
      "a loss gap with CUDA graphs", "warm-up and capture passes");
  gpu("layer.output_filled_on_another_stream", "DeepEP 589", "NaN from combine",
      "memory that is filled while a kernel writes it");
  gpu("layer.capacity_cleared_in_replay", "Megatron-LM 6999",
      "static capacity is lost after the first replay", "a captured graph");
  gpu("layer.output_reused_across_streams", "Tutel 84", "a data race of overlapped steps",
      "overlap of exchange and compute");
  ranks("exchange.probabilities_gathered_in_bf16", "Megatron-LM 1421", "ranks of a group disagree",
        "weights that are cast for transport");
  ranks("exchange.score_gradient_not_summed", "transformers 48205, part 2",
        "everything upstream has a partial gradient", "two ranks");
  ranks("exchange.gradient_of_gather_is_a_slice", "Automodel 1260", "a loss gap of 14 %",
        "inputs that are gathered");
  ranks("exchange.router_gradient_not_reduced", "torchtitan 2416, 2387, 4054",
        "replicated router weights drift apart", "tokens that are split over ranks");
  ranks("exchange.count_overtakes_payload", "uccl 387, 430, 453",
        "rows are read before they have arrived", "a transport without order");
  ranks("exchange.tail_of_received_ids_stale", "DeepEP 739", "padding rows join an expert's list",
        "a worst-case buffer");
  ranks("exchange.scan_of_128_ranks", "TRT-LLM 18799", "hang after the first exchange",
        "more than 128 ranks");
  ranks("exchange.stale_flags_of_another_shape", "TRT-LLM 6141", "stale flags",
        "alternating shapes on one buffer");
  ranks("exchange.rows_by_order_of_arrival", "vllm-ascend 10335",
        "wrong source rows after the first peer", "three senders with different counts");
  ranks("exchange.one_buffer_for_dispatch_and_combine", "mori 80",
        "dispatch results are overwritten", "a rank that is late");
  ranks("exchange.ids_of_the_receiver_in_combine", "mori 475, 546",
        "0.4 to 2 % of the tokens are wrong", "two nodes");
  ranks("exchange.signals_without_a_generation", "NCCL 2303, 2306; nccl-extensions 6",
        "a stale value looks fresh", "equal counts in consecutive calls");
  ranks("exchange.workspace_of_the_process", "TRT-LLM 15168", "later exchanges hang",
        "two layers on one counter");
  ranks("exchange.buffer_from_own_count", "ATOM 2176", "write fault",
        "ranks with different numbers of tokens");
  ranks("exchange.rank_without_tokens", "uccl 898; DeepEP 447", "failure",
        "a rank that receives nothing");
  ranks("exchange.capacity_decided_locally", "DeepSpeed 6809", "hang", "unequal loads");
  ranks("exchange.replica_chosen_by_rank", "sglang 32962", "an expert is summed several times",
        "replicated experts");
  ranks("exchange.experts_not_divisible", "vllm-ascend 16384; DeepSpeed 7551",
        "experts without an owner", "experts that ranks don't divide");
  ranks("exchange.overflow_flag_misread", "Megatron-LM 7133",
        "overflow is reported every step, or never", "a handle with one more field");
  ranks("exchange.expert_rank_from_a_modulo", "NeMo Speech 8713", "wrong expert rank",
        "tensor parallelism");
  ranks("exchange.different_numbers_of_batches", "Model-Optimizer 1966", "deadlock",
        "ranks with different numbers of batches");
  training("training.same_seed_for_all_experts", "fastmoe 4; Megatron-Bridge 5396",
           "all experts start equal", "one seed for all ranks");
  training("training.overflowed_gradient_enters_the_momentum", "DeepSpeed 8435",
           "a run never trains again after one Inf", "a step that is discarded");
  training("training.auxiliary_loss_tracked_twice", "Megatron-LM 7172; megablocks 113",
           "double entries in the bookkeeping of losses", "recompute");
}

}  // namespace dropless::faults
