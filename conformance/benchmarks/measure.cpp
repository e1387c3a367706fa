// SPDX-License-Identifier: Apache-2.0
// Timing with Google Benchmark: both sides of a comparison in one process, repetitions interleaved.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ostream>
#include <stdexcept>

#include "conformance/benchmarks/comparison.h"

namespace dropless::conformance {
namespace {

// Why a run was skipped, or nothing. Google Benchmark 1.8 renamed what 1.7 calls an error.
template <class Run>
std::optional<std::string> error_of(const Run& run) {
  if constexpr (requires { run.error_occurred; }) {
    if (run.error_occurred) return run.error_message;
  } else {
    if (static_cast<bool>(run.skipped)) return run.skip_message;
  }
  return std::nullopt;
}

// Keeps the time of every repetition; prints nothing.
class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      const std::string name = run.run_name.function_name;
      if (const auto error = error_of(run)) {
        errors[name] = *error;
      } else {
        seconds[name].push_back(run.real_accumulated_time / static_cast<double>(run.iterations));
      }
    }
  }
  std::map<std::string, std::vector<double>> seconds;
  std::map<std::string, std::string> errors;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void add_benchmark(const std::string& name, const std::function<void()>& body,
                   const BenchOptions& options) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [body](benchmark::State& state) {
                                 try {
                                   body();  // warm-up: page faults, thread pools
                                   for (auto _ : state) body();
                                 } catch (const std::exception& error) {
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->UseRealTime()
      ->MinTime(options.minimum_seconds)
      ->Repetitions(options.repetitions)
      ->ReportAggregatesOnly(false);
}

}  // namespace

std::vector<Comparison> comparisons(const dropless_implementation& implementation, int threads,
                                    std::vector<std::string>& not_offered) {
  std::vector<Comparison> all;
  add_mxfp8(all, implementation, threads, not_offered);
  add_permutation(all, implementation, threads, not_offered);
  add_grouped_gemm(all, implementation, threads, not_offered);
  return all;
}

std::vector<BenchResult> measure(const std::vector<Comparison>& all, const BenchOptions& options) {
  benchmark::ClearRegisteredBenchmarks();
  std::vector<const Comparison*> chosen;
  for (const Comparison& one : all) {
    if (one.name.find(options.filter) == std::string::npos) continue;
    chosen.push_back(&one);
    add_benchmark(one.name, one.operation, options);
    add_benchmark(one.name + "/peer", one.peer, options);
  }
  if (chosen.empty()) return {};
  std::string program = "dropless";
  std::string interleave = "--benchmark_enable_random_interleaving=true";
  char* arguments[] = {program.data(), interleave.data(), nullptr};
  int count = 2;
  benchmark::Initialize(&count, arguments);
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector);

  std::vector<BenchResult> results;
  for (const Comparison* one : chosen) {
    for (const std::string& name : {one->name, one->name + "/peer"}) {
      if (collector.errors.contains(name)) {
        throw std::runtime_error(name + ": " + collector.errors[name]);
      }
      if (collector.seconds[name].empty()) throw std::runtime_error(name + ": nothing was timed");
    }
    BenchResult result{.name = one->name, .what = one->what, .peer_name = one->peer_name};
    const std::vector<double>& times = collector.seconds[one->name];
    result.in_bytes = one->bytes > 0;
    result.operation_seconds = median(times);
    result.peer_seconds = median(collector.seconds[one->name + "/peer"]);
    const double work = result.in_bytes ? one->bytes : one->flops;
    const double peer_work = result.in_bytes ? one->peer_bytes : one->peer_flops;
    result.operation_rate = work / result.operation_seconds;
    result.peer_rate = peer_work / result.peer_seconds;
    result.ratio = result.operation_rate / result.peer_rate;
    result.target_ratio = one->target_ratio, result.target_rate = one->target_rate;
    const auto [least, most] = std::minmax_element(times.begin(), times.end());
    result.spread = (*most - *least) / result.operation_seconds;
    results.push_back(result);
  }
  return results;
}

void print(std::ostream& out, const std::vector<BenchResult>& results) {
  out << fmt::format("{:<44}{:>10}{:>12}{:>12}{:>8}{:>9}{:>8}  {}\n", "operation", "median", "rate",
                     "peer", "ratio", "promised", "spread", "peer is");
  for (const BenchResult& r : results) {
    const double unit = 1e9;
    const char* name = r.in_bytes ? "GB/s" : "GFLOP/s";
    std::string promise = r.target_ratio > 0 ? fmt::format("{:.2f}", r.target_ratio) : "-";
    if (r.target_ratio > 0 && r.ratio < r.target_ratio) promise += "!";
    if (r.target_rate > 0 && r.operation_rate < r.target_rate) promise += "!";
    out << fmt::format(
        "{:<44}{:>7.2f} ms{:>12}{:>12}{:>8.2f}{:>9}{:>7.0f}%  {}\n", r.name,
        r.operation_seconds * 1e3, fmt::format("{:.1f} {}", r.operation_rate / unit, name),
        fmt::format("{:.1f}", r.peer_rate / unit), r.ratio, promise, r.spread * 100, r.peer_name);
  }
}

}  // namespace dropless::conformance
