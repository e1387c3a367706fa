// SPDX-License-Identifier: Apache-2.0
// Every value format of <dropless/formats.h> used in device code, so that nvcc compiles them all.
#include <dropless/formats.h>

#include <cstdint>

namespace {

// out[i] = what from_float, from_double, to_float and to_double make of element i.
template <typename Format>
__device__ void round_trip(const float* in, int i, std::uint32_t* codes, float* values) {
  const Format from_float = Format::from_float(in[i]);
  const Format from_double = Format::from_double(static_cast<double>(in[i]));
  codes[2 * i] = from_float.bits;
  codes[2 * i + 1] = from_double.bits;
  values[2 * i] = from_float.to_float();
  values[2 * i + 1] = static_cast<float>(from_double.to_double());
}

template <typename Format>
__global__ void round_trip_kernel(const float* in, int count, std::uint32_t* codes, float* values) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) round_trip<Format>(in, i, codes, values);
}

template <typename Format>
__global__ void classify_kernel(const std::uint32_t* raw, int count, std::uint32_t* classes) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const Format x = Format::from_bits(raw[i]);
  classes[i] = (x.is_nan() ? 1u : 0u) | (x.is_infinite() ? 2u : 0u) | (x.is_zero() ? 4u : 0u) |
               (x.is_negative() ? 8u : 0u) | (x.is_subnormal() ? 16u : 0u);
}

template __global__ void round_trip_kernel<dropless::Bf16>(const float*, int, std::uint32_t*,
                                                           float*);
template __global__ void round_trip_kernel<dropless::Fp16>(const float*, int, std::uint32_t*,
                                                           float*);
template __global__ void round_trip_kernel<dropless::E4m3>(const float*, int, std::uint32_t*,
                                                           float*);
template __global__ void round_trip_kernel<dropless::E5m2>(const float*, int, std::uint32_t*,
                                                           float*);
template __global__ void round_trip_kernel<dropless::E8m0>(const float*, int, std::uint32_t*,
                                                           float*);
template __global__ void classify_kernel<dropless::Bf16>(const std::uint32_t*, int, std::uint32_t*);
template __global__ void classify_kernel<dropless::Fp16>(const std::uint32_t*, int, std::uint32_t*);
template __global__ void classify_kernel<dropless::E4m3>(const std::uint32_t*, int, std::uint32_t*);
template __global__ void classify_kernel<dropless::E5m2>(const std::uint32_t*, int, std::uint32_t*);

}  // namespace
