// SPDX-License-Identifier: Apache-2.0
// The value formats inside a kernel: entry points of format_device.cu for a test without nvcc.
#pragma once

#include <cstdint>
#include <vector>

namespace dropless::oracles {

enum class DeviceFormat { bf16, fp16, e4m3, e5m2, e8m0 };

bool has_cuda_device();

// Codes made by the header in a kernel. Throws std::runtime_error on a CUDA error.
std::vector<std::uint32_t> encode_on_device(DeviceFormat format, bool saturate,
                                            const std::vector<float>& inputs);
std::vector<std::uint32_t> encode_on_device(DeviceFormat format, bool saturate,
                                            const std::vector<double>& inputs);
// fp32 bits of all codes 0 .. count-1, decoded by the header in a kernel.
std::vector<std::uint32_t> decode_on_device(DeviceFormat format, std::uint32_t count);

// The header against the conversion instructions of the GPU, over all 2^32 fp32 bit patterns.
struct Disagreement {
  unsigned long long count = 0;
  std::uint32_t example = 0;  // one of the bit patterns, when count > 0
};
Disagreement compare_with_instructions(DeviceFormat format, bool saturate);

}  // namespace dropless::oracles
