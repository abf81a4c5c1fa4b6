// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/load.hpp"
#include "mica/checkpoint/save.hpp"
#include "mica/core/half.hpp"

#include "unit/optim/sharded_weights.hpp"

namespace mica::test {

using Units = std::vector<std::vector<WeightSpec>>;

/// Odd sizes: a unit that is written past the page cache, one with fewer elements than ranks, 1-D to 4-D.
inline Units odd_units() {
  return {{{"weight", Shape{1307, 103}, true}, {"bias", Shape{1307}}},
          {{"tiny", Shape{1}}, {"four", Shape{2, 3, 5, 7}, true}},
          {{"three", Shape{11, 3, 1}, true}}};
}
inline Units small_units() { return {{{"weight", Shape{5, 7}, true}, {"bias", Shape{5}}}, {{"last", Shape{3}}}}; }

/// Numbers that are different for every element of every parameter and kind; never what a fresh model holds.
class ElementValues {
 public:
  ElementValues(const std::string& parameter, const std::string& kind, int salt) {
    hash_ = 2166136261U + static_cast<std::uint32_t>(salt) * 7919U;
    for (const char c : fmt::format("{}/{}", parameter, kind)) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  [[nodiscard]] float at(std::int64_t element) const {
    const std::uint32_t h = (hash_ ^ static_cast<std::uint32_t>(element)) * 2654435761U;
    return static_cast<float>(h >> 8) * 0x1p-20F + 0.5F;
  }

 private:
  std::uint32_t hash_;
};

inline float element_value(const std::string& parameter, const std::string& kind, std::int64_t element, int salt) {
  return ElementValues(parameter, kind, salt).at(element);
}

/// One rank's model and optimizer with values that the test chooses, and what saves and loads them.
class SavedModel {
 public:
  SavedModel(std::unique_ptr<ProcessGroup> world, const Units& units, const ShardedOptions& options = {}, bool with_sgd = false)
      : weights_(std::move(world), units, options),
        optimizer_(with_sgd ? optim::make_sgd(weights_.root(), {.momentum = 0.9}) : optim::make_adamw(weights_.root(), {})),
        comm_(make_group_comm(weights_.device_mesh().metrics_group(), weights_.device_mesh().compute())) {}

  [[nodiscard]] fsdp::Root& root() { return weights_.root(); }
  [[nodiscard]] optim::Optimizer& optimizer() { return *optimizer_; }
  [[nodiscard]] const HostComm& comm() const { return *comm_; }
  [[nodiscard]] ShardedWeights& weights() { return weights_; }

  /// Every element of every parameter and state gets element_value(). State is allocated; padding stays zero.
  void fill(int salt) {
    optimizer_->allocate_state();
    sync();
    for_each_array([&](const fsdp::UnitStorage& storage, const std::string& kind, float* data) {
      for (const fsdp::Piece& piece : storage.layout().pieces(storage.shard_rank())) {
        const ElementValues values(storage.parameters()[piece.parameter].full_name, kind, salt);
        for (std::int64_t r = 0; r < piece.num_runs(); ++r) {
          const fsdp::Run run = piece.run(r);
          for (std::int64_t i = 0; i < run.numel(); ++i) data[run.offset + i] = values.at(run.begin + i);
        }
      }
    });
    for_each_whole([&](const std::string& name, const std::string& kind, TensorView data) {
      const ElementValues values(name, kind, salt);
      for (std::int64_t i = 0; i < data.numel(); ++i) store(data, i, values.at(i));
    });
    optimizer_->set_num_steps(salt);
  }
  /// Everything this rank holds, padding included, as it lies in memory.
  [[nodiscard]] std::vector<std::vector<std::byte>> bits() {
    sync();
    std::vector<std::vector<std::byte>> all;
    for_each_array([&](const fsdp::UnitStorage& storage, const std::string&, float* data) {
      const auto* bytes = reinterpret_cast<const std::byte*>(data);
      all.emplace_back(bytes, bytes + storage.layout().shard_numel() * 4);
    });
    for_each_whole([&](const std::string&, const std::string&, TensorView data) {
      const auto* bytes = static_cast<const std::byte*>(data.data);
      all.emplace_back(bytes, bytes + data.bytes());
    });
    return all;
  }

  [[nodiscard]] checkpoint::SaveState state(std::int64_t step) {
    return {.root = &root(),
            .optimizer = optimizer_.get(),
            .run_id = fmt::format("r{}", comm_->rank()),
            .step = step,
            .tokens = step * 1000,
            .seed = 18446744073709551615ULL,
            .omp_threads = 1,
            .model = {{"type", "weights"}},
            .config = "[run]\nname=test\n"};
  }
  checkpoint::SaveReport save(const std::string& run, std::int64_t step, const checkpoint::SaveOptions& options = {}) {
    return checkpoint::save(run, state(step), *comm_, options);
  }
  checkpoint::LoadReport load(const std::string& path) {
    return checkpoint::load(path, checkpoint::open_checkpoint(path, *comm_), {&root(), optimizer_.get(), 1}, *comm_);
  }

 private:
  void sync() { weights_.device_mesh().compute().synchronize(); }
  template <class Visit>
  void for_each_array(Visit visit) {
    for (const fsdp::Unit* unit : root().units()) {
      if (unit->storage()) visit(*unit->storage(), "master", unit->storage()->write_master().template as<float>());
    }
    for (const optim::StateShard& shard : optimizer_->state()) visit(*shard.storage, shard.kind, shard.data.as<float>());
  }

  /// Ignored parameters with their state, and buffers.
  template <class Visit>
  void for_each_whole(Visit visit) {
    for (const fsdp::UnitParameter& p : root().ignored_parameters()) visit(p.full_name, "master", p.parameter->data);
    for (const optim::IgnoredState& each : optimizer_->ignored_state()) visit(each.parameter, each.kind, each.data);
    for (const auto& entry : root().buffers().entries()) visit(entry.full_name, "master", entry.buffer->data);
  }
  /// A float that bf16 holds as well, or an integer.
  static void store(TensorView to, std::int64_t i, float value) {
    const bf16 rounded(value);
    switch (to.dtype) {
      case DType::f32:
        to.as<float>()[i] = value;
        break;
      case DType::bf16:
        to.as<bf16>()[i] = rounded;
        break;
      case DType::i64:
        to.as<std::int64_t>()[i] = static_cast<std::int64_t>(value * 1e12F);
        break;
      case DType::i32:
        to.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
        break;
      case DType::u8:
        to.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(value);
        break;
      default:
        FAIL() << "no values of " << dtype_name(to.dtype);
    }
  }

  ShardedWeights weights_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<HostComm> comm_;
};

/// Runs `body(model)` on one rank.
template <class Body>
void with_one_rank(const Units& units, Body body) {
  run_local_ranks(1, [&](auto world) {
    SavedModel model(std::move(world), units);
    body(model);
  });
}

}  // namespace mica::test
