// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/layout_by_name.hpp"

#include <charconv>

#include "mica/core/error.hpp"
#include "mica/fsdp/options.hpp"
#include "mica/fsdp/per_parameter_layout.hpp"

namespace mica::fsdp {
namespace {

constexpr std::string_view kPerParameter = "per_parameter ";

std::vector<int> parse_dims(std::string_view name) {
  std::vector<int> dims;
  const char* at = name.data() + kPerParameter.size();
  const char* const end = name.data() + name.size();
  for (;;) {
    int dim = -1;
    const auto [next, error] = std::from_chars(at, end, dim);
    require<ConfigError>(error == std::errc{} && dim >= 0 && (next == end || *next == ','), "'{}' is not a layout's name", name);
    dims.push_back(dim);
    if (next == end) return dims;
    at = next + 1;
  }
}

}  // namespace

std::unique_ptr<ShardLayout> make_layout(std::string_view name, std::vector<ParameterSpec> parameters, int shard_size) {
  if (name == "flat") return std::make_unique<FlatLayout>(std::move(parameters), shard_size, kUnitAlignmentNumel);
  require<ConfigError>(name.starts_with(kPerParameter), "'{}' is not a layout's name; expected flat or per_parameter DIM,DIM,...", name);
  const std::vector<int> dims = parse_dims(name);
  require<ConfigError>(dims.size() == parameters.size(), "layout '{}' names {} dims for {} parameters", name, dims.size(),
                       parameters.size());
  if (shard_size == 1) return std::make_unique<FlatLayout>(std::move(parameters), 1, kUnitAlignmentNumel);
  return std::make_unique<PerParameterLayout>(std::move(parameters), dims, shard_size, kUnitAlignmentNumel);
}

}  // namespace mica::fsdp
