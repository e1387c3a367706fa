// SPDX-License-Identifier: Apache-2.0
// Sums of rows, a block of columns at a time: all levels of the sum stay in registers, and every
// row is read once.
#include "optimized/cpu/exchange/summing.h"

#include <type_traits>

#include "optimized/cpu/simd.h"

namespace dropless::cpu::exchange {
namespace {

constexpr Index lanes = 16;
constexpr Index block = 2 * lanes;  // columns
constexpr Index line = 64;          // bytes
using Floats = float __attribute__((vector_size(4 * lanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * lanes)));
using Halves = std::uint16_t __attribute__((vector_size(2 * lanes)));

template <class To, class From>
DROPLESS_INLINE void copy_bits(To& to, const From& from) {
  static_assert(sizeof to == sizeof from);
  std::memcpy(&to, &from, sizeof to);
}

// Element: float, or std::uint16_t for bf16.
template <class Element>
DROPLESS_INLINE void load(const std::byte* from, Floats& to) {
  if constexpr (std::is_same_v<Element, float>) {
    std::memcpy(&to, from, sizeof to);
  } else {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    const Words words = __builtin_convertvector(halves, Words) << 16;
    copy_bits(to, words);
  }
}

// As round_bf16 of values.h; the result stays in the upper halves.
DROPLESS_INLINE void round_to_bf16(Floats& x) {
  Words bits;
  copy_bits(bits, x);
  const Words rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  const Words result = (bits & 0x7FFFFFFFu) > 0x7F800000u ? bits | 0x400000u : rounded;
  const Words upper = result & 0xFFFF0000u;
  copy_bits(x, upper);
}

template <class Element>
DROPLESS_INLINE void store(Floats& x, std::byte* to) {
  if constexpr (std::is_same_v<Element, float>) {
    std::memcpy(to, &x, sizeof x);
  } else {
    round_to_bf16(x);
    Words bits;
    copy_bits(bits, x);
    const Halves halves = __builtin_convertvector(bits >> 16, Halves);
    std::memcpy(to, &halves, sizeof halves);
  }
}

// One block of columns; the rows of the terms begin `offset` bytes before it.
template <class From, class To>
DROPLESS_INLINE void sum_block(const RowSum& sum, std::span<const Term> terms, Index offset,
                               std::byte* to) {
  const Floats zero = {};
  Floats total[2] = {zero, zero}, node[2] = {zero, zero}, rank[2] = {zero, zero};
  for (const Term& term : terms) {
    for (int half = 0; half < 2; ++half) {
      Floats values;
      load<From>(term.row + offset + half * lanes * Index{sizeof(From)}, values);
      rank[half] += term.weight * values;
    }
    if (!term.ends_rank) continue;
    for (int half = 0; half < 2; ++half) {
      if (sum.rounds_rank) round_to_bf16(rank[half]);
      node[half] += rank[half];
      rank[half] = zero;
    }
    if (!term.ends_node) continue;
    for (int half = 0; half < 2; ++half) {
      if (sum.rounds_node) round_to_bf16(node[half]);
      total[half] += node[half];
      node[half] = zero;
    }
  }
  for (int half = 0; half < 2; ++half) {
    store<To>(total[half], to + half * lanes * Index{sizeof(To)});
  }
}

// The last columns of every row, in a block filled up with zeros.
struct Rest {
  std::vector<std::byte> rows;
  std::vector<Term> terms;
};
[[gnu::noinline]] Rest make_rest(std::span<const Term> terms, Index offset, Index bytes,
                                 Index block_bytes) {
  Rest rest;
  rest.rows.resize(terms.size() * static_cast<std::size_t>(block_bytes));
  rest.terms.assign(terms.begin(), terms.end());
  std::byte* row = rest.rows.data();
  for (Term& term : rest.terms) {
    std::memcpy(row, term.row + offset, static_cast<std::size_t>(bytes));
    term.row = row;
    row += block_bytes;
  }
  return rest;
}

template <class From, class To>
DROPLESS_INLINE void sum_columns(const RowSum& sum, std::span<const Term> terms,
                                 std::span<const Term> ahead, std::byte* to) {
  constexpr Index size = sizeof(From), to_size = sizeof(To);
  const Index whole = sum.columns / block * block, left = sum.columns - whole;
  Rest rest;
  if (left > 0) rest = make_rest(terms, whole * size, left * size, block * size);
  std::byte last[block * to_size];
  for (Index column = 0; column < sum.columns; column += block) {
    for (const Term& next : ahead) {
      for (Index byte = 0; byte < block * size; byte += line) {
        __builtin_prefetch(next.row + column * size + byte);
      }
    }
    const bool is_whole = column < whole;
    sum_block<From, To>(sum, is_whole ? terms : rest.terms, is_whole ? column * size : 0,
                        is_whole ? to + column * to_size : last);
  }
  if (left > 0) std::memcpy(to + whole * to_size, last, static_cast<std::size_t>(left * to_size));
}

}  // namespace

void sum_rows(const RowSum& sum, std::span<const Term> terms, std::span<const Term> ahead,
              std::byte* to) {
  using Bf16 = std::uint16_t;
  const bool from_bf16 = sum.from == DROPLESS_BF16, to_bf16 = sum.to == DROPLESS_BF16;
  with_simd([&]() DROPLESS_INLINE_LAMBDA {
    if (from_bf16 && to_bf16) return sum_columns<Bf16, Bf16>(sum, terms, ahead, to);
    if (from_bf16) return sum_columns<Bf16, float>(sum, terms, ahead, to);
    if (to_bf16) return sum_columns<float, Bf16>(sum, terms, ahead, to);
    return sum_columns<float, float>(sum, terms, ahead, to);
  });
}

}  // namespace dropless::cpu::exchange
