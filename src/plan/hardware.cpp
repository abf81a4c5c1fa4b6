// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/hardware.hpp"

#include <functional>
#include <limits>
#include <set>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"
#include "mica/io/json.hpp"

#include "embedded_files.hpp"

namespace mica::plan {
namespace {

constexpr double kLargest = 1e9;

/// Reads the keys of one object, and checks that each has a source and that there are no unknown keys.
class Reader {
 public:
  Reader(const io::JsonValue& json, const io::JsonValue& sources) : json_(json), sources_(sources) {}

  void number(const char* key, double& value, double lowest, double highest = kLargest) { value = take(key).number(lowest, highest); }
  void integer(const char* key, int& value, int lowest) { value = static_cast<int>(take(key).integer(lowest, 1 << 20)); }
  void rates(const char* key, Rates& rates) {
    const io::JsonValue found = take(key);
    const auto rate = [&](const char* dtype, double& value) {
      value = found[dtype].number();
      if (!(value > 0 && value <= kLargest)) found[dtype].fail_expecting("teraflops above 0");
    };
    rate("fp32", rates.fp32);
    rate("bf16", rates.bf16);
    rates.tf32 = rates.fp32;
    if (found.has("tf32")) rate("tf32", rates.tf32);
    found.for_each_key([](const std::string& name, const io::JsonValue& value) {
      if (name != "fp32" && name != "tf32" && name != "bf16") value.fail("is unknown, expected fp32, tf32 or bf16");
    });
  }
  void protocols(const char* key, std::vector<Protocol>& list) {
    const io::JsonValue found = take(key);
    if (!found.is_list() || found.size() == 0) found.fail_expecting("a list of at least one protocol");
    found.for_each([&](const io::JsonValue& each) {
      const auto time = [&](const char* name) {
        const double us = each[name].number();
        if (!(us >= 0 && us <= kLargest)) each[name].fail_expecting("microseconds from 0");
        return us;
      };
      Protocol protocol{.bandwidth_share = each["bandwidth_share"].number(),
                        .base_us = time("base_us"),
                        .in_node_step_us = time("in_node_step_us"),
                        .network_step_us = time("network_step_us")};
      if (!(protocol.bandwidth_share > 0 && protocol.bandwidth_share <= 1))
        each["bandwidth_share"].fail_expecting("a number above 0, at most 1");
      list.push_back(protocol);
    });
  }
  std::string text(const char* key) {
    seen_.insert(key);
    return json_[key].text();
  }
  void check_nothing_else() const {
    json_.for_each_key([&](const std::string& key, const io::JsonValue& value) {
      if (!seen_.contains(key) && key != "sources") value.fail(fmt::format("is unknown; the keys are {}", fmt::join(seen_, ", ")));
    });
  }

 private:
  io::JsonValue take(const char* key) {
    seen_.insert(key);
    if (!sources_.has(key)) json_[key].fail("has no source: write where it comes from under \"sources\", by the same key");
    return json_[key];
  }

  const io::JsonValue& json_;
  const io::JsonValue& sources_;
  std::set<std::string> seen_;
};

}  // namespace

std::vector<std::string> hardware_names() { return names_of(kHardwareFiles); }

std::string_view hardware_text(std::string_view name) { return text_of(kHardwareFiles, name); }

Hardware parse_hardware(std::string_view text, const std::string& file_name) {
  const auto json = io::JsonValue::parse<ConfigError>(text, file_name);
  const io::JsonValue sources = json["sources"];
  Reader read(json, sources);
  Hardware h;
  h.name = read.text("name");
  const std::string device = read.text("device");
  if (device != "gpu" && device != "cpu") json["device"].fail_expecting("\"gpu\" or \"cpu\"");
  h.is_gpu = device == "gpu";
  constexpr double kAbove0 = std::numeric_limits<double>::min();
  read.integer("ranks_per_node", h.ranks_per_node, 1);
  read.integer("threads", h.threads, 1);
  read.number("memory_gib", h.memory_gib, kAbove0);
  read.number("reserved_gib", h.reserved_gib, 0);
  if (h.reserved_gib >= h.memory_gib) json["reserved_gib"].fail_expecting("less than memory_gib");
  read.rates("peak_tflops", h.peak_tflops);
  read.rates("product_tflops", h.product_tflops);
  read.number("attention_forward_tflops", h.attention.forward_tflops, kAbove0);
  read.number("attention_backward_tflops", h.attention.backward_tflops, kAbove0);
  read.number("attention_half_tokens", h.attention.half_tokens, 0);
  read.integer("processors", h.processors, 0);
  read.number("memory_gb_s", h.memory_gb_s, kAbove0);
  read.number("kernel_us", h.kernel_us, 0);
  read.number("host_task_us", h.host_task_us, 0);
  read.number("host_wait_us", h.host_wait_us, 0);
  read.number("in_node_gb_s", h.in_node_gb_s, kAbove0);
  read.number("network_gbps", h.network_gbps, kAbove0);
  read.number("network_efficiency", h.network_efficiency, kAbove0, 1);
  read.protocols("protocols", h.protocols);
  read.number("compute_beside_communication", h.compute_beside_communication, kAbove0, 1);
  read.number("communication_beside_compute", h.communication_beside_compute, kAbove0, 1);
  read.number("storage_gb_s", h.storage_gb_s, kAbove0);
  read.number("rank_mtbf_hours", h.rank_mtbf_hours, kAbove0);
  read.number("restart_s", h.restart_s, 0);
  read.check_nothing_else();
  return h;
}

double tflops_for(DType dtype, bool tf32, const Rates& rates, const Hardware& hardware) {
  if (dtype == DType::bf16 || (dtype == DType::f16 && hardware.is_gpu)) return rates.bf16;
  return tf32 && hardware.is_gpu ? rates.tf32 : rates.fp32;
}

Hardware find_hardware(const std::string& name_or_file) {
  return parse_hardware(read_embedded_or_file(kHardwareFiles, name_or_file, "--hardware",
                                              "; mica-bench gemm --hardware-out FILE writes a file of this machine"),
                        name_or_file);
}

}  // namespace mica::plan
