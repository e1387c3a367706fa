#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare every value format with ml_dtypes and numpy: an opinion that is not NVIDIA's.

One-off, not part of ctest:
    pip install ml_dtypes numpy
    python check_with_ml_dtypes.py BUILD/tests/oracles/format_codes

Exit status 0 only when every code agrees. Any NaN code stands for NaN. Two habits of ml_dtypes 0.6
are counted apart: it converts a double by way of fp32 (rounding twice), and it rounds fp32
subnormals between 2^-127 and 1.5 * 2^-127 up to the scale 2^-126.
"""
import subprocess
import sys

import ml_dtypes
import numpy as np

FORMATS = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}


def convert(program, name, direction, numbers, result):
    done = subprocess.run([program, name, direction], input=numbers.tobytes(), capture_output=True,
                          check=True)
    return np.frombuffer(done.stdout, dtype=result)


def inputs(kind, values):
    """Values of the format, midpoints, their neighbours, all bf16 values, a sweep, random bits."""
    values = np.unique(values[np.isfinite(values)].astype(np.float64))
    middle = (values[1:] + values[:-1]) / 2
    largest = values[-1] + (values[-1] - values[-2]) / 2
    centres = np.concatenate([values, middle, [largest, values[-1] * 1.5, 0.0, -0.0]]).astype(kind)
    up, down = np.nextafter(centres, kind(np.inf)), np.nextafter(centres, kind(-np.inf))
    bf16 = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32).astype(kind)
    sweep = np.arange(0, 2**32, 1021, dtype=np.uint64).astype(np.uint32).view(np.float32)
    bits = np.random.default_rng(7).integers(0, 2**64, 1_000_000, dtype=np.uint64)
    exponent = np.random.default_rng(8).integers(1023 - 160, 1023 + 160, bits.size, dtype=np.uint64)
    near = (bits & np.uint64(0x800FFFFFFFFFFFFF)) | (exponent << np.uint64(52))
    random = np.concatenate([bits.view(np.float64), near.view(np.float64)])
    parts = [centres, up, down, bf16, sweep, random]
    return np.concatenate([part.astype(kind) for part in parts])


def differences(ours, theirs, dtype):
    ours_nan = np.isnan(ours.view(dtype).astype(np.float32))
    theirs_nan = np.isnan(theirs.view(dtype).astype(np.float32))
    return (ours_nan != theirs_nan) | (~ours_nan & (ours != theirs))


def main():
    program = sys.argv[1]
    np.seterr(all="ignore")
    bad = 0
    for name, dtype in FORMATS.items():
        storage = np.uint8 if np.dtype(dtype).itemsize == 1 else np.uint16
        codes = np.arange(np.iinfo(storage).max + 1, dtype=np.uint32).astype(storage)
        theirs = codes.view(dtype).astype(np.float32)
        ours = convert(program, name, "decode", codes, np.float32)
        both_nan = np.isnan(ours) & np.isnan(theirs)
        same = both_nan | (ours.view(np.uint32) == theirs.view(np.uint32))
        print(f"{name} decode: {codes.size} codes, {np.sum(~same)} differences")
        bad += int(np.sum(~same))
        for kind, direction in ((np.float32, "encode32"), (np.float64, "encode64")):
            numbers = inputs(kind, theirs)
            ours = convert(program, name, direction, numbers, storage)
            via = numbers.astype(dtype).view(storage)
            wrong = differences(ours, via, dtype)
            note = ""
            if kind is np.float64:
                # theirs took the detour over fp32 exactly where ours, given that fp32, agrees
                detour = convert(program, name, "encode32", numbers.astype(np.float32), storage)
                twice = wrong & ~differences(detour, via, dtype)
                twice &= numbers != numbers.astype(np.float32)
                wrong &= ~twice
                note += f", {np.sum(twice)} rounded twice by ml_dtypes"
            if name == "e8m0":
                below = wrong & (numbers > 2.0**-127) & (numbers < 1.5 * 2.0**-127) & (via == 1)
                wrong &= ~below
                note += f", {np.sum(below)} fp32 subnormals that ml_dtypes rounds up"
            print(f"{name} {direction}: {numbers.size} numbers, {np.sum(wrong)} differences{note}")
            for i in np.flatnonzero(wrong)[:5]:
                print(f"    {float(numbers[i]).hex()}: ours {ours[i]:#x}, theirs {via[i]:#x}")
            bad += int(np.sum(wrong))
    print("ml_dtypes", ml_dtypes.__version__, "numpy", np.__version__,
          "agree" if bad == 0 else f"{bad} DIFFERENCES")
    return 0 if bad == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
