// SPDX-License-Identifier: Apache-2.0
// Rows of figures.
#include "conformance/benchmarks/device/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

// Dense, without sparsity: NVIDIA's data sheets of H100 SXM and H200, whose chips are the same.
constexpr double hopper_bf16 = 989.4e12, hopper_fp8 = 1978.9e12;

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", seconds * 1e6)
                        : fmt::format("{:.3f} ms", seconds * 1e3);
}

bool counts_flops(const DeviceBenchmark& benchmark) {
  return benchmark.flops > 0;
}

double rate_of(const DeviceBenchmark& benchmark, const DeviceResult& result) {
  return (counts_flops(benchmark) ? benchmark.flops : benchmark.bytes) / result.seconds;
}

std::string mark_text(const Mark& mark) {
  switch (mark.kind) {
    case MarkKind::microseconds_at_most:
      return fmt::format("{:.0f} us", mark.value);
    case MarkKind::teraflops_at_least:
      return fmt::format("{:.0f} TFLOP/s", mark.value);
    case MarkKind::of_own_bf16:
      return fmt::format("{:.2f} x bf16", mark.value);
    case MarkKind::of_peer:
      return fmt::format("{:.2f} x peer", mark.value);
    case MarkKind::none:
      break;
  }
  return "-";
}

// The time beside ours, and whose it is.
struct Beside {
  double seconds = 0;
  std::string whose;
};
Beside beside(const DeviceResult& result) {
  if (result.own_bf16_seconds > 0) return {result.own_bf16_seconds, "own bf16"};
  if (result.peer.seconds <= 0) return {};
  return {result.peer.seconds,
          result.peer.how.empty() ? "peer" : fmt::format("peer, {}", result.peer.how)};
}

}  // namespace

DeviceScale scale_of(const std::string& device, double bytes_per_second, const Peer* peer) {
  DeviceScale scale;
  scale.device = device;
  scale.bytes_per_second = bytes_per_second;
  scale.has_marks = device.find("H200") != std::string::npos;
  if (scale.has_marks || device.find("H100") != std::string::npos) {
    scale.bf16_flops = hopper_bf16, scale.code_flops = hopper_fp8;
  }
  if (peer != nullptr) scale.peer_name = peer->name();
  return scale;
}

double floor_seconds(const DeviceScale& scale, const DeviceBenchmark& benchmark) {
  const double by_bytes = benchmark.bytes / scale.bytes_per_second;
  if (!counts_flops(benchmark)) return by_bytes;
  const double peak = benchmark.of_codes ? scale.code_flops : scale.bf16_flops;
  return peak > 0 ? std::max(by_bytes, benchmark.flops / peak) : 0;
}

std::optional<bool> is_met(const DeviceScale& scale, const DeviceBenchmark& benchmark,
                           const DeviceResult& result) {
  if (!scale.has_marks || !result.failed.empty()) return std::nullopt;
  const double value = benchmark.mark.value;
  switch (benchmark.mark.kind) {
    case MarkKind::microseconds_at_most:
      return result.seconds * 1e6 <= value;
    case MarkKind::teraflops_at_least:
      return benchmark.flops / result.seconds * 1e-12 >= value;
    case MarkKind::of_own_bf16:
      if (result.own_bf16_seconds <= 0) return std::nullopt;
      return result.own_bf16_seconds / result.seconds >= value;
    case MarkKind::of_peer:
      if (result.peer.seconds <= 0) return std::nullopt;
      return result.peer.seconds / result.seconds >= value;
    case MarkKind::none:
      break;
  }
  return std::nullopt;
}

void print_head(std::ostream& out, const DeviceScale& scale) {
  out << fmt::format("{}: {:.2f} TB/s copied on the device in this run (read + written)",
                     scale.device, scale.bytes_per_second * 1e-12);
  if (scale.bf16_flops > 0) {
    out << fmt::format("; {:.0f} TFLOP/s of bf16, {:.0f} of 8-bit codes (data sheet, dense)",
                       scale.bf16_flops * 1e-12, scale.code_flops * 1e-12);
  }
  out << '\n';
  if (!scale.peer_name.empty()) out << "peer: " << scale.peer_name << '\n';
  if (!scale.has_marks) out << "marks are for an NVIDIA H200, and not shown\n";
  out << fmt::format("{:<52}{:>11}{:>8}{:>15}{:>11}{:>7}{:>12}{:>7}  {:<20}{}\n", "operation",
                     "median", "spread", "rate", "floor", "of it", "beside", "ratio", "mark",
                     "how");
  out.flush();
}

void print_row(std::ostream& out, const DeviceScale& scale, const DeviceBenchmark& benchmark,
               const DeviceResult& result) {
  if (!result.failed.empty()) {
    out << fmt::format("{:<52}  FAILED  {}\n", benchmark.name, result.failed);
    out.flush();
    return;
  }
  const double floor = floor_seconds(scale, benchmark);
  const Beside other = beside(result);
  std::string mark = scale.has_marks ? mark_text(benchmark.mark) : "-";
  if (const auto met = is_met(scale, benchmark, result)) mark += *met ? " met" : " MISSED";
  std::string how = fmt::format("{}, calls {}, sets {}", result.as_graph ? "graph" : "queue",
                                result.calls, result.sets);
  if (!other.whose.empty()) how += "; beside: " + other.whose;
  out << fmt::format(
      "{:<52}{:>11}{:>6.1f} %{:>15}{:>11}{:>7}{:>12}{:>7}  {:<20}{}\n", benchmark.name,
      time_text(result.seconds), result.spread * 100,
      fmt::format("{:.{}f} {}", rate_of(benchmark, result) * 1e-12, counts_flops(benchmark) ? 0 : 2,
                  counts_flops(benchmark) ? "TFLOP/s" : "TB/s"),
      floor > 0 ? time_text(floor) : "-",
      floor > 0 ? fmt::format("{:.2f}x", result.seconds / floor) : "-",
      other.seconds > 0 ? time_text(other.seconds) : "-",
      other.seconds > 0 ? fmt::format("{:.2f}", other.seconds / result.seconds) : "-", mark, how);
  if (!result.why_no_graph.empty()) {
    out << fmt::format("  could not be captured in a graph: {}\n", result.why_no_graph);
  }
  if (!result.peer.why.empty()) out << fmt::format("  no time of the peer: {}\n", result.peer.why);
  out.flush();
}

Json as_json(const DeviceScale& scale) {
  return {{"device", scale.device},
          {"copy_bytes_per_second", scale.bytes_per_second},
          {"bf16_flops_per_second", scale.bf16_flops},
          {"code_flops_per_second", scale.code_flops},
          {"marks_are_for_this_device", scale.has_marks},
          {"peer", scale.peer_name}};
}

Json as_json(const DeviceScale& scale, const DeviceBenchmark& benchmark,
             const DeviceResult& result) {
  Json row{{"operation", benchmark.name}, {"what", benchmark.what}};
  if (!result.failed.empty()) {
    row["failed"] = result.failed;
    return row;
  }
  row["median_seconds"] = result.seconds;
  row["least_seconds"] = result.least_seconds;
  row["spread"] = result.spread;
  row["unit"] = counts_flops(benchmark) ? "FLOP/s" : "bytes/s";
  row["rate"] = rate_of(benchmark, result);
  row["bytes"] = benchmark.bytes;
  row["flops"] = benchmark.flops;
  row["floor_seconds"] = floor_seconds(scale, benchmark);
  if (result.own_bf16_seconds > 0) row["own_bf16_median_seconds"] = result.own_bf16_seconds;
  if (result.peer.seconds > 0) {
    row["peer_median_seconds"] = result.peer.seconds;
    row["peer_how"] = result.peer.how;
  }
  if (!result.peer.why.empty()) row["no_peer_because"] = result.peer.why;
  const Beside other = beside(result);
  if (other.seconds > 0) row["ratio"] = other.seconds / result.seconds;
  if (scale.has_marks && benchmark.mark.kind != MarkKind::none) {
    row["mark"] = mark_text(benchmark.mark);
    if (const auto met = is_met(scale, benchmark, result)) row["mark_is_met"] = *met;
  }
  row["sets_of_buffers"] = result.sets;
  row["calls_in_a_repetition"] = result.calls;
  row["graph"] = result.as_graph;
  if (!result.why_no_graph.empty()) row["no_graph_because"] = result.why_no_graph;
  row["paths"] = result.paths;
  return row;
}

}  // namespace dropless::conformance
