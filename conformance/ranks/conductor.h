// SPDX-License-Identifier: Apache-2.0
// The process that leads the rank processes of a group. Towards the supervisor it is a worker like
// any other (runner/worker.h), so a group is lost, replaced and timed like one process.
//
// It hands a case to all ranks, carries their gatherings, hears where each of them is, and makes
// one verdict. A rank that dies, or leaves the case with a failure, gives the others a grace period
// to find out by themselves (EXCHANGE-14); who is still there then is ended. It keeps the time
// limit of the case; the supervisor, which knows less, comes after it. After anything but a clean
// verdict it ends, and all ranks with it.
#pragma once

#include "conformance/runner/worker.h"

namespace dropless::conformance {

// Serves until the requests end. Returns the exit code; leave with _exit.
int conduct(const WorkerOptions& options);

}  // namespace dropless::conformance
