// SPDX-License-Identifier: Apache-2.0
// Blocks of a quantise call, and the ways to change them.
#include "tests/faults/quantisers.h"

#include <algorithm>
#include <cmath>

namespace dropless::faults {
namespace {

struct OwnedGroups {
  std::vector<Index> offsets, counts;
  explicit OwnedGroups(const dropless_quantize_args& a)
      : offsets(integers_of(a.offsets)), counts(integers_of(a.counts)) {}
  [[nodiscard]] reference::Groups groups() const { return {offsets, counts}; }
};

void finish(Block& block, const Direction& direction, const TensorView& x,
            std::vector<Block>& blocks) {
  for (const Index position : block.positions) {
    const double value = x.load_flat(position);
    block.x.push_back(value);
    if (!std::isnan(value)) block.amax = std::max(block.amax, std::fabs(value));
  }
  block.byte =
      static_cast<std::uint8_t>(view(direction.scales).load_integer_flat(block.scale_position));
  blocks.push_back(std::move(block));
}

}  // namespace

std::vector<Direction> directions_of(const dropless_quantize_args& args) {
  std::vector<Direction> directions;
  if (args.row_codes != nullptr) {
    directions.push_back({DROPLESS_BLOCKS_ROW_WISE, args.row_codes, args.row_scales});
  }
  if (args.column_codes != nullptr) {
    directions.push_back({DROPLESS_BLOCKS_COLUMN_WISE, args.column_codes, args.column_scales});
  }
  return directions;
}

Index scale_position(const dropless_quantize_args& args, int direction, Index row, Index column) {
  const OwnedGroups groups(args);
  const TensorView x = view(args.x);
  return reference::scale_position(direction, args.scale_layout, x.shape(0), x.shape(1), row,
                                   column, groups.groups());
}

std::vector<Block> blocks_of(const dropless_quantize_args& args, const Direction& direction) {
  const TensorView x = view(args.x);
  const OwnedGroups groups(args);
  const Index columns = x.shape(1);
  std::vector<Block> blocks;
  const auto position = [&](Index row, Index column) {
    return reference::scale_position(direction.direction, args.scale_layout, x.shape(0), columns,
                                     row, column, groups.groups());
  };
  for (const Zone& zone : zones_of(args.offsets, args.counts, x.shape(0))) {
    if (direction.direction == DROPLESS_BLOCKS_ROW_WISE) {
      for (Index row = zone.first; row < zone.real_end; ++row) {
        for (Index first = 0; first < columns; first += 32) {
          Block block{direction.codes->dtype, 0, 0, {}, {}, position(row, first)};
          for (Index c = first; c < std::min(first + 32, columns); ++c) {
            block.positions.push_back(row * columns + c);
          }
          finish(block, direction, x, blocks);
        }
      }
      continue;
    }
    for (Index first = zone.first; first < zone.real_end; first += 32) {
      for (Index c = 0; c < columns; ++c) {
        Block block{direction.codes->dtype, 0, 0, {}, {}, position(first, c)};
        for (Index row = first; row < std::min(first + 32, zone.real_end); ++row) {
          block.positions.push_back(row * columns + c);
        }
        finish(block, direction, x, blocks);
      }
    }
  }
  return blocks;
}

void change_bytes(Planted& planted, ByteChange change) {
  planted.after<&Table::quantize>([change](auto& a) {
    if (a.square_tiles != 0) return;
    for (const Direction& direction : directions_of(a)) {
      for (const Block& block : blocks_of(a, direction)) {
        const std::uint8_t byte = change(block);
        if (byte == block.byte) continue;
        view(direction.scales).store_integer_flat(byte, block.scale_position);
        for (std::size_t i = 0; i < block.x.size(); ++i) {
          view(direction.codes)
              .store_integer_flat(reference::encode(block.x[i], byte, block.format),
                                  block.positions[i]);
        }
      }
    }
  });
}

void change_codes(Planted& planted, CodeChange change) {
  planted.after<&Table::quantize>([change](auto& a) {
    for (const Direction& direction : directions_of(a)) {
      for (const Block& block : blocks_of(a, direction)) {
        for (std::size_t i = 0; i < block.x.size(); ++i) {
          const TensorView codes = view(direction.codes);
          const auto right = static_cast<std::uint8_t>(codes.load_integer_flat(block.positions[i]));
          codes.store_integer_flat(change(block.x[i], block, right), block.positions[i]);
        }
      }
    }
  });
}

void change_input(Planted& planted, ValueChange change) {
  planted.around<&Table::quantize>([change](const auto& next, auto& a) {
    Copy x(a.x);
    if (x.readable()) each(x.tensor(), [&](double v, Index) { return change(v); });
    a.x = x.tensor();
    return next(a);
  });
}

std::uint8_t clamped_byte(double exponent) {
  return static_cast<std::uint8_t>(std::clamp(exponent + 127, 0.0, 254.0));
}

double largest(dropless_dtype format) {
  return format == DROPLESS_E5M2 ? 57344 : 448;
}

}  // namespace dropless::faults
