// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/initialize.hpp"

#include <algorithm>
#include <ranges>
#include <unordered_map>
#include <utility>

#include "mica/comm/host_comm.hpp"
#include "mica/fsdp/gathered_unit.hpp"
#include "mica/fsdp/root.hpp"
#include "mica/fsdp/unit_tree.hpp"
#include "mica/nn/init.hpp"

#include "given_states.hpp"
#include "sync_states.hpp"

namespace mica::fsdp {
namespace {

/// Ignored parameters get their values from the user. (After a root has claimed its units, all others have a holder.)
bool is_ignored(const nn::Parameter& parameter) { return parameter.holder == nullptr; }

struct NamedModule {
  std::string name;
  nn::Module* module;
};

/// The modules whose innermost unit is this one, outer ones first.
struct Region {
  std::vector<NamedModule> modules;
  bool lacks_data = false;  // some parameter or buffer has no data yet
};

std::string full_name_in(const std::string& module_name, const std::string& name) {
  return module_name.empty() ? name : module_name + "." + name;
}

/// Whole parameters while their units are being sharded. A parameter whose owner is a module of an inner unit (a tied
/// embedding) waits here for its own unit, which comes later.
class WholeParameters {
 public:
  explicit WholeParameters(DeviceMesh& device_mesh) : device_mesh_(device_mesh) {}

  /// Gives the parameter storage of this object, [shape] f32, unless it has it: with the values of its data, else undefined.
  TensorView own(nn::Parameter& parameter) {
    if (storage_.contains(&parameter)) return parameter.data;
    Stream& compute = device_mesh_.compute();
    Buffer buffer = device_mesh_.pool().allocate(parameter.shape.numel() * dtype_bytes(DType::f32), MemoryRole::unsharded_param, compute);
    const TensorView whole{buffer.data(), parameter.shape, DType::f32};
    if (parameter.data) device_mesh_.kernels().copy(compute, parameter.data, whole);
    parameter.data = whole;
    storage_.emplace(&parameter, std::move(buffer));
    return whole;
  }
  [[nodiscard]] static bool has_data(const nn::Parameter& parameter) { return static_cast<bool>(parameter.data); }
  void drop(nn::Parameter& parameter) {
    parameter.data = parameter.grad = {};
    storage_.erase(&parameter);
  }

 private:
  DeviceMesh& device_mesh_;
  std::unordered_map<nn::Parameter*, Buffer> storage_;
};

class OneModule final : public ModuleInit {
 public:
  OneModule(const NamedModule& module, DeviceMesh& device_mesh, std::uint64_t seed, WholeParameters& whole)
      : named_(module), device_mesh_(device_mesh), seed_(seed), whole_(whole) {}

  [[nodiscard]] nn::Module& module() const override { return *named_.module; }
  [[nodiscard]] const std::string& full_name() const override { return named_.name; }
  [[nodiscard]] Kernels& kernels() const override { return device_mesh_.kernels(); }
  [[nodiscard]] Stream& stream() const override { return device_mesh_.compute(); }
  [[nodiscard]] std::uint64_t seed() const override { return seed_; }

  [[nodiscard]] TensorView data(nn::Parameter& parameter) override {
    check_own(module().own_parameters(), parameter);
    require(!is_ignored(parameter), "'{}' is an ignored parameter: its user owns its storage", parameter.name);
    return whole_.own(parameter);
  }
  [[nodiscard]] TensorView data(nn::ModuleBuffer& buffer) override {
    check_own(module().own_buffers(), buffer);
    return buffer.data;
  }
  void fill_default() override {
    const auto fill = [&](const auto& tensor, TensorView out) {
      nn::fill_initial(kernels(), stream(), tensor.init, full_name_in(full_name(), tensor.name), seed_, 0, out);
    };
    for (const auto& parameter : module().own_parameters()) {
      if (!is_ignored(*parameter)) fill(*parameter, whole_.own(*parameter));
    }
    for (const auto& buffer : module().own_buffers()) fill(*buffer, buffer->data);
  }

 private:
  template <class List, class T>
  void check_own(const List& list, const T& tensor) const {
    require(std::ranges::any_of(list, [&](const auto& each) { return each.get() == &tensor; }),
            "'{}' does not belong to this module itself: an initialisation sets only the parameters and buffers that its module holds "
            "directly",
            tensor.name);
  }

  const NamedModule& named_;
  DeviceMesh& device_mesh_;
  std::uint64_t seed_;
  WholeParameters& whole_;
};

void run_function(const InitFunction& function, OneModule& one) {
  const auto failed = [&](const std::exception& e) {
    return fmt::format("initialising module {} of type {} failed: {}", one.full_name().empty() ? "root" : one.full_name(),
                       one.module().type_name(), e.what());
  };
  try {
    function(one);
  } catch (const ConfigError& e) {
    throw ConfigError(failed(e));
  } catch (const std::exception& e) {
    throw Error(failed(e));
  }
}

/// [Note: initialisation], unit by unit.
class Initialization {
 public:
  Initialization(const InitializeOptions& options, DeviceMesh& device_mesh) : options_(options), whole_(device_mesh) {}

  void run(Unit& unit, const Region& region) {
    const bool syncs = unit.options().sync_module_states;
    const auto prepare = [&] {
      check_given(unit);
      if (options_.function && region.lacks_data) {
        call_function(unit.device_mesh(), region);
        check_devices(unit, options_.move_to_device);
      }
    };
    if (options_.function || syncs) {
      make_group_comm(unit.device_mesh().mesh().world(), unit.device_mesh().compute(), "initialize")->agree(prepare);
    } else {
      prepare();
    }
    if (unit.storage()) options_.zeros ? unit.storage()->initialize_to_zeros() : unit.storage()->initialize(options_.seed);
    if (syncs) sync(unit, region);
    if (unit.storage()) cut(unit);
  }

 private:
  static void check_given(const Unit& unit) {
    if (!unit.storage()) return;
    for (const UnitParameter& p : unit.storage()->parameters()) {
      const TensorView& data = p.parameter->data;
      if (!data) continue;
      require<ConfigError>(data.shape == p.parameter->shape && data.dtype != DType::f64 && is_floating(data.dtype),
                           "parameter {} has data of shape {} and dtype {}, expected {} in fp32, bf16 or fp16", p.full_name,
                           data.shape.to_string(), dtype_name(data.dtype), p.parameter->shape.to_string());
    }
  }

  void call_function(DeviceMesh& device_mesh, const Region& region) {
    for (const NamedModule& each : region.modules) {
      OneModule one(each, device_mesh, options_.seed, whole_);
      run_function(options_.function, one);
      for (const auto& parameter : each.module->own_parameters()) {
        require<ConfigError>(is_ignored(*parameter) || WholeParameters::has_data(*parameter),
                             "parameter {} {} of a '{}' was left without data by the initialisation function: call data() or "
                             "fill_default() for it",
                             full_name_in(each.name, parameter->name), parameter->shape.to_string(), each.module->type_name());
      }
    }
  }

  void sync(Unit& unit, const Region& region) {
    DeviceMesh& device_mesh = unit.device_mesh();
    std::vector<TensorView> states;
    if (unit.storage()) {
      for (const UnitParameter& p : unit.storage()->parameters()) {
        const bool is_given = WholeParameters::has_data(*p.parameter);
        states.push_back(whole_.own(*p.parameter));
        if (is_given) continue;
        if (options_.zeros) {
          device_mesh.kernels().fill(device_mesh.compute(), states.back(), 0.0);
        } else {
          nn::fill_initial(device_mesh.kernels(), device_mesh.compute(), *p.parameter, p.full_name, options_.seed, 0, states.back());
        }
      }
    }
    for (const NamedModule& each : region.modules) {
      for (const auto& buffer : each.module->own_buffers()) states.push_back(buffer->data);
    }
    broadcast_states(device_mesh, states, options_.sync_bucket_bytes);
  }

  void cut(Unit& unit) {
    const std::vector<UnitParameter>& parameters = unit.storage()->parameters();
    const TensorView master = unit.storage()->write_master(unit.device_mesh().compute());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      nn::Parameter& parameter = *parameters[i].parameter;
      if (!WholeParameters::has_data(parameter)) continue;
      scatter_range(unit, i, 0, parameter.data, master);
      whole_.drop(parameter);
    }
  }

  const InitializeOptions& options_;
  WholeParameters whole_;
};

}  // namespace

void Root::initialize(const InitializeOptions& options) {
  check_all_assigned(unit_.module());
  reshard();  // after an earlier initialisation: parameters that modules still see would pass for given data
  std::unordered_map<const Unit*, Region> regions;
  const std::function<void(const std::string&, nn::Module&, Unit*)> visit = [&](const std::string& name, nn::Module& module, Unit* outer) {
    auto* own = dynamic_cast<Unit*>(module.hooks());
    Unit* unit = own ? own : outer;
    if (!ignores(module)) {
      Region& region = regions[unit];
      region.modules.push_back({name, &module});
      const auto is_absent = [](const auto& tensor) { return !tensor->data; };
      region.lacks_data = region.lacks_data || std::ranges::any_of(module.own_buffers(), is_absent) ||
                          std::ranges::any_of(module.own_parameters(), [&](const auto& p) { return !is_ignored(*p) && is_absent(p); });
    }
    for (const nn::Module::Child& child : module.children()) visit(full_name_in(name, child.name), *child.module, unit);
  };
  visit("", unit_.module(), &unit_);
  const auto check_given_devices = [&] {
    for (const Unit* unit : units_) check_devices(*unit, options.move_to_device);
    check_devices(buffers_, options.move_to_device);
  };
  if (options.function || std::ranges::any_of(units_, [](const Unit* u) { return u->options().sync_module_states; })) {
    make_group_comm(device_mesh().mesh().world(), device_mesh().compute(), "initialize")->agree(check_given_devices);
  } else {
    check_given_devices();
  }
  buffers_.initialize(options.seed);
  Initialization initialization(options, device_mesh());
  for (Unit* unit : units_ | std::views::reverse) initialization.run(*unit, regions[unit]);
  device_mesh().compute().synchronize();  // the user may now free given data
}

}  // namespace mica::fsdp
