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

namespace dropless::conformance {

namespace {

using tolerances::FloatFormat;

std::uint32_t load(dropless_dtype dtype, const std::uint8_t* element) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, element, dtype_bytes(dtype));  // little-endian hosts only, like the ABI
  return bits;
}

struct Fields {
  int fraction_bits, exponent_bits;
  [[nodiscard]] std::uint32_t fraction_mask() const { return (1u << fraction_bits) - 1; }
  [[nodiscard]] std::uint32_t exponent_mask() const { return (1u << exponent_bits) - 1; }
};

Fields fields_of(dropless_dtype dtype) {
  const int fraction = tolerances::float_format(dtype).precision - 1;
  return {fraction, static_cast<int>(8 * dtype_bytes(dtype)) - 1 - fraction};
}

double decode_float(dropless_dtype dtype, std::uint32_t bits) {
  const FloatFormat& format = tolerances::float_format(dtype);
  const Fields fields = fields_of(dtype);
  const std::uint32_t fraction = bits & fields.fraction_mask();
  const std::uint32_t exponent = (bits >> fields.fraction_bits) & fields.exponent_mask();
  const bool negative = (bits >> (fields.fraction_bits + fields.exponent_bits)) & 1;
  double magnitude = 0;
  if (format.has_infinity && exponent == fields.exponent_mask()) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (!format.has_infinity && exponent == fields.exponent_mask() &&
             fraction == fields.fraction_mask()) {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, format.min_exponent - fields.fraction_bits);
  } else {
    magnitude =
        std::ldexp(fraction + fields.fraction_mask() + 1.0,
                   static_cast<int>(exponent) - 1 + format.min_exponent - fields.fraction_bits);
  }
  return negative ? -magnitude : magnitude;
}

std::uint32_t encode_float(dropless_dtype dtype, double value) {
  const FloatFormat& format = tolerances::float_format(dtype);
  const Fields fields = fields_of(dtype);
  const std::uint32_t sign =
      std::signbit(value) ? 1u << (fields.fraction_bits + fields.exponent_bits) : 0u;
  const std::uint32_t top = fields.exponent_mask() << fields.fraction_bits;
  if (std::isnan(value)) {
    // fp8: all ones below the sign; otherwise the usual quiet NaN.
    return format.saturates ? top | fields.fraction_mask()
                            : top | (1u << (fields.fraction_bits - 1));
  }
  const double magnitude = std::abs(tolerances::round_to(dtype, value));
  if (std::isinf(magnitude)) return sign | top;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  const auto significand =
      static_cast<std::uint32_t>(std::ldexp(magnitude, fields.fraction_bits - exponent));
  if (significand <= fields.fraction_mask()) return sign | significand;  // subnormal
  const auto field = static_cast<std::uint32_t>(exponent - format.min_exponent + 1);
  return sign | (field << fields.fraction_bits) | (significand & fields.fraction_mask());
}

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
  if (is_float(dtype)) return decode_float(dtype, load(dtype, element));
  if (dtype == DROPLESS_E8M0) {
    return *element == 255 ? std::numeric_limits<double>::quiet_NaN()
                           : std::ldexp(1.0, *element - 127);
  }
  return static_cast<double>(decode_integer(dtype, element));
}

void encode(dropless_dtype dtype, double value, std::uint8_t* element) {
  if (is_float(dtype)) {
    const std::uint32_t bits = encode_float(dtype, value);
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
