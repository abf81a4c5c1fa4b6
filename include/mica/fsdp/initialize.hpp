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
  /// What data() returns is filled by tasks of this stream, or on the host at once.
  [[nodiscard]] virtual Stream& stream() const = 0;
  [[nodiscard]] virtual std::uint64_t seed() const = 0;

  /// Gives one of the module's own parameters or buffers whole storage, to be filled: [shape] fp32, the buffer's own
  /// dtype. Contents are undefined, or what somebody had given it before initialize().
  /// @throws Error when it is not the module's own.
  [[nodiscard]] virtual TensorView data(nn::Parameter& parameter) = 0;
  [[nodiscard]] virtual TensorView data(nn::ModuleBuffer& buffer) = 0;
  /// The values that they would have without a function.
  virtual void fill_default() = 0;
};

/// Called for every module, outer ones first; sets that module's own tensors only.
using InitFunction = std::function<void(ModuleInit& init)>;

/// How Root::initialize() finds values. [Note: initialisation]
/// No rank ever holds the whole model: units get their values one by one, inner ones first. A unit of which
/// - nothing has data gets its parameters' Initializers, piece by piece: a rank allocates its shards, nothing else;
/// - something is to be set by `function`, had data before (PlainParameters, or views that the user set: any floating
///   dtype, taken over into the fp32 master and let go), or is to be broadcast (Options::sync_module_states), exists
///   whole on each rank while it is cut. Peak: shards + one unit.
/// With a function, parameters of a visited module that it leaves without data are an error.
struct InitializeOptions {
  std::uint64_t seed = 0;
  InitFunction function;  ///< takes precedence over Initializers
  /// Given data may be in host memory while units compute elsewhere: it is copied (PyTorch's device_id). Otherwise that
  /// is an error, as is a unit whose parameters are on several devices (docs/parity.md B6, C6).
  bool move_to_device = false;
  /// sync_module_states sends states in buckets of at most so many bytes; a larger tensor goes alone.
  std::int64_t sync_bucket_bytes = std::int64_t{250} << 20;
};

}  // namespace mica::fsdp
