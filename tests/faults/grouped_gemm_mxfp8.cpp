// SPDX-License-Identifier: Apache-2.0
// Faults of MXFP8 operands: formats, scales and their layouts.
#include <algorithm>
#include <cmath>

#include "tests/faults/products.h"

namespace dropless::faults {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// The scales of one operand, as bytes that can be read and changed by element.
class Scales {
 public:
  Scales(const dropless_operand& operand, int direction, std::vector<Index> offsets)
      : direction_(direction),
        layout_(operand.scale_layout),
        offsets_(std::move(offsets)),
        copy_(operand.scales) {
    const TensorView values = view(operand.values);
    columns_ = values.shape(values.rank() - 1);
    rows_ = columns_ == 0 ? 0 : values.size() / columns_;
  }
  [[nodiscard]] Index rows() const { return offsets_.empty() ? rows_ : offsets_.back(); }
  [[nodiscard]] Index columns() const { return columns_; }
  [[nodiscard]] Index position(Index row, Index column) const {
    return reference::scale_position(direction_, layout_, rows_, columns_, row, column,
                                     {offsets_, {}});
  }
  [[nodiscard]] const Copy& copy() const { return copy_; }
  [[nodiscard]] bool row_wise() const { return direction_ == DROPLESS_BLOCKS_ROW_WISE; }

 private:
  int direction_, layout_;
  Index rows_ = 0, columns_ = 0;
  std::vector<Index> offsets_;
  Copy copy_;
};

int left_direction(const Wgrad&) {
  return DROPLESS_BLOCKS_COLUMN_WISE;
}
template <class Args>
int left_direction(const Args&) {
  return DROPLESS_BLOCKS_ROW_WISE;
}
int right_direction(const Fprop&) {
  return DROPLESS_BLOCKS_ROW_WISE;
}
template <class Args>
int right_direction(const Args&) {
  return DROPLESS_BLOCKS_COLUMN_WISE;
}

// change(scales), for the left operand of calls with MXFP8 operands that are legal.
template <class Change>
void change_left_scales(Planted& planted, Change change) {
  around_products(planted, [change](const auto& next, auto& a) -> dropless_status {
    const bool mxfp8 = is_readable(left_of(a)) && left_of(a)->scales != nullptr &&
                       is_readable(output_of(a)) && a.offsets != nullptr;
    if (!mxfp8) return next(a);
    const Copy scratch(output_of(a));
    auto trial = a;
    output_of(trial) = scratch.tensor();
    if (const dropless_status status = next(trial); status != DROPLESS_OK) return status;
    const Scales scales(*left_of(a), left_direction(a), integers_of(a.offsets));
    change(scales);
    const dropless_operand left = with_scales(*left_of(a), scales.copy().tensor());
    left_of(a) = &left;
    return next(a);
  });
}

void add_formats(std::vector<Fault>& faults) {
  faults.push_back({.name = "grouped_gemm.one_format_for_both_operands",
                    .provenance = "cuBLAS 12.6 [4640468]; Primus-Turbo 349",
                    .symptom = "E5M2 gradients are read as E4M3",
                    .trigger = "the hybrid recipe",
                    .clauses = {"GROUPED_GEMM-7a"},
                    .plant = [](Planted& planted) {
                      around_products(planted, [](const auto& next, auto& a) {
                        if (!is_readable(left_of(a)) || !is_readable(right_of(a)) ||
                            left_of(a)->scales == nullptr) {
                          return next(a);
                        }
                        dropless_tensor values = *left_of(a)->values;
                        values.dtype = right_of(a)->values->dtype;
                        const dropless_operand left = with_values(*left_of(a), &values);
                        left_of(a) = &left;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.scales_ignored",
                    .provenance = "flashinfer-bench 377: all scales were 1 in the test",
                    .symptom = "codes are multiplied unscaled",
                    .trigger = "scales other than 1",
                    .clauses = {"GROUPED_GEMM-7a", "GROUPED_GEMM-7b"},
                    .plant = [](Planted& planted) {
                      change_left_scales(planted, [](const Scales& scales) {
                        each_integer(scales.copy().tensor(),
                                     [](Index, Index) { return Index{127}; });
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.scale_slice_not_advanced",
                    .provenance = "TIRx-kernels 5",
                    .symptom = "every block is multiplied by the scale of the first",
                    .trigger = "more than one block along the contraction",
                    .clauses = {"GROUPED_GEMM-7b", "GROUPED_GEMM-7a"},
                    .plant = [](Planted& planted) {
                      change_left_scales(planted, [](const Scales& scales) {
                        if (!scales.row_wise()) return;
                        const TensorView bytes = scales.copy().elements();
                        for (Index row = 0; row < scales.rows(); ++row) {
                          for (Index c = 32; c < scales.columns(); c += 32) {
                            bytes.store_integer_flat(
                                bytes.load_integer_flat(scales.position(row, 0)),
                                scales.position(row, c));
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.scale_of_the_next_row",
                    .provenance = "numerics: scale taken from next row; vllm 53345",
                    .symptom = "every row is multiplied by the scales of its neighbour",
                    .trigger = "invisible where neighbours have equal scales",
                    .clauses = {"GROUPED_GEMM-7b", "GROUPED_GEMM-7a"},
                    .plant = [](Planted& planted) {
                      change_left_scales(planted, [](const Scales& scales) {
                        if (!scales.row_wise()) return;
                        const TensorView bytes = scales.copy().elements();
                        for (Index row = 0; row + 1 < scales.rows(); ++row) {
                          for (Index c = 0; c < scales.columns(); c += 32) {
                            bytes.store_integer_flat(
                                bytes.load_integer_flat(scales.position(row + 1, c)),
                                scales.position(row, c));
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.one_scale_doubled_per_row",
                    .provenance = "numerics: one block scale x2 per row",
                    .symptom = "one block of each row counts twice",
                    .trigger = "always; 0.2 % of same-sign outputs leave 1.6e-2",
                    .clauses = {"GROUPED_GEMM-7a", "GROUPED_GEMM-7b"},
                    .plant = [](Planted& planted) {
                      change_left_scales(planted, [](const Scales& scales) {
                        const TensorView bytes = scales.copy().elements();
                        const Index blocks = (scales.columns() + 31) / 32;
                        for (Index row = 0; row < scales.rows(); ++row) {
                          const Index c = row % std::max<Index>(blocks, 1) * 32;
                          if (c >= scales.columns()) continue;
                          const Index i = scales.position(row, c);
                          const Index byte = bytes.load_integer_flat(i);
                          if (byte < 254 && scales.row_wise())
                            bytes.store_integer_flat(byte + 1, i);
                        }
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.small_scales_flushed",
                    .provenance = "Transformer Engine 3262; numerics: byte 0 is 2^-127",
                    .symptom = "blocks with scale byte 0 count as zero",
                    .trigger = "scale byte 0",
                    .clauses = {"GROUPED_GEMM-7c"},
                    .plant = [](Planted& planted) {
                      around_products(planted, [](const auto& next, auto& a) -> dropless_status {
                        const bool mxfp8 = is_readable(left_of(a)) &&
                                           left_of(a)->scales != nullptr &&
                                           is_readable(output_of(a)) && a.offsets != nullptr;
                        if (!mxfp8) return next(a);
                        const Copy scratch(output_of(a));
                        auto trial = a;
                        output_of(trial) = scratch.tensor();
                        if (const dropless_status s = next(trial); s != DROPLESS_OK) return s;
                        const Scales scales(*left_of(a), left_direction(a), integers_of(a.offsets));
                        const Copy codes(left_of(a)->values);
                        for (Index row = 0; row < scales.rows(); ++row) {
                          for (Index c = 0; c < scales.columns(); ++c) {
                            const Index byte =
                                scales.copy().elements().load_integer_flat(scales.position(row, c));
                            if (byte == 0) codes.elements().store_integer(0, row, c);
                          }
                        }
                        const dropless_operand left = with_values(*left_of(a), codes.tensor());
                        left_of(a) = &left;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.large_scales_clamped",
                    .provenance = "operator O13: fixed limit (E8M0 through a narrower exponent)",
                    .symptom = "scale bytes above 200 are taken for 200",
                    .trigger = "very large scales",
                    .clauses = {"GROUPED_GEMM-7c"},
                    .plant = [](Planted& planted) {
                      change_left_scales(planted, [](const Scales& scales) {
                        each_integer(scales.copy().tensor(), [](Index byte, Index) {
                          return byte == 255 ? byte : std::min<Index>(byte, 200);
                        });
                      });
                    }});
}

// Weight scales taken from another expert; plain where the scales are linear.
void add_weights(std::vector<Fault>& faults) {
  faults.push_back({.name = "grouped_gemm.weight_scales_of_the_first_expert",
                    .provenance = "Transformer Engine 1128",
                    .symptom = "scales come from a base offset, not from the expert's weight",
                    .trigger = "experts with different weight scales",
                    .clauses = {"GROUPED_GEMM-7a", "GROUPED_GEMM-7b"},
                    .plant = [](Planted& planted) {
                      around_row_products(planted, [](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || right_of(a)->scales == nullptr) return status;
                        const TensorView w = view(right_of(a)->values);
                        const std::vector<Index> offsets =
                            reference::weight_offsets(w.shape(0), w.shape(1));
                        const Scales scales(*right_of(a), right_direction(a), offsets);
                        const TensorView bytes = scales.copy().elements();
                        for (Index row = w.shape(1); row < scales.rows(); ++row) {
                          for (Index c = 0; c < scales.columns(); ++c) {
                            bytes.store_integer_flat(
                                view(right_of(a)->scales)
                                    .load_integer_flat(scales.position(row % w.shape(1), c)),
                                scales.position(row, c));
                          }
                        }
                        const dropless_operand right =
                            with_scales(*right_of(a), scales.copy().tensor());
                        right_of(a) = &right;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.column_copy_of_weights_is_stale",
                    .provenance = "mcore-bridge 125; Transformer Engine 1593",
                    .symptom = "dgrad is near zero",
                    .trigger = "column-wise weights that were never updated",
                    .clauses = {"GROUPED_GEMM-7a", "GROUPED_GEMM-0b"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::gemm_dgrad>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.w->scales == nullptr) return status;
                        const Copy codes(a.w->values);
                        each_integer(codes.tensor(), [](Index, Index) { return Index{0}; });
                        const dropless_operand w = with_values(*a.w, codes.tensor());
                        a.w = &w;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.scale_layout_ignored",
                    .provenance = "DeepGEMM 403; PaddleFleet 1474",
                    .symptom = "packed scales are read as if they were linear",
                    .trigger = "packed scales",
                    .clauses = {"GROUPED_GEMM-7a", "GROUPED_GEMM-7b"},
                    .plant = [](Planted& planted) {
                      change_left_scales(planted, [](const Scales& scales) {
                        if (!scales.row_wise()) return;
                        const std::vector<Index> bytes = integers_of(scales.copy().tensor());
                        const Index blocks = (scales.columns() + 31) / 32;
                        for (Index row = 0; row < scales.rows(); ++row) {
                          for (Index c = 0; c < blocks; ++c) {
                            scales.copy().elements().store_integer_flat(
                                bytes[at(row * blocks + c)], scales.position(row, c * 32));
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "grouped_gemm.scale_padding_is_read",
                    .provenance = "triton 10772; vllm 47323; Transformer Engine 3484",
                    .symptom = "NaN when the padding of the scales is dirty",
                    .trigger = "packed scales whose last tile is not full",
                    .clauses = {"GROUPED_GEMM-7a", "MXFP8-7c"},
                    .plant = [](Planted& planted) {
                      around_row_products(planted, [](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || left_of(a)->scales == nullptr ||
                            left_of(a)->scale_layout != DROPLESS_SCALES_PACKED) {
                          return status;
                        }
                        const Scales scales(*left_of(a), DROPLESS_BLOCKS_ROW_WISE,
                                            integers_of(a.offsets));
                        const Index blocks = (scales.columns() + 31) / 32;
                        if (blocks % 4 == 0) return status;
                        for (const Zone& zone : zones_of_call(a)) {
                          for (Index row = zone.first; row < zone.real_end; ++row) {
                            const Index beyond = scales.position(row, (blocks - 1) * 32) + 1;
                            if (scales.copy().elements().load_integer_flat(beyond) != 255) continue;
                            for (Index c = 0; c < view(output_of(a)).shape(1); ++c) {
                              view(output_of(a)).store(std::nan(""), row, c);
                            }
                          }
                        }
                        return status;
                      });
                    }});
}

}  // namespace

void add_gemm_mxfp8(std::vector<Fault>& faults) {
  add_formats(faults);
  add_weights(faults);
}

}  // namespace dropless::faults
