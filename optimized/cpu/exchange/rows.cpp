// SPDX-License-Identifier: Apache-2.0
// Rows in the memory of the caller.
#include "optimized/cpu/exchange/rows.h"

#include <cstring>

namespace dropless::cpu::exchange {
namespace {

// Rows of the buffer that hold no pair, as ranges [begin, end).
template <class Body>
void for_unused(const Handle& handle, Index rows, const Body& body) {
  const RowZones& zones = handle.plan.zones;
  for (std::size_t s = 0; s < zones.kept.size(); ++s) {
    for (Index row = zones.first[s] + zones.kept[s]; row < zones.first[s + 1]; ++row) body(row);
  }
  if (!handle.group.choices.zero_tail) return;
  for (Index row = zones.rows(); row < rows; ++row) body(row);
}

}  // namespace

RowSource::RowSource(const Tensor& t, Bytes& dense)
    : data_(t.data), row_bytes_(t.shape[1] * t.element), stride_(t.strides[0] * t.element) {
  if (t.inner_stride() == 1 || t.size() == 0) return;
  std::byte* to = dense.reserve(t.shape[0] * row_bytes_);
  data_ = to, stride_ = row_bytes_;
  for (Index i = 0; i < t.shape[0]; ++i) {
    for (Index j = 0; j < t.shape[1]; ++j, to += t.element) {
      std::memcpy(to, t.at(i, j), static_cast<std::size_t>(t.element));
    }
  }
}

Section RowSource::chosen(const std::vector<LinkToken>& tokens) const {
  if (tokens.empty()) return {};
  static_assert(sizeof(LinkToken) == 2 * sizeof(std::int32_t));
  Section section{data_, static_cast<Index>(tokens.size()), row_bytes_, stride_};
  section.index = &tokens.front().token;
  section.index_step = 2;
  return section;
}

Section RowSource::chosen(const std::vector<std::int32_t>& rows) const {
  if (rows.empty()) return {};
  Section section{data_, static_cast<Index>(rows.size()), row_bytes_, stride_};
  section.index = rows.data();
  return section;
}

Section RowSource::range(Index first, Index rows) const {
  if (rows == 0) return {};
  return {data_ + first * stride_, rows, row_bytes_, stride_};
}

void store_row(const std::byte* from, const Tensor& to, Index row) {
  const std::size_t element = static_cast<std::size_t>(to.element);
  if (to.shape[1] == 0) return;
  if (to.inner_stride() == 1) {
    std::memcpy(to.at(row), from, static_cast<std::size_t>(to.shape[1]) * element);
    return;
  }
  for (Index j = 0; j < to.shape[1]; ++j, from += element)
    std::memcpy(to.at(row, j), from, element);
}

void zero_unused(const Handle& handle, const Tensor& rows) {
  for_unused(handle, rows.shape[0], [&](Index row) {
    const Index columns = rows.rank < 2 ? 1 : rows.shape[1];
    for (Index j = 0; j < columns; ++j) {
      std::memset(rows.at(row, j), 0, static_cast<std::size_t>(rows.element));
    }
  });
}

void fill_unused(const Handle& handle, const Tensor& integers, std::int32_t value) {
  for_unused(handle, integers.shape[0], [&](Index row) {
    for (Index j = 0; j < integers.shape[1]; ++j) integers.as<std::int32_t>(row, j) = value;
  });
}

bool may_move(const Handle& handle) {
  handle.refuse_if_failed();
  switch (handle.plan.state) {
    case Plan::State::none:
      refuse("exchange: nothing is planned on this handle");
    case Plan::State::refused:
      throw Refusal{DROPLESS_OVERFLOW,
                    "exchange: the plan has overflowed; plan again before rows can move"};
    case Plan::State::overflowed:
      return false;
    case Plan::State::ready:
      break;
  }
  return true;
}

void check_rows(const Handle& handle, const Tensor& rows, const char* name) {
  const Index needed = handle.plan.zones.rows();
  if (rows.shape[0] < needed) {
    refuse(std::string(name) + ": " + std::to_string(rows.shape[0]) + " rows, but the plan has " +
           std::to_string(needed));
  }
}

std::string path_text(const Handle& handle) {
  return std::string("cpu/exchange/") + handle.transport_name();
}

}  // namespace dropless::cpu::exchange
