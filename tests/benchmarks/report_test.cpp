// SPDX-License-Identifier: Apache-2.0
// Floors, marks and rows.
#include "conformance/benchmarks/device/report.h"

#include <gtest/gtest.h>

#include <sstream>

namespace dropless::conformance {
namespace {

DeviceBenchmark copy_like() {
  DeviceBenchmark one;
  one.name = "permutation.permute";
  one.what = "rows";
  one.bytes = 4e8;
  one.mark = {MarkKind::microseconds_at_most, 160};
  return one;
}
DeviceBenchmark product(Mark mark) {
  DeviceBenchmark one;
  one.name = "grouped_gemm.fprop";
  one.bytes = 1e9, one.flops = 2e12;
  one.mark = mark;
  return one;
}
DeviceResult taking(double seconds) {
  DeviceResult result;
  result.seconds = seconds, result.sets = 2, result.calls = 8, result.as_graph = true;
  return result;
}
std::string row(const DeviceScale& scale, const DeviceBenchmark& one, const DeviceResult& result) {
  std::ostringstream out;
  print_row(out, scale, one, result);
  return out.str();
}
bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const DeviceScale h200 = scale_of("NVIDIA H200", 4e12, nullptr);
const DeviceScale other = scale_of("NVIDIA A100-SXM4-80GB", 1.5e12, nullptr);

TEST(BenchReport, TheFloorIsTheLaterOfBytesAndProducts) {
  EXPECT_DOUBLE_EQ(floor_seconds(h200, copy_like()), 1e-4);
  EXPECT_DOUBLE_EQ(floor_seconds(h200, product({})), 2e12 / 989.4e12);
  DeviceBenchmark wide = product({});
  wide.bytes = 2e10;
  EXPECT_DOUBLE_EQ(floor_seconds(h200, wide), 5e-3);
  DeviceBenchmark codes = product({});
  codes.of_codes = true;
  EXPECT_DOUBLE_EQ(floor_seconds(h200, codes), 2e12 / 1978.9e12);
  EXPECT_EQ(floor_seconds(other, product({})), 0);  // its peak is not known here
}

TEST(BenchReport, MarksAreHeldAgainstTheirOwnFigure) {
  EXPECT_EQ(is_met(h200, copy_like(), taking(159e-6)), true);
  EXPECT_EQ(is_met(h200, copy_like(), taking(161e-6)), false);
  const DeviceBenchmark rate = product({MarkKind::teraflops_at_least, 620});
  EXPECT_EQ(is_met(h200, rate, taking(2e12 / 621e12)), true);
  EXPECT_EQ(is_met(h200, rate, taking(2e12 / 619e12)), false);

  const DeviceBenchmark of_bf16 = product({MarkKind::of_own_bf16, 0.85});
  DeviceResult beside = taking(1e-3);
  EXPECT_EQ(is_met(h200, of_bf16, beside), std::nullopt);
  beside.own_bf16_seconds = 0.86e-3;
  EXPECT_EQ(is_met(h200, of_bf16, beside), true);
  beside.own_bf16_seconds = 0.84e-3;
  EXPECT_EQ(is_met(h200, of_bf16, beside), false);

  const DeviceBenchmark of_peer = product({MarkKind::of_peer, 1.5});
  DeviceResult faster = taking(1e-3);
  EXPECT_EQ(is_met(h200, of_peer, faster), std::nullopt);
  faster.peer.seconds = 1.51e-3;
  EXPECT_EQ(is_met(h200, of_peer, faster), true);
  faster.peer.seconds = 1.49e-3;
  EXPECT_EQ(is_met(h200, of_peer, faster), false);
}

TEST(BenchReport, OtherDevicesHaveNoMarks) {
  EXPECT_EQ(is_met(other, copy_like(), taking(1)), std::nullopt);
  EXPECT_FALSE(holds(row(other, copy_like(), taking(1)), "160 us"));
  std::ostringstream head;
  print_head(head, other);
  EXPECT_TRUE(holds(head.str(), "marks are for an NVIDIA H200"));
  EXPECT_FALSE(as_json(other, copy_like(), taking(1)).contains("mark"));
}

TEST(BenchReport, ARowSaysHowItWasTimed) {
  DeviceResult result = taking(2e-4);
  result.peer = {3e-4, "eager, graph", ""};
  const std::string text = row(h200, copy_like(), result);
  for (const char* part :
       {"permutation.permute", "200.0 us", "2.00 TB/s", "100.0 us", "2.00x", "300.0 us", "1.50",
        "160 us MISSED", "graph, calls 8, sets 2", "peer, eager, graph"}) {
    EXPECT_TRUE(holds(text, part)) << part << " in " << text;
  }
  const auto json = as_json(h200, copy_like(), result);
  EXPECT_DOUBLE_EQ(json["ratio"], 1.5);
  EXPECT_EQ(json["mark_is_met"], false);
}

TEST(BenchReport, WhatIsMissingIsSaid) {
  DeviceResult result = taking(2e-4);
  result.as_graph = false, result.why_no_graph = "operation not permitted when stream is capturing";
  result.peer.why = "No module named 'torch'";
  const std::string text = row(h200, copy_like(), result);
  EXPECT_TRUE(holds(text, "queue, calls 8"));
  EXPECT_TRUE(holds(text, "not be captured in a graph: operation not permitted"));
  EXPECT_TRUE(holds(text, "no time of the peer: No module named 'torch'"));
  DeviceResult failed;
  failed.failed = "permute_forward: NOT_SUPPORTED";
  EXPECT_TRUE(holds(row(h200, copy_like(), failed), "FAILED  permute_forward: NOT_SUPPORTED"));
  EXPECT_EQ(as_json(h200, copy_like(), failed)["failed"], failed.failed);
}

}  // namespace
}  // namespace dropless::conformance
