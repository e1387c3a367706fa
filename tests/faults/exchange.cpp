// SPDX-License-Identifier: Apache-2.0
// Faults of dispatch and combine, planted by topic; and those that need a device, a fabric or more
// than an exchange.
#include "tests/faults/exchanges.h"

namespace dropless::faults {

void add_exchange(std::vector<Fault>& faults) {
  add_exchange_plans(faults);
  add_exchange_overflows(faults);
  add_exchange_rows(faults);
  add_exchange_sums(faults);
  add_exchange_handles(faults);
  add_exchange_later(faults);
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
  const auto elsewhere = [&](const char* reason, auto... texts) {
    add(Visibility::ranks, reason, texts...);
  };
  const auto fabric = [&](auto... texts) {
    add(Visibility::ranks, "devices and a fabric between them: ordering of memory and signals",
        texts...);
  };
  elsewhere("the router's gradient is reduced outside the exchange: a layer over ranks",
            "exchange.router_gradient_not_reduced", "torchtitan 2416, 2387, 4054",
            "replicated router weights drift apart", "tokens that are split over ranks");
  elsewhere("the caller's mistake; what an exchange owes it is EXCHANGE-14a",
            "exchange.different_numbers_of_batches", "Model-Optimizer 1966", "deadlock",
            "ranks with different numbers of batches");
  elsewhere("moving weights between ranks is no operation of the contract",
            "exchange.weights_moved_before_they_are_copied", "vllm 32881",
            "layer weights are overwritten", "rebalancing with a slow copy");
  elsewhere("a choice of a training framework, before any exchange is opened",
            "exchange.data_dependent_dispatcher", "Automodel 2676",
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
