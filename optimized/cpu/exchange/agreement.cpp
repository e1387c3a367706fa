// SPDX-License-Identifier: Apache-2.0
// One small round in which every rank hears what the others mean to do.
#include "optimized/cpu/exchange/agreement.h"

namespace dropless::cpu::exchange {
namespace {

struct Statement {
  std::int64_t status = DROPLESS_OK;
  std::int64_t terms[most_terms] = {};
  char why[240] = {};
};
static_assert(std::is_trivially_copyable_v<Statement>);

std::vector<Statement> gather(Handle& handle, const Statement& mine) {
  const Index ranks = handle.ranks(), own = handle.group.rank;
  std::vector<Statement> all(at(ranks));
  constexpr Index bytes = sizeof(Statement);
  const Section whole{reinterpret_cast<const std::byte*>(&mine), 1, bytes, bytes};
  Round(handle, Phase::layer).run([&](Round& round) {
    for (Index step = 0; step < ranks; ++step) round.offer((own + step) % ranks, {whole, {}, {}});
    for (Index r = 0; r < ranks; ++r) round.await(r, {whole, {}, {}});
    for (Index r = 0; r < ranks; ++r) {
      std::memcpy(&all[at(r)], round.open(r)[0].data, sizeof(Statement));
    }
  });
  return all;
}

}  // namespace

void agree(Handle& handle, const std::vector<Term>& terms, const Refusal& own) {
  Statement mine;
  mine.status = own.status;
  std::memcpy(mine.why, own.message.data(), std::min(own.message.size(), sizeof mine.why - 1));
  for (std::size_t i = 0; i < std::min(terms.size(), most_terms); ++i) {
    mine.terms[i] = terms[i].value;
  }
  std::vector<Statement> all;
  try {
    handle.refuse_if_failed();
    all = gather(handle, mine);
  } catch (const Refusal&) {
    if (own.status != DROPLESS_OK) throw own;  // says more than that the others did not come
    throw;
  }
  if (own.status != DROPLESS_OK) throw own;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].status == DROPLESS_OK) continue;
    throw Refusal{static_cast<dropless_status>(all[r].status),
                  "rank " + std::to_string(r) + ": " + all[r].why};
  }
  for (std::size_t r = 1; r < all.size(); ++r) {
    for (std::size_t i = 0; i < std::min(terms.size(), most_terms); ++i) {
      if (all[r].terms[i] == all[0].terms[i]) continue;
      refuse("rank " + std::to_string(r) + " and rank 0 call another layer: they differ in " +
             terms[i].name);
    }
  }
}

}  // namespace dropless::cpu::exchange
