// SPDX-License-Identifier: Apache-2.0
// Elements of a buffer as bytes.
#include "conformance/judge/elements.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "tolerances/float_format.h"
#include "tolerances/interval.h"
#include "tolerances/power_of_two.h"

namespace dropless::conformance {

namespace {

using tolerances::exponent_of;
using tolerances::FloatFormat;
using tolerances::power_of_two;

std::uint32_t load(std::size_t bytes, const std::uint8_t* element) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, element, bytes);  // little-endian hosts only, like the ABI
  return bits;
}

// The bits of one floating-point format, from the numbers that define it.
class FloatBits {
 public:
  explicit FloatBits(dropless_dtype dtype)
      : dtype_(dtype),
        format_(tolerances::float_format(dtype)),
        fraction_bits_(format_.precision - 1),
        sign_place_(static_cast<int>(8 * dtype_bytes(dtype)) - 1),
        fraction_mask_((1u << fraction_bits_) - 1),
        exponent_mask_((1u << (sign_place_ - fraction_bits_)) - 1) {}

  [[nodiscard]] double decode(std::uint32_t bits) const {
    const std::uint32_t fraction = bits & fraction_mask_;
    const std::uint32_t exponent = bits >> fraction_bits_ & exponent_mask_;
    const int smallest = format_.min_exponent - fraction_bits_;  // exponent of one unit
    double magnitude = 0;
    if (exponent == exponent_mask_ && (format_.has_infinity || fraction == fraction_mask_)) {
      magnitude = format_.has_infinity && fraction == 0 ? std::numeric_limits<double>::infinity()
                                                        : std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      magnitude = fraction * power_of_two(smallest);
    } else {
      magnitude = (fraction + fraction_mask_ + 1.0) *
                  power_of_two(static_cast<int>(exponent) - 1 + smallest);
    }
    return bits >> sign_place_ & 1 ? -magnitude : magnitude;
  }

  [[nodiscard]] std::uint32_t encode(double value) const {
    const std::uint32_t sign = std::signbit(value) ? 1u << sign_place_ : 0u;
    const std::uint32_t top = exponent_mask_ << fraction_bits_;
    if (std::isnan(value)) {
      // fp8: all ones below the sign; otherwise the usual quiet NaN.
      return format_.saturates ? top | fraction_mask_ : top | (1u << (fraction_bits_ - 1));
    }
    const double magnitude = std::abs(tolerances::round_to(dtype_, value));
    if (std::isinf(magnitude)) return sign | top;
    if (magnitude == 0) return sign;
    const int exponent = std::max(exponent_of(magnitude), format_.min_exponent);
    const auto significand =
        static_cast<std::uint32_t>(magnitude * power_of_two(fraction_bits_ - exponent));
    if (significand <= fraction_mask_) return sign | significand;  // subnormal
    const auto field = static_cast<std::uint32_t>(exponent - format_.min_exponent + 1);
    return sign | (field << fraction_bits_) | (significand & fraction_mask_);
  }

 private:
  dropless_dtype dtype_;
  const FloatFormat& format_;
  int fraction_bits_, sign_place_;
  std::uint32_t fraction_mask_, exponent_mask_;
};

}  // namespace

std::size_t dtype_bytes(dropless_dtype dtype) {
  switch (dtype) {
    case DROPLESS_I64:
      return 8;
    case DROPLESS_FP32:
    case DROPLESS_I32:
      return 4;
    case DROPLESS_BF16:
    case DROPLESS_FP16:
      return 2;
    case DROPLESS_E4M3:
    case DROPLESS_E5M2:
    case DROPLESS_E8M0:
    case DROPLESS_U8:
      return 1;
    default:
      throw std::logic_error("dtype_bytes: unknown dtype");
  }
}

std::string_view dtype_name(dropless_dtype dtype) {
  static constexpr std::string_view names[] = {"fp32", "bf16", "fp16", "e4m3", "e5m2",
                                               "e8m0", "i32",  "i64",  "u8"};
  if (dtype < 0 || dtype > DROPLESS_U8) throw std::logic_error("dtype_name: unknown dtype");
  return names[dtype];
}

bool is_float(dropless_dtype dtype) {
  return dtype >= DROPLESS_FP32 && dtype <= DROPLESS_E5M2;
}

double decode(dropless_dtype dtype, const std::uint8_t* element) {
  if (is_float(dtype)) return FloatBits(dtype).decode(load(dtype_bytes(dtype), element));
  if (dtype == DROPLESS_E8M0) {
    return *element == 255 ? std::numeric_limits<double>::quiet_NaN()
                           : std::ldexp(1.0, *element - 127);
  }
  return static_cast<double>(decode_integer(dtype, element));
}

void decode(dropless_dtype dtype, const std::uint8_t* elements, std::span<double> values) {
  const std::size_t bytes = dtype_bytes(dtype);
  if (!is_float(dtype)) {
    for (double& value : values) value = decode(dtype, elements), elements += bytes;
    return;
  }
  const FloatBits format(dtype);
  for (double& value : values) value = format.decode(load(bytes, elements)), elements += bytes;
}

void encode(dropless_dtype dtype, double value, std::uint8_t* element) {
  if (is_float(dtype)) {
    const std::uint32_t bits = FloatBits(dtype).encode(value);
    std::memcpy(element, &bits, dtype_bytes(dtype));
  } else if (dtype == DROPLESS_E8M0) {
    const int exponent = std::isnan(value) ? 128 : std::ilogb(value);
    if (!std::isnan(value) &&
        (value != std::ldexp(1.0, exponent) || exponent < -127 || exponent > 127)) {
      throw std::logic_error(fmt::format("encode: {} is not an e8m0 scale", value));
    }
    *element = static_cast<std::uint8_t>(exponent + 127);
  } else {
    if (!(std::abs(value) < 0x1p62) || value != std::trunc(value)) {
      throw std::logic_error(fmt::format("encode: {} is not an integer", value));
    }
    encode_integer(dtype, static_cast<Index>(value), element);
  }
}

void encode(dropless_dtype dtype, std::span<const double> values, std::uint8_t* elements) {
  const std::size_t bytes = dtype_bytes(dtype);
  if (!is_float(dtype)) {
    for (const double value : values) encode(dtype, value, elements), elements += bytes;
    return;
  }
  const FloatBits format(dtype);
  for (const double value : values) {
    const std::uint32_t bits = format.encode(value);
    std::memcpy(elements, &bits, bytes);
    elements += bytes;
  }
}

Index decode_integer(dropless_dtype dtype, const std::uint8_t* element) {
  if (dtype == DROPLESS_U8) return *element;
  if (dtype == DROPLESS_I32) {
    std::int32_t value = 0;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  if (dtype != DROPLESS_I64) throw std::logic_error("decode_integer: not an integer dtype");
  Index value = 0;
  std::memcpy(&value, element, sizeof value);
  return value;
}

void encode_integer(dropless_dtype dtype, Index value, std::uint8_t* element) {
  const bool fits = (dtype == DROPLESS_U8 && value >= 0 && value <= 255) ||
                    (dtype == DROPLESS_I32 && value >= INT32_MIN && value <= INT32_MAX) ||
                    dtype == DROPLESS_I64;
  if (!fits) {
    throw std::logic_error(fmt::format("encode_integer: {} as {}", value, dtype_name(dtype)));
  }
  std::memcpy(element, &value, dtype_bytes(dtype));
}

std::string print(double value) {
  return fmt::format("{:.9g}", value);
}

std::string print_bits(dropless_dtype dtype, const std::uint8_t* element) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, element, dtype_bytes(dtype));
  return fmt::format("0x{:0{}x}", bits, 2 * dtype_bytes(dtype));
}

std::string print(dropless_dtype dtype, const std::uint8_t* element) {
  if (!is_float(dtype) && dtype != DROPLESS_E8M0) {
    return fmt::format("{}", decode_integer(dtype, element));
  }
  const std::string value = print(decode(dtype, element));
  return dtype_bytes(dtype) == 1 ? fmt::format("{} ({})", value, print_bits(dtype, element))
                                 : value;
}

}  // namespace dropless::conformance
