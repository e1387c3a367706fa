// SPDX-License-Identifier: Apache-2.0
// Makes MPI a transport of the CPU exchange: target dropless::cpu_mpi.
//
//     MPI_Init(&argc, &argv);
//     dropless::cpu::offer_mpi_transport();   // once; from then on exchange_open may choose it
#pragma once

namespace dropless::cpu {

// exchange_open takes MPI when it is initialised, and rank and number of ranks are those of
// MPI_COMM_WORLD on every rank. Handles must be closed before MPI_Finalize.
void offer_mpi_transport();

}  // namespace dropless::cpu
