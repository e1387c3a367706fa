// SPDX-License-Identifier: Apache-2.0
// Refusals that only the device can see (GENERAL-3: values in device memory). Kernels that check
// values leave the reason in a word of device memory; every kernel that writes outputs looks at it
// first and does nothing when it is set; synchronize() reports and clears it. One word for every
// stream, so that a refused call cannot disturb another stream.
//
//     if (id >= experts) refuse_on_device(word, DeviceReason::id_out_of_range);   in a check
//     if (*word != 0) return;                                                     in a kernel
#pragma once

namespace dropless::cuda {

enum class DeviceReason : int {
  none = 0,
  id_out_of_range,
  duplicate_id,
  offsets_do_not_begin_at_zero,
  falling_offsets,
  offsets_beyond_the_buffer,
  count_outside_its_zone,
  source_too_short,
  label_out_of_range,
  falling_boundaries,
  count_is_negative,
  row_map_out_of_range,
  scales_too_short
};

inline const char* text_of(DeviceReason reason) {
  switch (reason) {
    case DeviceReason::none:
      return "";
    case DeviceReason::id_out_of_range:
      return "ids: below -1 or not below the number of experts";
    case DeviceReason::duplicate_id:
      return "ids: an expert twice in one token";
    case DeviceReason::offsets_do_not_begin_at_zero:
      return "offsets: do not begin at 0";
    case DeviceReason::falling_offsets:
      return "offsets: falling";
    case DeviceReason::offsets_beyond_the_buffer:
      return "offsets: beyond the buffer";
    case DeviceReason::count_outside_its_zone:
      return "counts: outside their zone";
    case DeviceReason::source_too_short:
      return "source: shorter than the rows needed";
    case DeviceReason::label_out_of_range:
      return "labels: not below the number of classes";
    case DeviceReason::falling_boundaries:
      return "sequence_boundaries: not ascending from 0 to T";
    case DeviceReason::count_is_negative:
      return "counts: negative";
    case DeviceReason::row_map_out_of_range:
      return "row_map: not below the number of rows";
    case DeviceReason::scales_too_short:
      return "scales: shorter than the blocks of the zones";
  }
  return "values in device memory";
}

#ifdef __CUDACC__
__device__ inline void refuse_on_device(int* word, DeviceReason reason) {
  atomicCAS(word, 0, static_cast<int>(reason));
}
#endif

}  // namespace dropless::cuda
