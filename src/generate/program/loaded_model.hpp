// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/checkpoint/init_from.hpp"
#include "mica/comm/run_app.hpp"
#include "mica/core/log.hpp"
#include "mica/train/setup.hpp"

namespace mica::generate {

/// A config with the folder's [model]. @throws ConfigError, CheckpointError on all ranks @collective
[[nodiscard]] train::Config config_of(const HostComm& comm, const std::string& folder, const std::string& dtype, std::int64_t threads);

/// A model with the parameters of the config's model.init_from, for forwards. On one rank every parameter is stored whole in the wanted
/// dtype, and passes use it directly. On several ranks units are sharded; each pass gathers and reshards them.
class LoadedModel {
 public:
  /// @collective @throws ConfigError, CheckpointError
  LoadedModel(App& app, const train::Config& config, const Logger& logger);

  [[nodiscard]] nn::Module& module() { return *module_; }
  [[nodiscard]] nn::Context& context() { return context_; }
  [[nodiscard]] const train::Device& device() const { return device_; }
  [[nodiscard]] const checkpoint::InitReport& report() const { return report_; }

 private:
  train::Device device_;
  std::unique_ptr<nn::Module> module_;
  std::vector<Buffer> whole_;
  nn::Context context_;
  checkpoint::InitReport report_;
};

}  // namespace mica::generate
