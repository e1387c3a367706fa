// SPDX-License-Identifier: Apache-2.0
// Benchmarks of implementations in device memory: what is timed, and what a time is held against.
//
//     DeviceBench bench(*queue, table, 0);
//     for (const DeviceBenchmark& one : device_benchmarks(table, {})) {
//       if (one.missing.empty()) report(measure(bench, one, {.repetitions = 15}, peer));
//     }
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "conformance/benchmarks/device/bench.h"
#include "conformance/benchmarks/device/peer.h"

namespace dropless::conformance {

// Of a slice of DeepSeek-V3; tests use smaller ones.
struct DeviceSizes {
  Index tokens = 4096, top_k = 8, hidden = 7168, intermediate = 2048;
  Index router_tokens = 32768, experts = 256;
  Index local_experts = 32, even_experts = 8;
  [[nodiscard]] Index rows() const { return tokens * top_k; }
};

// What the project promises on one NVIDIA H200.
enum class MarkKind { none, microseconds_at_most, teraflops_at_least, of_own_bf16, of_peer };
struct Mark {
  MarkKind kind = MarkKind::none;
  double value = 0;
};

struct TimedOutput {
  std::string name;
  DeviceTensor tensor;
  Index least_written;  // elements that must have been written; all of them but for packed scales
};

// One set of buffers. Calls enqueue and return.
struct OperandSet {
  std::function<void()> call;
  std::function<void()> own_bf16;  // the same product of bf16 operands; or empty
  std::vector<TimedOutput> outputs;
};

struct DeviceBenchmark {
  std::string name;       // "permutation.permute"
  std::string what;       // shapes and data
  std::string request;    // to the peer; empty: it has no counterpart
  double bytes = 0;       // that must move at least, read + written
  double flops = 0;       // of the products; 0: none count
  bool of_codes = false;  // products of 8-bit codes, for the floor
  Mark mark = {};
  std::vector<std::string> missing;  // operations that it needs and that are not offered
  bool one_set = false;              // its buffers are many times larger than any cache
  std::function<OperandSet(DeviceBench&)> make_set = {};
};

std::vector<DeviceBenchmark> device_benchmarks(const dropless_implementation& table,
                                               const DeviceSizes& sizes);

struct DeviceOptions {
  int repetitions = 15;           // of which medians are taken
  double minimum_seconds = 2e-3;  // of one repetition
  // Before each repetition of either side: 0 is the steady load of training, under which the chip
  // lowers its clock; pauses give it back.
  double rest_seconds = 0;
  const std::atomic<int>* interrupt = nullptr;
};

struct DeviceResult {
  std::string failed;  // why there is no time
  bool device_lost = false;
  double seconds = 0;           // of one call, median
  double spread = 0;            // (largest - smallest) / median
  double least_seconds = 0;     // of the fastest repetition
  double own_bf16_seconds = 0;  // median; 0: not asked for
  PeerAnswer peer;              // median of its medians
  int sets = 0, calls = 0;      // sets of buffers, calls in one repetition
  bool as_graph = false;
  std::string why_no_graph;
  std::vector<std::string> paths;  // of the code, as it says itself
};

// Times one benchmark. Repetitions take turns with the peer's, and one by one with those of bf16
// operands. Afterwards its outputs are poisoned and it runs once more: what was timed must have
// written them all. Throws nothing; what went wrong is in `failed`.
DeviceResult measure(DeviceBench& bench, const DeviceBenchmark& benchmark,
                     const DeviceOptions& options, Peer* peer);

// Bytes read + written in one second by a copy on the device, median.
double copy_rate(DeviceBench& bench, std::size_t bytes = std::size_t{1} << 30);

// What is wrong with outputs that were poisoned (every byte 0xFF) before the call; empty when every
// element was written with a finite number and floats are not all the same.
std::string implausible(DeviceQueue& queue, const std::vector<TimedOutput>& outputs);

// Added by the files of this folder.
void add_routing(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
                 const DeviceSizes& sizes);
void add_permutation(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
                     const DeviceSizes& sizes);
void add_mxfp8(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
               const DeviceSizes& sizes);
void add_activation(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
                    const DeviceSizes& sizes);
void add_grouped_gemm(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
                      const DeviceSizes& sizes);
void add_layer(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
               const DeviceSizes& sizes);

}  // namespace dropless::conformance
