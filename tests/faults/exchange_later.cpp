// SPDX-License-Identifier: Apache-2.0
// Faults of the exchange that were invented after the suite and the catalogue: one for each of ten
// operators, tried before anything was changed.
#include <algorithm>
#include <cmath>

#include "tests/faults/exchanges.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

using Plan = dropless_exchange_plan_args;
using Dispatch = dropless_exchange_dispatch_args;
using Combine = dropless_exchange_combine_args;
constexpr auto plan = &Table::exchange_plan;
constexpr auto dispatch = &Table::exchange_dispatch;
constexpr auto combine = &Table::exchange_combine;

void add(std::vector<Fault>& faults, const char* name, const char* what, const char* symptom,
         const char* trigger, std::vector<std::string> clauses, void (*plant)(Planted&)) {
  faults.push_back({.name = name,
                    .provenance = std::string("invented after the suite: operator ") + what,
                    .symptom = symptom,
                    .trigger = trigger,
                    .clauses = std::move(clauses),
                    .plant = plant});
}

void add_plans(std::vector<Fault>& faults) {
  add(faults, "exchange.ids_in_8_bits", "O2: an id that is too narrow",
      "pairs of experts above 255 go to others", "more than 256 experts",
      {"EXCHANGE-0a", "EXCHANGE-4a"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<plan>([](const auto& next, Plan& a, Seat& seat) {
          const Copy ids(a.ids);
          if (!ids.readable()) return next(a);
          const std::vector<Index> right = integers_of(a.ids);
          each_integer(ids.tensor(), [&](Index id, Index i) {
            const auto token = right.begin() + i / seat.top_k * seat.top_k;
            const bool twice = std::find(token, token + seat.top_k, id - 256) != token + seat.top_k;
            return id > 255 && !twice ? id - 256 : id;
          });
          Plan b = a;
          b.ids = ids.tensor();
          const dropless_status status = next(b);
          a.checked = b.checked;
          return status;
        });
      });
  add(faults, "exchange.nothing_sent_is_not_reported", "O4: a zero case that is dropped",
      "a rank that sends nothing to others leaves sent_bytes as it was", "a rank whose tokens stay",
      {"EXCHANGE-5b"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<plan>([](const auto& next, Plan& a, Seat&) {
          const Copy old(a.sent_bytes);
          const dropless_status status = next(a);
          if (status == DROPLESS_OK && stored(a.sent_bytes) == 0) old.write_back();
          return status;
        });
      });
  add(faults, "exchange.checks_counted_by_calls", "O12: each rank decides what all must decide",
      "a check is due after every n plans of the handle, whatever their steps",
      "a run that resumes at a later step", {"EXCHANGE-11a", "EXCHANGE-11b"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<plan>([](const auto& next, Plan& a, Seat& seat) {
          const Index asked = a.step;
          a.step = seat.plans - 1;
          const dropless_status status = next(a);
          const Index first = stored(a.first_overflow_step);
          if (a.checked != 0 && first >= 0) {
            store(a.first_overflow_step, first + asked - a.step);
          }
          return status;
        });
      });
}

void add_rows(std::vector<Fault>& faults) {
  add(faults, "exchange.padding_scales_are_one", "O1: 1 for the neutral element",
      "scales beside padding are 2^0, not zero bytes", "a zone that is not full, and scales",
      {"EXCHANGE-3d"}, [](Planted& planted) {
        planted.declare([](dropless_profile& p) {
          p.dispatch_layout = DROPLESS_DISPATCH_EXPERT_MAJOR;
          p.alignment = 16;
        });
        Exchanges exchanges(planted);
        exchanges.after<dispatch>([](Dispatch& a, Seat& seat) {
          const auto& source = seat.received().source;
          each_integer(a.row_scales, [&](Index byte, Index i) {
            const std::size_t row = at(i / row_width(view(a.row_scales)));
            return row < source.size() && source[row] < 0 ? 127 : byte;
          });
        });
      });
  add(faults, "exchange.strides_of_rows_ignored", "O6: the valid stride for the padded one",
      "received rows are written without gaps", "a receive buffer with gaps between its rows",
      {"EXCHANGE-2a", "EXCHANGE-1a", "GENERAL-0"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<dispatch>([](const auto& next, Dispatch& a, Seat&) {
          if (!has_elements(a.rows)) return next(a);
          const dropless_tensor dense = without_strides(*a.rows);
          a.rows = &dense;
          return next(a);
        });
      });
  add(faults, "exchange.registered_buffer_sent_as_it_was", "O8: a buffer without a generation",
      "a dispatch from a known address sends what was there the first time",
      "new contents in the same buffer", {"EXCHANGE-12a", "EXCHANGE-2a"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<dispatch>([](const auto& next, Dispatch& a, Seat& seat) {
          if (!has_elements(a.x)) return next(a);
          const auto address = reinterpret_cast<Index>(a.x->data);
          const auto found = std::find(seat.numbers.begin(), seat.numbers.end(), address);
          const auto place = static_cast<std::size_t>(found - seat.numbers.begin());
          if (found == seat.numbers.end()) {
            seat.numbers.push_back(address);
            seat.copies.push_back(std::make_unique<Copy>(a.x));
          } else if (view(seat.copies[place]->tensor()).size() == view(a.x).size()) {
            a.x = seat.copies[place]->tensor();
          }
          return next(a);
        });
      });
  add(faults, "exchange.scales_read_as_numbers", "O11: a type that is read as another one",
      "E8M0 scales pass through fp32: 2^-127 and NaN change", "scales of the type E8M0",
      {"EXCHANGE-2b", "EXCHANGE-2a"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.after<dispatch>([](Dispatch& a, Seat&) {
          if (!has_elements(a.row_scales) || a.row_scales->dtype != DROPLESS_E8M0) return;
          each_integer(a.row_scales,
                       [](Index byte, Index) { return byte == 255 || byte == 0 ? 1 : byte; });
        });
      });
  add(faults, "exchange.staging_of_8_kilobytes", "O13: a fixed limit",
      "of a longer row the first 8192 bytes arrive", "a hidden size above 4096 in bf16",
      {"EXCHANGE-2a", "EXCHANGE-1a"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.after<dispatch>([](Dispatch& a, Seat& seat) {
          const TensorView rows = view(a.rows);
          const Index width = row_width(rows), most = 8192 / element_bytes(rows.dtype());
          for (Index row = 0; row < seat.received().rows(); ++row) {
            for (Index i = most; i < width; ++i) rows.store_integer_flat(0, row * width + i);
          }
        });
      });
}

void add_sums(std::vector<Fault>& faults) {
  add(faults, "exchange.sums_written_in_vectors", "O5: a tail that is not written",
      "the last elements of a token are left as they were", "a hidden size that 8 does not divide",
      {"EXCHANGE-6d", "EXCHANGE-6a"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<combine>([](const auto& next, Combine& a, Seat&) {
          const Copy old(a.y);
          const dropless_status status = next(a);
          if (status != DROPLESS_OK || !has_elements(a.y)) return status;
          const TensorView y = view(a.y), before = old.elements();
          const Index width = row_width(y);
          for (Index i = 0; i < y.size(); ++i) {
            if (i % width >= width / 8 * 8) {
              y.store_integer_flat(before.load_integer_flat(i), i);
            }
          }
          return status;
        });
      });
  add(faults, "exchange.result_truncated", "O15: rounds too coarsely",
      "sums are truncated to bf16, not rounded", "a bf16 output", {"EXCHANGE-6d", "EXCHANGE-6a"},
      [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<combine>([](const auto& next, Combine& a, Seat&) {
          if (!has_elements(a.y) || a.y->dtype != DROPLESS_BF16) return next(a);
          const Copy wide(a.y, DROPLESS_FP32);
          Combine b = a;
          b.y = wide.tensor();
          const dropless_status status = next(b);
          if (status != DROPLESS_OK) return status;
          const TensorView sums = wide.elements(), y = view(a.y);
          for (Index i = 0; i < y.size(); ++i) {
            y.store_integer_flat(sums.load_integer_flat(i) >> 16 & 0xffff, i);
          }
          return status;
        });
      });
}

}  // namespace

void add_exchange_later(std::vector<Fault>& faults) {
  add_plans(faults);
  add_rows(faults);
  add_sums(faults);
}

}  // namespace dropless::faults
