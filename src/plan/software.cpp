// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/software.hpp"

#include <algorithm>
#include <array>
#include <ranges>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"
#include "mica/io/json.hpp"

#include "embedded_files.hpp"

namespace mica::plan {
namespace {

/// Tasks of a step that a dry run records, and that others may do otherwise.
constexpr std::array kTasks{"adamw",
                            "add",
                            "add_layer_norm",
                            "add_rms_norm",
                            "attention",
                            "attention_backward",
                            "embedding",
                            "embedding_backward",
                            "gelu",
                            "gelu_backward",
                            "head_loss_backward",
                            "layer_norm",
                            "layer_norm_backward",
                            "linear_backward_params",
                            "rms_norm",
                            "rms_norm_backward",
                            "rotary",
                            "scale",
                            "swiglu",
                            "swiglu_backward"};

void check_keys(const io::JsonValue& json, const std::vector<std::string_view>& known) {
  json.for_each_key([&](const std::string& key, const io::JsonValue& value) {
    if (std::ranges::find(known, key) == known.end()) value.fail(fmt::format("is not known; the keys are {}", fmt::join(known, ", ")));
  });
}

void check_source(const io::JsonValue& json) {
  if (!json.has("source") || json["source"].text().empty()) json.fail("has no source: write where it comes from under \"source\"");
}

}  // namespace

const AttentionRate& Software::attention_on(const std::string& hardware_name) const {
  const auto found = attention.find(hardware_name);
  require<ConfigError>(found != attention.end(), "--software={} has no attention on {}; it has {}: choose another hardware or software",
                       name, hardware_name,
                       attention.empty() ? "that of any GPU" : fmt::format("{}", fmt::join(std::views::keys(attention), ", ")));
  return found->second;
}

std::vector<std::string> software_names() { return names_of(kSoftwareFiles); }

Software parse_software(std::string_view text, const std::string& file_name) {
  const auto json = io::JsonValue::parse<ConfigError>(text, file_name);
  check_keys(json, {"name", "what", "fuses_layers", "attention", "kernels"});
  Software software{.name = json["name"].text(), .attention = {}, .kernels = {}};
  if (json.has("fuses_layers")) software.fuses_layers = json["fuses_layers"].boolean();
  static_cast<void>(json["what"].text());
  constexpr double kMost = 1e9;
  if (json.has("attention"))
    json["attention"].for_each_key([&](const std::string& hardware, const io::JsonValue& each) {
      check_keys(each, {"forward_tflops", "backward_tflops", "half_tokens", "source"});
      check_source(each);
      software.attention[hardware] = {.forward_tflops = each["forward_tflops"].number(1e-3, kMost),
                                      .backward_tflops = each["backward_tflops"].number(1e-3, kMost),
                                      .half_tokens = each["half_tokens"].number(0, kMost)};
    });
  json["kernels"].for_each_key([&](const std::string& task, const io::JsonValue& each) {
    if (std::ranges::find(kTasks, task) == kTasks.end())
      each.fail(fmt::format("is no task that may be changed; expected one of {}", fmt::join(kTasks, ", ")));
    check_keys(each, {"bandwidth", "extra", "source"});
    check_source(each);
    software.kernels[task] = {.bandwidth = each["bandwidth"].number(1e-3, 1), .extra = each["extra"].number(0, kMost)};
  });
  return software;
}

Software find_software(const std::string& name_or_file) {
  return parse_software(read_embedded_or_file(kSoftwareFiles, name_or_file, "--software"), name_or_file);
}

}  // namespace mica::plan
