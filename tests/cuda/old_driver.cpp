// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 of the CUDA version DRIVER_VERSION and with no function but that which says so:
// the CUDA runtime does not get further with a driver that is too old for it.

extern "C" __attribute__((visibility("default"))) int cuDriverGetVersion(int* version);

int cuDriverGetVersion(int* version) {
  *version = DRIVER_VERSION;
  return 0;
}
