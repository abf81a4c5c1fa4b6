// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"
#include "mica/tensor/tensor_view.hpp"

#include "support/paths.hpp"

namespace mica::testing {

/// Reference data made by tests/reference/*.py in the safetensors layout: named tensors and metadata.
class ReferenceFile {
 public:
  /// @param name  of a file in tests/reference.
  explicit ReferenceFile(const std::string& name) {
    const std::string path = test::reference_path(name);
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    require<Error>(bytes.size() > 8, "{} is missing or empty", path);
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), 8);
    header_ = nlohmann::json::parse(bytes.begin() + 8, bytes.begin() + 8 + static_cast<std::ptrdiff_t>(header_bytes));
    data_.assign(bytes.begin() + 8 + static_cast<std::ptrdiff_t>(header_bytes), bytes.end());
  }

  /// The tensor's elements (f32 or i32), which live as long as this object. @throws when there is none of that name.
  [[nodiscard]] ConstTensorView tensor(const std::string& name) const {
    require<Error>(header_.contains(name), "the reference file has no tensor '{}'", name);
    const auto& entry = header_[name];
    const auto dims = entry["shape"].get<std::vector<std::int64_t>>();
    return {data_.data() + entry["data_offsets"][0].get<std::size_t>(), Shape(std::span(dims)),
            entry["dtype"] == "I32" ? DType::i32 : DType::f32};
  }
  [[nodiscard]] nlohmann::json metadata(const std::string& key) const {
    return nlohmann::json::parse(header_["__metadata__"].at(key).get<std::string>());
  }
  [[nodiscard]] std::size_t num_tensors() const { return header_.size() - 1; }

 private:
  nlohmann::json header_;
  std::vector<char> data_;
};

}  // namespace mica::testing
