// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mica/nn/module.hpp"

namespace mica::fsdp {

/// One module that a user's function initialises (docs/parity.md C5).
class ModuleInit {
 public:
  virtual ~ModuleInit() = default;
  [[nodiscard]] virtual nn::Module& module() const = 0;
  [[nodiscard]] virtual const std::string& full_name() const = 0;
  [[nodiscard]] virtual Kernels& kernels() const = 0;
  /// The stream on which to fill what data() returns; or fill it on the host immediately.
  [[nodiscard]] virtual Stream& stream() const = 0;
  [[nodiscard]] virtual std::uint64_t seed() const = 0;

  /// Gives one of the module's own parameters or buffers whole storage, to be filled: [shape] fp32, the buffer's own dtype.
  /// Contents are undefined, or the values it had before initialize().
  /// @throws Error if it is not the module's own.
  [[nodiscard]] virtual TensorView data(nn::Parameter& parameter) = 0;
  [[nodiscard]] virtual TensorView data(nn::ModuleBuffer& buffer) = 0;
  /// Fills them with the values that they would have without a function.
  virtual void fill_default() = 0;
};

/// Called for every module, outer ones first; sets that module's own tensors only.
using InitFunction = std::function<void(ModuleInit& init)>;

/// Where Root::initialize() gets values from. [Note: initialisation]
/// No rank ever holds the whole model: units get their values one by one, inner ones first.
/// - A unit whose parameters have no data is filled by their Initializers, piece by piece: a rank allocates only its shards.
/// - A unit with a parameter that `function` sets, that had data before (PlainParameters, or views that the user set, of any
///   floating dtype, which are copied into the fp32 master and released) or that is broadcast (Options::sync_module_states) is
///   whole on each rank while it is being sharded. Peak: shards + one unit.
/// A function must not leave a parameter of a module that it visits without data.
struct InitializeOptions {
  std::uint64_t seed = 0;
  InitFunction function;  ///< takes precedence over Initializers
  bool zeros = false;     ///< in place of Initializers' values: for who loads a checkpoint next, which has all parameters
  /// Existing data may be in host memory while units compute on another device: it is copied (PyTorch's device_id). Otherwise
  /// that is an error, as is a unit whose parameters are on several devices (docs/parity.md B6, C6).
  bool move_to_device = false;
  /// Most bytes per bucket that sync_module_states broadcasts; a larger tensor is sent alone.
  std::int64_t sync_bucket_bytes = std::int64_t{250} << 20;
};

}  // namespace mica::fsdp
