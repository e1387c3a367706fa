// SPDX-License-Identifier: Apache-2.0
// The order in which the clusters of the sm_90a kernel work through a grouped product.
//
// A unit is two output tiles of 128 x 256 that a cluster of two blocks computes together: two tiles
// below each other, which share their part of b, or, for the last strip of a group with an odd
// number of strips, two beside each other, which share a. So a group of any size wastes nothing.
// Units of a group run through bands of 8 pairs of strips, so that what is read at the same time
// stays in L2. Every cluster takes every n-th unit; nothing depends on when a block runs.
#pragma once

#include "optimized/cuda/grouped_gemm_product.h"

namespace dropless::cuda {

constexpr int gemm_tile_m = 128, gemm_tile_n = 256, gemm_tile_k = 64;
constexpr int gemm_most_experts = 1024;

// Zones, in shared memory.
struct GemmGroups {
  int first[gemm_most_experts];
  int rows[gemm_most_experts];  // of the output: the zone, or m of wgrad
  int real[gemm_most_experts];
};

struct GemmUnit {
  int group;
  int row, column;  // of this block's tile
  int depth;        // of the contraction; 0 when both tiles lie in padding
  bool shares_b;    // else a
};

class GemmUnits {
 public:
  __device__ GemmUnits(const GroupedProduct& product, const GemmGroups& groups, int rank)
      : product_(product),
        groups_(groups),
        rank_(rank),
        tiles_n_(static_cast<int>((product.n + gemm_tile_n - 1) / gemm_tile_n)),
        index_(static_cast<int>(blockIdx.x) / 2),
        step_(static_cast<int>(gridDim.x) / 2) {
    open();
  }

  // False when there is no further one.
  __device__ bool next(GemmUnit& unit) {
    const int experts = static_cast<int>(product_.zones.groups);
    while (group_ < experts && (index_ >= units_ || !product_.selects(group_))) {
      if (product_.selects(group_)) index_ -= units_;
      ++group_;
      open();
    }
    if (group_ >= experts) return false;
    const int paired = pairs_ * tiles_n_;
    int strip, leader, column;
    unit.shares_b = index_ < paired;
    if (unit.shares_b) {
      const int band = index_ / (band_pairs * tiles_n_), inside = index_ % (band_pairs * tiles_n_);
      const int height = min(band_pairs, pairs_ - band * band_pairs);
      leader = (band * band_pairs + inside % height) * 2;
      strip = leader + rank_, column = inside / height;
    } else {
      leader = strip = pairs_ * 2;
      column = (index_ - paired) * 2 + rank_;
    }
    unit.group = group_;
    unit.row = strip * gemm_tile_m, unit.column = column * gemm_tile_n;
    if (product_.ragged_k()) {
      unit.depth = groups_.real[group_];
    } else {
      unit.depth = leader * gemm_tile_m < groups_.real[group_] ? static_cast<int>(product_.k) : 0;
    }
    index_ += step_;
    return true;
  }

 private:
  static constexpr int band_pairs = 8;

  __device__ void open() {
    if (group_ >= product_.zones.groups) return;
    const int strips = (groups_.rows[group_] + gemm_tile_m - 1) / gemm_tile_m;
    pairs_ = strips / 2;
    units_ = pairs_ * tiles_n_ + (strips % 2) * ((tiles_n_ + 1) / 2);
  }

  const GroupedProduct& product_;
  const GemmGroups& groups_;
  int rank_, tiles_n_;
  int index_, step_;  // counted from the first unit of the group
  int group_ = 0, pairs_ = 0, units_ = 0;
};

}  // namespace dropless::cuda
