// SPDX-License-Identifier: Apache-2.0
// Exchange between R virtual ranks in one process, text-book form: EXCHANGE-1 to 13.
//
//     const ExchangePlan plan = exchange_plan(profile, settings, ids_of_ranks,
//                                             exchange_capacity(profile, settings));
//     for each rank: rows[rank] = dispatch_rows(plan, rank, x_of_ranks, row_bytes);
//     ... the experts of every rank work on their rows ...
//     for each rank: y[rank] = combine(plan, rank, hidden, DROPLESS_BF16, rows_of_ranks);
//
// exchange_handle.h adds what a handle remembers from step to step.
#pragma once

#include "reference/exchange_capacity.h"
#include "reference/exchange_combine.h"
#include "reference/exchange_dispatch.h"
#include "reference/exchange_handle.h"
#include "reference/exchange_plan.h"
#include "reference/exchange_topology.h"
#include "reference/exchange_traffic.h"
