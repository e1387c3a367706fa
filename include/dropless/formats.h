// SPDX-License-Identifier: Apache-2.0
// The value formats of low-precision training: Bf16, Fp16, E4m3, E5m2 and the block scale E8m0.
//
//     #include <dropless/formats.h>
//     using namespace dropless;
//     E4m3 code = E4m3::from_float(x);         // nearest even, saturating, NaN stays NaN
//     float value = code.to_float();           // exact
//     Bf16 b = Bf16::from_double(sum);         // one rounding from double
//     E8m0 scale = E8m0::from_exponent(-3);    // 2^-3, byte 124
//     static_assert(E4m3::max().to_float() == 448.0f && E5m2::emax == 15);
//     static_assert(E8m0::from_bits(0).to_double() == 0x1p-127);
//
// C++20, header only, constexpr, host and device (DROPLESS_HOST_DEVICE), no libm. Integer rounding:
// independent of the rounding mode, of flush-to-zero and of fast-math settings. For elements whose
// dtype is known at run time see formats/dtype.h and formats/tensor_view.h.
// Sources: OCP OFP8 revision 1.0, OCP Microscaling Formats revision 1.0, IEEE 754-2019.
#pragma once

#include "dropless/formats/bf16.h"
#include "dropless/formats/e4m3.h"
#include "dropless/formats/e5m2.h"
#include "dropless/formats/e8m0.h"
#include "dropless/formats/fp16.h"
#include "dropless/formats/host_device.h"
#include "dropless/formats/small_float.h"
