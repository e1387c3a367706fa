// SPDX-License-Identifier: Apache-2.0
// Faults of dispatch and combine. They need several ranks: the reference offers no exchange to
// plant them into yet, and the last of them need a device or a fabric as well.
#include "tests/faults/planted.h"

namespace dropless::faults {

void add_exchange(std::vector<Fault>& faults) {
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
  const auto ranks = [&](auto... texts) {
    add(Visibility::ranks, "ranks that exchange; threads or processes of a CPU are enough",
        texts...);
  };
  const auto fabric = [&](auto... texts) {
    add(Visibility::ranks, "devices and a fabric between them: ordering of memory and signals",
        texts...);
  };
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
  ranks("exchange.global_expert_count_on_local_weights", "sglang 29055", "wrong results or a crash",
        "local experts that are no multiple of 16, with empty slots");
  ranks("exchange.two_received_tokens", "DeepEP 602", "a corner case of the received count fails",
        "exactly two permuted tokens");
  ranks("exchange.counts_with_the_stride_of_the_grid", "pplx-kernels 25",
        "counts are exchanged with a wrong stride", "many local experts");
  ranks("exchange.baseline_read_after_the_put", "rocm-systems 11142",
        "the value that is waited for is there already, or never comes",
        "a rank whose other blocks are late");
  ranks("exchange.weights_moved_before_they_are_copied", "vllm 32881",
        "layer weights are overwritten", "rebalancing with a slow copy");
  ranks("exchange.only_the_sender_sees_a_mismatch", "rocm-systems 8228",
        "one rank leaves before the final barrier", "counts that do not fit each other");
  ranks("exchange.one_event_for_several_combines", "prime-rl 3411",
        "only the last of several combines is awaited", "combines in flight");
  ranks("exchange.pointer_table_of_32_ranks", "openxla 47283", "illegal address",
        "more than 32 ranks");
  ranks("exchange.data_dependent_dispatcher", "Automodel 2676",
        "the loss of the first step depends on the number of ranks", "EP 16 and EP 32");
  fabric("exchange.producers_of_one_queue", "mori 428; DeepEP 181", "lost work requests, timeouts",
         "several producers on one queue pair");
  fabric("exchange.barrier_without_a_store_drain", "mori 522", "stale counts and tokens",
         "a barrier that orders waves, not stores");
  fabric("exchange.idle_warps_hold_the_ring", "DeepEP 317", "hang once the ring is full",
         "chunks smaller than the warps of a forwarder");
  fabric("exchange.zero_bytes_between_two_ranks", "NCCL 695, 696, 345", "hang",
         "sends of zero bytes");
  fabric("exchange.signal_on_another_queue", "rocm-systems 11021, 9808",
         "the barrier opens before the payload is there", "a signal without a payload");
  fabric("exchange.cast_between_nodes_accepted", "mori 625", "half of the elements are wrong",
         "an fp8 cast that the path between nodes does not have");
  fabric("exchange.cumulative_signal", "NVSHMEM 84", "half of the data is missing",
         "several chunks on one signal");
  fabric("exchange.fence_before_the_refill", "DeepEP 621; nccl-extensions 8",
         "some combined rows are wrong, at random",
         "one rank sends, two experts on a rank, many rounds");
  fabric("exchange.zero_copy_ragged_exchange", "marin 8077", "NaN gradients with a finite loss",
         "EP 8 and the direct write path");
  add(Visibility::gpu, "a kernel with a fixed buffer", "exchange.staging_of_fixed_size",
      "DeepEP 723", "illegal instruction", "a hidden size of 8192");
}

}  // namespace dropless::faults
