// SPDX-License-Identifier: Apache-2.0
// The value formats inside kernels, and the GPU's own conversions beside them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <stdexcept>
#include <string>

#include "dropless/formats.h"
#include "tests/oracles/format_device.h"

namespace dropless::oracles {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Device memory for the length of a call.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    check(cudaMalloc(&data_, (count == 0 ? 1 : count) * sizeof(T)));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  [[nodiscard]] T* get() const { return data_; }
  void set(const T* from) {
    check(cudaMemcpy(data_, from, count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  [[nodiscard]] std::vector<T> copy() const {
    std::vector<T> to(count_);
    check(cudaMemcpy(to.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

constexpr unsigned kThreads = 256;
unsigned blocks_for(std::size_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

__device__ std::uint32_t convert(DeviceFormat format, float x, Overflow overflow) {
  switch (format) {
    case DeviceFormat::bf16:
      return Bf16::from_float(x, overflow).bits;
    case DeviceFormat::fp16:
      return Fp16::from_float(x, overflow).bits;
    case DeviceFormat::e4m3:
      return E4m3::from_float(x, overflow).bits;
    case DeviceFormat::e5m2:
      return E5m2::from_float(x, overflow).bits;
    default:
      return E8m0::from_float(x, overflow).bits;
  }
}

__device__ std::uint32_t convert(DeviceFormat format, double x, Overflow overflow) {
  switch (format) {
    case DeviceFormat::bf16:
      return Bf16::from_double(x, overflow).bits;
    case DeviceFormat::fp16:
      return Fp16::from_double(x, overflow).bits;
    case DeviceFormat::e4m3:
      return E4m3::from_double(x, overflow).bits;
    case DeviceFormat::e5m2:
      return E5m2::from_double(x, overflow).bits;
    default:
      return E8m0::from_double(x, overflow).bits;
  }
}

template <typename Real>
__global__ void encode_kernel(DeviceFormat format, Overflow overflow, const Real* inputs,
                              std::uint32_t* codes, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) codes[i] = convert(format, inputs[i], overflow);
}

__global__ void decode_kernel(DeviceFormat format, std::uint32_t* values, std::uint32_t count) {
  const std::uint32_t code = blockIdx.x * blockDim.x + threadIdx.x;
  if (code >= count) return;
  float value = 0;
  switch (format) {
    case DeviceFormat::bf16:
      value = Bf16::from_bits(code).to_float();
      break;
    case DeviceFormat::fp16:
      value = Fp16::from_bits(code).to_float();
      break;
    case DeviceFormat::e4m3:
      value = E4m3::from_bits(code).to_float();
      break;
    case DeviceFormat::e5m2:
      value = E5m2::from_bits(code).to_float();
      break;
    default:
      value = E8m0::from_bits(code).to_float();
  }
  values[code] = __float_as_uint(value);
}

template <typename Format>
__device__ bool same(Format ours, std::uint32_t theirs) {
  return ours.is_nan() ? Format::from_bits(theirs).is_nan() : ours.bits == theirs;
}

// The instruction's answer for one pattern equals the header's. E8M0 has only instructions that
// round towards zero and upward: the header's answer must be one of the two.
__device__ bool agrees(DeviceFormat format, Overflow overflow, float x) {
  const auto saturation = overflow == Overflow::saturate ? __NV_SATFINITE : __NV_NOSAT;
  switch (format) {
    case DeviceFormat::bf16:
      return same(Bf16::from_float(x), __bfloat16_as_ushort(__float2bfloat16_rn(x)));
    case DeviceFormat::fp16:
      return same(Fp16::from_float(x), __half_as_ushort(__float2half_rn(x)));
    case DeviceFormat::e4m3:
      return same(E4m3::from_float(x, overflow), __nv_cvt_float_to_fp8(x, saturation, __NV_E4M3));
    case DeviceFormat::e5m2:
      return same(E5m2::from_float(x, overflow), __nv_cvt_float_to_fp8(x, saturation, __NV_E5M2));
    default: {
      if (!(x > 0.0f) || __float_as_uint(x) >= 0x7F800000u) return true;
      const unsigned down = __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero);
      const unsigned up = __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf);
      const unsigned ours = E8m0::from_float(x).bits;
      return ours == down || ours == up;
    }
  }
}

__global__ void compare_kernel(DeviceFormat format, Overflow overflow, Disagreement* result) {
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t pattern = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; pattern < (std::uint64_t{1} << 32); pattern += threads) {
    if (agrees(format, overflow, __uint_as_float(static_cast<std::uint32_t>(pattern)))) continue;
    if (atomicAdd(&result->count, 1ULL) == 0) result->example = static_cast<std::uint32_t>(pattern);
  }
}

template <typename Real>
std::vector<std::uint32_t> encode(DeviceFormat format, bool saturate,
                                  const std::vector<Real>& inputs) {
  DeviceArray<Real> from(inputs.size());
  DeviceArray<std::uint32_t> to(inputs.size());
  from.set(inputs.data());
  encode_kernel<<<blocks_for(inputs.size()), kThreads>>>(
      format, saturate ? Overflow::saturate : Overflow::propagate, from.get(), to.get(),
      inputs.size());
  check(cudaGetLastError());
  return to.copy();
}

}  // namespace

bool has_cuda_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

std::vector<std::uint32_t> encode_on_device(DeviceFormat format, bool saturate,
                                            const std::vector<float>& inputs) {
  return encode(format, saturate, inputs);
}

std::vector<std::uint32_t> encode_on_device(DeviceFormat format, bool saturate,
                                            const std::vector<double>& inputs) {
  return encode(format, saturate, inputs);
}

std::vector<std::uint32_t> decode_on_device(DeviceFormat format, std::uint32_t count) {
  DeviceArray<std::uint32_t> values(count);
  decode_kernel<<<blocks_for(count), kThreads>>>(format, values.get(), count);
  check(cudaGetLastError());
  return values.copy();
}

Disagreement compare_with_instructions(DeviceFormat format, bool saturate) {
  DeviceArray<Disagreement> result(1);
  const Disagreement none;
  result.set(&none);
  compare_kernel<<<4096, kThreads>>>(format, saturate ? Overflow::saturate : Overflow::propagate,
                                     result.get());
  check(cudaGetLastError());
  return result.copy()[0];
}

}  // namespace dropless::oracles
