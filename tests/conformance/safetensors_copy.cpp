// SPDX-License-Identifier: Apache-2.0
// safetensors_copy FROM TO: reads every tensor and the metadata of a file and writes them again, in odd ranges.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "mica/io/safetensors.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    constexpr std::int64_t kRange = 1237;
    mica::io::SafetensorsFile from(argv[1]);
    std::vector<mica::io::SafetensorsSpec> specs;
    for (const auto& tensor : from.tensors()) specs.push_back({tensor.name, tensor.mica_dtype().value(), tensor.dims});
    mica::io::SafetensorsWriter to(argv[2], specs, from.metadata());
    std::vector<float> values(kRange);
    for (const auto& tensor : from.tensors()) {
      for (std::int64_t at = 0; at < tensor.numel; at += kRange) {
        const std::int64_t count = std::min(kRange, tensor.numel - at);
        from.read(tensor, at, count, values.data());
        to.write(tensor.name, at, count, values.data());
      }
    }
    to.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
