// SPDX-License-Identifier: Apache-2.0
// Times beside what they are held against: the floor of the bytes and the products, the peer, the
// project's marks. Printed row by row, as they are measured.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "conformance/benchmarks/device/benchmark.h"

namespace dropless::conformance {

// What every time of one run is held against.
struct DeviceScale {
  std::string device;
  double bytes_per_second = 0;  // of a copy in the same run, read + written
  double bf16_flops = 0;        // per second, by the data sheet; 0: not known
  double code_flops = 0;        // of 8-bit codes
  bool has_marks = false;       // the project's marks are for this device
  std::string peer_name;        // empty: none was asked for, or it does not serve
};

DeviceScale scale_of(const std::string& device, double bytes_per_second, const Peer* peer);

// The least time in which the device moves the bytes and multiplies; 0 where a peak is not known.
double floor_seconds(const DeviceScale& scale, const DeviceBenchmark& benchmark);
// Nothing where there is no mark, or nothing to hold against it.
std::optional<bool> is_met(const DeviceScale& scale, const DeviceBenchmark& benchmark,
                           const DeviceResult& result);

void print_head(std::ostream& out, const DeviceScale& scale);
void print_row(std::ostream& out, const DeviceScale& scale, const DeviceBenchmark& benchmark,
               const DeviceResult& result);
nlohmann::ordered_json as_json(const DeviceScale& scale);
nlohmann::ordered_json as_json(const DeviceScale& scale, const DeviceBenchmark& benchmark,
                               const DeviceResult& result);

}  // namespace dropless::conformance
