// SPDX-License-Identifier: Apache-2.0
// MXFP8 quantisation, both directions from one pass over the tensor. MXFP8-1 to 4 and 6 to 8.
//
// The unit of work is a stripe: 32 rows of a zone (fewer at its end), which are one row of
// column-wise blocks and one row of square tiles.
#include <optional>

#include "optimized/cpu/mxfp8_blocks.h"
#include "optimized/cpu/operations.h"
#include "optimized/cpu/scales.h"

namespace dropless::cpu {
namespace {

struct Direction {
  Tensor codes;
  std::optional<ScaleMap> scales;
  [[nodiscard]] bool wanted() const { return codes.given; }
};

Direction read_direction(const dropless_tensor* codes_given, const dropless_tensor* scales_given,
                         const char* name, bool column_wise, int layout, const Tensor& x,
                         const Zones& zones) {
  const std::string scales_name = std::string(name) + "_scales";
  const std::string codes_name = std::string(name) + "_codes";
  if ((codes_given == nullptr) != (scales_given == nullptr)) {
    refuse(codes_name + " and " + scales_name + ": only one given");
  }
  Direction direction;
  if (codes_given == nullptr) return direction;
  direction.codes = tensor(codes_given, codes_name.c_str(), code_dtypes, {x.shape[0], x.shape[1]});
  direction.scales = ScaleMap(scales_given, scales_name.c_str(), column_wise, layout, x.shape[0],
                              x.shape[1], zones);
  return direction;
}

struct Stripe {
  Index group, index;          // of the group's stripes
  Index first, real_end, end;  // rows of the matrix
  Index real() const { return real_end - first; }
};

std::vector<Stripe> make_stripes(const Zones& zones) {
  std::vector<Stripe> stripes;
  for (Index g = 0; g < zones.groups(); ++g) {
    for (Index row = zones.first(g), i = 0; row < zones.end(g); row += block_width, ++i) {
      const Index end = std::min(zones.end(g), row + block_width);
      stripes.push_back({g, i, row, std::clamp(zones.real(g), row, end), end});
    }
  }
  return stripes;
}

// Source: float or std::uint16_t (bf16).
template <class Source>
class Quantizer {
 public:
  Quantizer(const Tensor& x, const Direction& row, const Direction& column, bool square)
      : x_(x), row_(row), column_(column), square_(square), columns_(x.shape[1]) {}

  void run(const Stripe& stripe) const {
    std::vector<Source> copy;
    const Source* x = reinterpret_cast<const Source*>(x_.at(stripe.first, 0));
    Index stride = x_.strides[0];
    if (x_.inner_stride() != 1) {
      copy = dense(stripe);
      x = copy.data();
      stride = columns_;
    }
    std::vector<std::uint32_t> tiles;
    if (square_) tiles = tile_amax(x, stride, stripe);
    const std::uint32_t* tile = square_ ? tiles.data() : nullptr;
    if (row_.wanted()) row_wise(x, stride, stripe, tile);
    if (column_.wanted()) column_wise(x, stride, stripe, tile);
  }

 private:
  // The stripe's real rows with neighbouring columns next to each other.
  std::vector<Source> dense(const Stripe& stripe) const {
    std::vector<Source> copy;
    copy.reserve(static_cast<std::size_t>(stripe.real() * columns_));
    for (Index i = 0; i < stripe.real(); ++i) {
      for (Index j = 0; j < columns_; ++j) copy.push_back(x_.as<Source>(stripe.first + i, j));
    }
    return copy;
  }

  // A tile at the right edge, filled up with zeros.
  struct Padded {
    Padded(const Source* x, Index stride, Index rows, Index columns) {
      for (Index i = 0; i < rows; ++i)
        std::copy_n(x + i * stride, columns, values + i * block_width);
    }
    Source values[block_width * block_width] = {};
  };

  // Largest magnitude of every 32 x 32 tile of the stripe (MXFP8-6).
  std::vector<std::uint32_t> tile_amax(const Source* x, Index stride, const Stripe& stripe) const {
    std::vector<std::uint32_t> tiles;
    for (Index column = 0; column < columns_; column += block_width) {
      const Index n = std::min(block_width, columns_ - column);
      if (n == block_width) {
        tiles.push_back(tile_magnitude(x + column, stride, stripe.real()));
      } else {
        const Padded padded(x + column, stride, stripe.real(), n);
        tiles.push_back(tile_magnitude(padded.values, block_width, stripe.real()));
      }
    }
    return tiles;
  }

  void row_wise(const Source* x, Index stride, const Stripe& stripe,
                const std::uint32_t* tiles) const {
    const dropless_dtype format = row_.codes.dtype;
    const Index full = columns_ / block_width, blocks = ceil_div(columns_, block_width);
    const bool dense_codes = row_.codes.inner_stride() == 1;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(blocks), 0);
    std::vector<std::uint8_t> spread(static_cast<std::size_t>(blocks * block_width), 0);
    for (Index row = stripe.first; row < stripe.end; ++row) {
      if (row < stripe.real_end) {
        const Source* from = x + (row - stripe.first) * stride;
        std::uint8_t* to = dense_codes ? &row_.codes.template as<std::uint8_t>(row) : spread.data();
        quantize_row(format, from, full, tiles, to, bytes.data());
        if (full < blocks) {
          Source last[block_width] = {};  // zero-padded
          std::uint8_t codes[block_width];
          const Index n = columns_ - full * block_width;
          std::copy_n(from + full * block_width, n, last);
          quantize_row(format, last, 1, tiles == nullptr ? nullptr : tiles + full, codes,
                       bytes.data() + full);
          std::copy_n(codes, n, to + full * block_width);
        }
        if (!dense_codes) scatter(spread.data(), row_.codes, row, 0, columns_);
      } else {
        std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});
        zero_codes(row_.codes, row);
      }
      std::uint8_t* scales =
          row_.scales->at(stripe.group, stripe.index * block_width + row - stripe.first, 0);
      for (Index b = 0; b < blocks; ++b) {
        scales[row_.scales->block_step(b)] = bytes[static_cast<std::size_t>(b)];
      }
    }
  }

  void column_wise(const Source* x, Index stride, const Stripe& stripe,
                   const std::uint32_t* tiles) const {
    const dropless_dtype format = column_.codes.dtype;
    const Tensor& out = column_.codes;
    for (Index column = 0; column < columns_; column += block_width) {
      const Index n = std::min(block_width, columns_ - column);
      const std::uint32_t* tile = tiles == nullptr ? nullptr : tiles + column / block_width;
      std::uint8_t bytes[block_width];
      if (n == block_width && out.inner_stride() == 1) {
        quantize_columns(format, x + column, stride, stripe.real(), tile,
                         &out.as<std::uint8_t>(stripe.first, column), out.strides[0], bytes);
      } else {
        const Padded padded(x + column, stride, stripe.real(), n);
        std::uint8_t codes[block_width * block_width];
        quantize_columns(format, padded.values, block_width, stripe.real(), tile, codes,
                         block_width, bytes);
        for (Index i = 0; i < stripe.real(); ++i) {
          scatter(codes + i * block_width, out, stripe.first + i, column, n);
        }
      }
      for (Index j = 0; j < n; ++j) {
        *column_.scales->at(stripe.group, stripe.index, column + j) = bytes[j];
      }
    }
    for (Index row = stripe.real_end; row < stripe.end; ++row) zero_codes(out, row);
  }

  static void scatter(const std::uint8_t* from, const Tensor& out, Index row, Index column,
                      Index n) {
    for (Index j = 0; j < n; ++j) out.as<std::uint8_t>(row, column + j) = from[j];
  }
  static void zero_codes(const Tensor& out, Index row) {
    for (Index j = 0; j < out.shape[1]; ++j) out.as<std::uint8_t>(row, j) = 0;
  }

  const Tensor& x_;
  const Direction &row_, &column_;
  bool square_;
  Index columns_;
};

template <class Source>
void quantize_stripes(int threads, const std::vector<Stripe>& stripes,
                      const Quantizer<Source>& quantizer, Index grain) {
  parallel_ranges(threads, static_cast<Index>(stripes.size()), grain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) quantizer.run(stripes[static_cast<std::size_t>(i)]);
  });
}

}  // namespace

void quantize(Call& call, const dropless_quantize_args& args) {
  const Tensor x = tensor(args.x, "x", floats, {any, any});
  const Zones zones = read_zones(args.offsets, args.counts, x.shape[0]);
  refuse_if(
      args.scale_layout != DROPLESS_SCALES_LINEAR && args.scale_layout != DROPLESS_SCALES_PACKED,
      "scale_layout: unknown");
  const Direction row =
      read_direction(args.row_codes, args.row_scales, "row", false, args.scale_layout, x, zones);
  const Direction column = read_direction(args.column_codes, args.column_scales, "column", true,
                                          args.scale_layout, x, zones);
  if (args.scale_layout == DROPLESS_SCALES_PACKED) {
    parallel_for(call.threads(), zones.groups(), [&](Index g) {
      if (row.wanted()) row.scales->clear_group(g);
      if (column.wanted()) column.scales->clear_group(g);
    });
  }
  if (x.size() == 0) return call.ran_simd();
  const std::vector<Stripe> stripes = make_stripes(zones);
  const bool square = args.square_tiles != 0;
  const Index grain = rows_per_task(x.shape[1] * x.element * block_width);
  if (x.dtype == DROPLESS_FP32) {
    quantize_stripes(call.threads(), stripes, Quantizer<float>(x, row, column, square), grain);
  } else {
    quantize_stripes(call.threads(), stripes, Quantizer<std::uint16_t>(x, row, column, square),
                     grain);
  }
  call.ran_simd();
}

}  // namespace dropless::cpu
