// SPDX-License-Identifier: Apache-2.0
// Block scales and element codes of MXFP8, and their way back: MXFP8-1 to 8.
#include "reference/mxfp8.h"

#include <dropless/formats/dtype.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/checks.h"
#include "reference/mxfp8_layout.h"

namespace dropless::reference {
namespace {

constexpr std::uint8_t kNanByte = 255;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void check_format(dropless_dtype format) {
  if (format != DROPLESS_E4M3 && format != DROPLESS_E5M2) {
    throw Refused("dtype " + std::to_string(format) + " is not an MXFP8 element format");
  }
}

// Rows and columns of a block or tile, half open.
struct Extent {
  Index row_begin, row_end, column_begin, column_end;
};

struct Magnitude {
  double amax = 0;       // over everything but NaN, 0 if there is nothing
  bool special = false;  // NaN or Inf seen
};

Magnitude magnitude(Input x, Index columns, const Extent& extent) {
  Magnitude result;
  for (Index row = extent.row_begin; row < extent.row_end; ++row) {
    for (Index column = extent.column_begin; column < extent.column_end; ++column) {
      const double value = std::abs(x[at(row * columns + column)]);
      if (!std::isfinite(value)) result.special = true;
      if (!std::isnan(value)) result.amax = std::max(result.amax, value);
    }
  }
  return result;
}

// One direction of quantize().
struct Direction {
  std::vector<std::uint8_t> codes, scales;
  std::vector<bool> judged;
};

class Quantizer {
 public:
  Quantizer(int direction, dropless_dtype format, const QuantizeSettings& settings,
            const dropless_profile& profile, Index rows, Index columns, Input x,
            const Groups& groups)
      : row_wise_(direction == DROPLESS_BLOCKS_ROW_WISE),
        format_(format),
        square_tiles_(settings.square_tiles),
        profile_(profile),
        columns_(columns),
        x_(x),
        layout_(direction, settings.scale_layout, rows, columns, groups) {
    check_format(format);
    check_size(x.size(), rows * columns, "x");
    const bool packed = settings.scale_layout == DROPLESS_SCALES_PACKED;
    // MXFP8-7: the padding inside packed tiles is written as well.
    const int padding_byte = packed ? profile.scale_padding_byte : 0;
    result_.scales.assign(at(layout_.bytes()), static_cast<std::uint8_t>(padding_byte));
    result_.codes.assign(at(rows * columns), 0);
    result_.judged.assign(at(rows * columns), false);
  }

  Direction run() {
    for (const ScaleGroup& group : layout_.groups()) quantize_group(group);
    return std::move(result_);
  }

 private:
  // A row-wise block is 1 x 32, a column-wise one 32 x 1; blocks along the rows of a group end
  // with the group (MXFP8-1).
  void quantize_group(const ScaleGroup& group) {
    const Index height = row_wise_ ? 1 : kBlock;
    const Index width = row_wise_ ? kBlock : 1;
    for (Index row = group.zone.first; row < group.zone.end; row += height) {
      for (Index column = 0; column < columns_; column += width) {
        quantize_block(group, {row, std::min(row + height, group.zone.end), column,
                               std::min(column + width, columns_)});
      }
    }
  }

  void quantize_block(const ScaleGroup& group, const Extent& block) {
    const Zone& zone = group.zone;
    const Index position = layout_.position(group, block.row_begin, block.column_begin);
    const bool all_padding = block.row_begin >= zone.real_end;
    // MXFP8-8: a block of padding rows has scale byte 0.
    const std::uint8_t byte = all_padding ? std::uint8_t{0} : block_scale(zone, block);
    result_.scales[at(position)] = byte;
    for (Index row = block.row_begin; row < block.row_end; ++row) {
      const bool real = row < zone.real_end;  // MXFP8-6: padding is coded as zero
      for (Index column = block.column_begin; column < block.column_end; ++column) {
        const std::size_t element = at(row * columns_ + column);
        result_.codes[element] = real ? encode(x_[element], byte, format_) : std::uint8_t{0};
        result_.judged[element] = !real || byte != kNanByte;
      }
    }
  }

  std::uint8_t block_scale(const Zone& zone, const Extent& block) const {
    Extent extent = square_tiles_ ? tile_around(zone, block) : block;
    extent.row_end = std::min(extent.row_end, zone.real_end);
    const Magnitude found = magnitude(x_, columns_, extent);
    // MXFP8-4, policy block; with square tiles the tile stands for the block.
    if (found.special && profile_.special_values == DROPLESS_SPECIAL_BLOCK) return kNanByte;
    return scale_byte(found.amax, format_, profile_.scale_rule);
  }

  // MXFP8-6: tiles begin at the group's first row and at column 0.
  Extent tile_around(const Zone& zone, const Extent& block) const {
    const Index row = zone.first + (block.row_begin - zone.first) / kBlock * kBlock;
    const Index column = block.column_begin / kBlock * kBlock;
    return {row, std::min(row + kBlock, zone.end), column, std::min(column + kBlock, columns_)};
  }

  bool row_wise_;
  dropless_dtype format_;
  bool square_tiles_;
  const dropless_profile& profile_;
  Index columns_;
  Input x_;
  ScaleLayout layout_;
  Direction result_;
};

}  // namespace

std::uint8_t scale_byte(double amax, dropless_dtype format, int scale_rule) {
  check_format(format);
  if (std::isnan(amax)) return kNanByte;
  if (std::isinf(amax)) return 254;  // MXFP8-4, policy element
  if (amax == 0) return 0;
  const int emax = format == DROPLESS_E4M3 ? E4m3::emax : E5m2::emax;
  const int mantissa = format == DROPLESS_E4M3 ? E4m3::mantissa_bits : E5m2::mantissa_bits;
  int exponent = 0;
  const double s = 2 * std::frexp(std::abs(amax), &exponent);  // exact: 1 <= s < 2
  int k = exponent - 1 - emax;
  switch (scale_rule) {
    case DROPLESS_SCALE_FLOOR:
      break;
    case DROPLESS_SCALE_CEIL:
      k += s > 1 ? 1 : 0;
      break;
    case DROPLESS_SCALE_RCEIL:
      k += s > 1.75 ? 1 : 0;
      break;
    case DROPLESS_SCALE_EVEN:
      k += s >= 2 - std::ldexp(1.0, -(mantissa + 1)) ? 1 : 0;
      break;
    default:
      throw Refused("unknown scale rule " + std::to_string(scale_rule));
  }
  return static_cast<std::uint8_t>(std::clamp(k + E8m0::bias, 0, 254));
}

std::uint8_t encode(double x, std::uint8_t byte, dropless_dtype format) {
  check_format(format);
  // x / 2^k is exact in double for every fp32 x, so the code is rounded once.
  const double scaled = byte == kNanByte ? kNan : std::ldexp(x, E8m0::bias - byte);
  return format == DROPLESS_E4M3 ? E4m3::from_double(scaled, Overflow::saturate).bits
                                 : E5m2::from_double(scaled, Overflow::saturate).bits;
}

double decode(std::uint8_t code, std::uint8_t byte, dropless_dtype format) {
  check_format(format);
  if (byte == kNanByte) return kNan;
  return round_to(DROPLESS_FP32, std::ldexp(decode_bits(format, code), byte - E8m0::bias));
}

Quantized quantize(const QuantizeSettings& settings, const dropless_profile& profile, Index rows,
                   Index columns, Input x, const Groups& groups) {
  Direction row = Quantizer(DROPLESS_BLOCKS_ROW_WISE, settings.row_format, settings, profile, rows,
                            columns, x, groups)
                      .run();
  Direction column = Quantizer(DROPLESS_BLOCKS_COLUMN_WISE, settings.column_format, settings,
                               profile, rows, columns, x, groups)
                         .run();
  return {std::move(row.codes),     std::move(row.scales), std::move(column.codes),
          std::move(column.scales), std::move(row.judged), std::move(column.judged)};
}

Doubles dequantize(int direction, int scale_layout, dropless_dtype format, Index rows,
                   Index columns, std::span<const std::uint8_t> codes,
                   std::span<const std::uint8_t> scales, const Groups& groups) {
  const ScaleLayout layout(direction, scale_layout, rows, columns, groups);
  check_format(format);
  check_size(codes.size(), rows * columns, "codes");
  check_at_least(scales.size(), layout.bytes(), "scales");
  Doubles y(at(rows * columns), 0.0);
  for (const ScaleGroup& group : layout.groups()) {
    for (Index row = group.zone.first; row < group.zone.real_end; ++row) {
      for (Index column = 0; column < columns; ++column) {
        const std::uint8_t byte = scales[at(layout.position(group, row, column))];
        const std::size_t element = at(row * columns + column);
        y[element] = decode(codes[element], byte, format);
      }
    }
  }
  return y;
}

}  // namespace dropless::reference
