// SPDX-License-Identifier: Apache-2.0
// Comparisons of `dropless bench`: an operation and a peer that does the least work which could
// count as the same job, timed in one run. Only ratios of medians travel between machines.
//
//     std::vector<Comparison> all = comparisons(implementation, 2);
//     BenchReport report = measure(all, {.repetitions = 9});
#pragma once

#include <dropless/contract.h>

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace dropless::conformance {

struct Comparison {
  std::string name;       // "mxfp8.quantize_row.bf16"
  std::string what;       // shapes and data
  std::string peer_name;  // "memcpy, 2 threads"
  double bytes = 0;       // read + written by one call of the operation; 0 when FLOPs count
  double flops = 0;       // of one call
  double peer_bytes = 0, peer_flops = 0;
  std::function<void()> operation;  // throws std::runtime_error with the operation's message
  std::function<void()> peer;
  double target_ratio = 0;  // operation rate / peer rate that the project promises; 0: no promise
  double target_rate = 0;   // bytes or FLOPs per second promised; 0: no promise
};

struct BenchOptions {
  int repetitions = 9;
  double minimum_seconds = 0.1;  // of one repetition
  std::string filter;            // substring of the name; empty: all
};

struct BenchResult {
  std::string name, what, peer_name;
  bool in_bytes = true;
  double operation_seconds = 0, peer_seconds = 0;  // medians
  double operation_rate = 0, peer_rate = 0;        // bytes or FLOPs per second
  double ratio = 0;
  double cpu_ratio = 0;  // the same by processor time of all threads: other programs do not count
  double target_ratio = 0, target_rate = 0;
  double spread = 0;  // (largest - smallest) / median of the operation's repetitions
};

// Comparisons of every offered operation; those that are not offered are left out and named in
// `not_offered`.
std::vector<Comparison> comparisons(const dropless_implementation& implementation, int threads,
                                    std::vector<std::string>& not_offered);

// Runs them with Google Benchmark, repetitions of all of them interleaved at random.
std::vector<BenchResult> measure(const std::vector<Comparison>& all, const BenchOptions& options);

void print(std::ostream& out, const std::vector<BenchResult>& results);

// Added by the files of this folder.
void add_mxfp8(std::vector<Comparison>& all, const dropless_implementation& implementation,
               int threads, std::vector<std::string>& not_offered);
void add_permutation(std::vector<Comparison>& all, const dropless_implementation& implementation,
                     int threads, std::vector<std::string>& not_offered);
void add_grouped_gemm(std::vector<Comparison>& all, const dropless_implementation& implementation,
                      int threads, std::vector<std::string>& not_offered);
// In the layout of its profile; see exchange.cpp for the bytes. The ranks are the threads.
void add_exchange(std::vector<Comparison>& all, const dropless_implementation& implementation,
                  std::vector<std::string>& not_offered);

}  // namespace dropless::conformance
