// SPDX-License-Identifier: Apache-2.0
// Sums of rows bit by bit as a plain loop makes them, for every type, level and instruction set;
// and copies past the caches from and to any address.
#include "optimized/cpu/exchange/summing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "optimized/cpu/exchange/stream.h"
#include "optimized/cpu/simd.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu::exchange {
namespace {

struct Rows {
  dropless_dtype dtype;
  std::vector<std::vector<std::byte>> bytes;
};

Index size_of(dropless_dtype dtype) {
  return dtype == DROPLESS_FP32 ? 4 : 2;
}

float element(const std::byte* row, dropless_dtype dtype, Index i) {
  float value = 0;
  load_run(row + i * size_of(dtype), dtype, 1, 1, &value);
  return value;
}

Rows random_rows(dropless_dtype dtype, Index count, Index columns) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  Rows rows{dtype, {}};
  for (Index r = 0; r < count; ++r) {
    std::vector<std::byte> row(static_cast<std::size_t>(columns * size_of(dtype)));
    for (Index i = 0; i < columns; ++i) {
      const float value = i % 97 == 5 ? std::nanf("") : i % 89 == 3 ? -0.0F : normal(random);
      store_run(&value, 1, row.data() + i * size_of(dtype), dtype, 1);
    }
    rows.bytes.push_back(std::move(row));
  }
  return rows;
}

// Two ranks of a node, the first with three pairs, then another node.
std::vector<Term> terms_of(const Rows& rows) {
  std::vector<Term> terms;
  for (const auto& row : rows.bytes) {
    terms.push_back({row.data(), 0.75F + 0.1F * static_cast<float>(terms.size())});
  }
  terms[2].ends_rank = terms[3].ends_rank = terms[4].ends_rank = true;
  terms[3].ends_node = terms[4].ends_node = true;
  return terms;
}

std::vector<std::byte> by_plain_loop(const RowSum& sum, const std::vector<Term>& terms) {
  std::vector<std::byte> out(static_cast<std::size_t>(sum.columns * size_of(sum.to)));
  for (Index i = 0; i < sum.columns; ++i) {
    float total = 0, node = 0, rank = 0;
    for (const Term& term : terms) {
      rank += term.weight * element(term.row, sum.from, i);
      if (!term.ends_rank) continue;
      node += sum.rounds_rank ? widen_bf16(round_bf16(rank)) : rank;
      rank = 0;
      if (!term.ends_node) continue;
      total += sum.rounds_node ? widen_bf16(round_bf16(node)) : node;
      node = 0;
    }
    store_run(&total, 1, out.data() + i * size_of(sum.to), sum.to, 1);
  }
  return out;
}

TEST(SumRows, IsThePlainLoopBitByBit) {
  for (const Isa most : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    limit_isa(most);
    for (const dropless_dtype from : {DROPLESS_FP32, DROPLESS_BF16}) {
      for (const dropless_dtype to : {DROPLESS_FP32, DROPLESS_BF16}) {
        for (const Index columns : {0, 1, 31, 32, 33, 600}) {
          const Rows rows = random_rows(from, 5, columns);
          const std::vector<Term> terms = terms_of(rows);
          for (int roundings = 0; roundings < 4; ++roundings) {
            const RowSum sum{from, to, columns, roundings % 2 == 1, roundings >= 2};
            std::vector<std::byte> got(static_cast<std::size_t>(columns * size_of(to)));
            sum_rows(sum, terms, terms, got.data());
            EXPECT_EQ(got, by_plain_loop(sum, terms))
                << isa_name() << " " << columns << " columns, roundings " << roundings;
          }
        }
      }
    }
  }
  limit_isa(Isa::avx512);
}

TEST(SumRows, OfNothingIsZero) {
  std::vector<std::byte> got(200, std::byte{0xFF});
  sum_rows({DROPLESS_BF16, DROPLESS_FP32, 50}, {}, {}, got.data());
  EXPECT_EQ(got, std::vector<std::byte>(200));
}

TEST(StreamCopy, CopiesBetweenAnyAddressesAndNothingMore) {
  std::vector<std::byte> from(700), to(700);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const Isa most : {Isa::scalar, Isa::avx512}) {
    limit_isa(most);
    for (const std::size_t begin : {0U, 1U, 16U, 63U}) {
      for (const Index bytes : {0, 1, 63, 64, 200, 513}) {
        std::fill(to.begin(), to.end(), std::byte{0});
        stream_copy(to.data() + begin, from.data() + 3, bytes);
        finish_streaming();
        std::vector<std::byte> expected(to.size());
        std::copy_n(from.begin() + 3, bytes, expected.begin() + static_cast<std::ptrdiff_t>(begin));
        EXPECT_EQ(to, expected) << begin << " " << bytes;
      }
    }
  }
  limit_isa(Isa::avx512);
}

}  // namespace
}  // namespace dropless::cpu::exchange
