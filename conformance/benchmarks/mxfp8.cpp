// SPDX-License-Identifier: Apache-2.0
// MXFP8 quantise against a scalar loop, dequantise against memcpy.
#include <bit>
#include <cmath>

#include "conformance/benchmarks/comparison.h"
#include "conformance/benchmarks/operands.h"

namespace dropless::conformance {
namespace {

constexpr Index kRows = 8192, kColumns = 4096;

float widen(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

// The plain loop that anyone would write first: one element after the other, no vector code.
std::uint8_t encode_e4m3(float x) {
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return 0x7F;
  if (magnitude >= 448.0F) return sign | 0x7E;
  if (magnitude < 0x1p-6F)
    return sign | static_cast<std::uint8_t>(std::nearbyint(magnitude * 512.0F));
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t rounded = bits + 0x7FFFF + ((bits >> 20) & 1);
  return sign | static_cast<std::uint8_t>((rounded >> 20) - (120U << 3));
}

#pragma GCC push_options
#pragma GCC optimize("no-tree-vectorize")
void quantize_scalar(const std::uint16_t* x, std::uint8_t* codes, std::uint8_t* scales, Index rows,
                     Index columns) {
  for (Index block = 0; block < rows * columns / 32; ++block) {
    const std::uint16_t* in = x + block * 32;
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = std::fmax(amax, std::fabs(widen(in[i])));
    int exponent = -127;
    if (amax > 0) {
      int e = 0;
      const float s = std::frexp(amax, &e) * 2;
      exponent = e - 1 - 8 + (s > 1.75F ? 1 : 0);
    }
    exponent = std::max(exponent, -127);
    scales[block] = static_cast<std::uint8_t>(exponent + 127);
    for (int i = 0; i < 32; ++i)
      codes[block * 32 + i] = encode_e4m3(std::ldexp(widen(in[i]), -exponent));
  }
}
#pragma GCC pop_options

}  // namespace

void add_mxfp8(std::vector<Comparison>& all, const dropless_implementation& implementation,
               int threads, std::vector<std::string>& not_offered) {
  auto x = bench_tensor(DROPLESS_BF16, {kRows, kColumns});
  fill_normal(*x, Random(Random::key_of("bench mxfp8")));
  auto codes = bench_tensor(DROPLESS_E4M3, {kRows, kColumns});
  auto scales = bench_tensor(DROPLESS_E8M0, {kRows, kColumns / 32});
  const double elements = static_cast<double>(kRows * kColumns);
  const std::string suffix = ", " + std::to_string(threads) + " threads";

  if (implementation.quantize == nullptr) {
    not_offered.emplace_back("quantize");
    return;
  }
  const auto quantize = [=, &implementation] {
    auto args = make_args<dropless_quantize_args>();
    args.x = x->tensor();
    args.row_codes = codes->tensor();
    args.row_scales = scales->tensor();
    call_operation(implementation, threads, implementation.quantize, args);
  };
  Comparison row;
  row.name = "mxfp8.quantize_row";
  row.what = "bf16 [8192,4096] to E4M3, normal data" + suffix;
  row.peer_name = "scalar loop, 1 thread";
  row.bytes = row.peer_bytes = elements * (2 + 1 + 1.0 / 32);
  row.operation = quantize;
  row.peer = [=] {
    quantize_scalar(x->as<std::uint16_t>(), codes->as<std::uint8_t>(), scales->as<std::uint8_t>(),
                    kRows, kColumns);
  };
  row.target_ratio = 20;
  row.target_rate = 10e9;
  all.push_back(row);

  auto column_codes = bench_tensor(DROPLESS_E4M3, {kRows, kColumns});
  auto column_scales = bench_tensor(DROPLESS_E8M0, {kRows / 32, kColumns});
  auto copy = bench_tensor(DROPLESS_BF16, {kRows, kColumns});
  Comparison both;
  both.name = "mxfp8.quantize_row_and_column";
  both.what = "bf16 [8192,4096], both directions in one call" + suffix;
  both.peer_name = "memcpy" + suffix;
  both.bytes = elements * (2 + 2 + 2.0 / 32);
  both.peer_bytes = elements * 4;
  both.operation = [=, &implementation] {
    auto args = make_args<dropless_quantize_args>();
    args.x = x->tensor();
    args.row_codes = codes->tensor(), args.row_scales = scales->tensor();
    args.column_codes = column_codes->tensor(), args.column_scales = column_scales->tensor();
    call_operation(implementation, threads, implementation.quantize, args);
  };
  both.peer = [=] {
    split(kRows, threads, [&](Index first, Index last) {
      std::memcpy(copy->as<std::uint16_t>() + first * kColumns,
                  x->as<std::uint16_t>() + first * kColumns,
                  static_cast<std::size_t>((last - first) * kColumns * 2));
    });
  };
  all.push_back(both);

  if (implementation.dequantize == nullptr) {
    not_offered.emplace_back("dequantize");
    return;
  }
  quantize();  // codes and scales of real data, for the way back
  Comparison back;
  back.name = "mxfp8.dequantize_row";
  back.what = "E4M3 [8192,4096] to bf16" + suffix;
  back.peer_name = "memcpy" + suffix;
  back.bytes = elements * (2 + 1 + 1.0 / 32);
  back.peer_bytes = both.peer_bytes;
  back.peer = both.peer;
  back.operation = [=, &implementation] {
    auto args = make_args<dropless_dequantize_args>();
    args.codes = codes->tensor(), args.scales = scales->tensor(), args.y = copy->tensor();
    call_operation(implementation, threads, implementation.dequantize, args);
  };
  all.push_back(back);
}

}  // namespace dropless::conformance
