// SPDX-License-Identifier: Apache-2.0
// format_codes FORMAT encode32|encode64|decode: raw numbers on stdin, raw answers on stdout.
//
// The bridge to foreign libraries (check_with_ml_dtypes.py): encode32 and encode64 read fp32 or
// double and write codes with overflow propagated; decode reads codes and writes fp32.
#include <cstdio>
#include <cstring>
#include <string>

#include "dropless/formats.h"

namespace {

template <typename From, typename To, typename Convert>
void convert_stream(Convert convert) {
  From from;
  while (std::fread(&from, sizeof from, 1, stdin) == 1) {
    const To to = convert(from);
    std::fwrite(&to, sizeof to, 1, stdout);
  }
}

template <typename Format>
bool run(const std::string& direction) {
  using Storage = typename Format::Storage;
  constexpr auto overflow = dropless::Overflow::propagate;
  if (direction == "encode32") {
    convert_stream<float, Storage>([](float x) { return Format::from_float(x, overflow).bits; });
  } else if (direction == "encode64") {
    convert_stream<double, Storage>([](double x) { return Format::from_double(x, overflow).bits; });
  } else if (direction == "decode") {
    convert_stream<Storage, float>([](Storage code) { return Format::from_bits(code).to_float(); });
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 3) return 2;
  const std::string format = arguments[1];
  const std::string direction = arguments[2];
  bool known = false;
  if (format == "bf16") known = run<dropless::Bf16>(direction);
  if (format == "fp16") known = run<dropless::Fp16>(direction);
  if (format == "e4m3") known = run<dropless::E4m3>(direction);
  if (format == "e5m2") known = run<dropless::E5m2>(direction);
  if (format == "e8m0") known = run<dropless::E8m0>(direction);
  return known ? 0 : 2;
}
