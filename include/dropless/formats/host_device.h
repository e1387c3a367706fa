// SPDX-License-Identifier: Apache-2.0
// DROPLESS_HOST_DEVICE marks what both host and device code may call; it is empty outside nvcc.
#pragma once

#ifdef __CUDACC__
#define DROPLESS_HOST_DEVICE __host__ __device__
#else
#define DROPLESS_HOST_DEVICE
#endif
