// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/fsdp/fully_shard.hpp"
#include "mica/fsdp/options.hpp"
#include "mica/nn/module.hpp"

namespace mica::testing {

/// Blocks one behind the other, some of which a step may leave out.
class RandomModel final : public nn::Module {
 public:
  RandomModel() : Module("model") {}

  template <class M, class... Args>
  M& add(std::string name, Args&&... args) {
    M& module = add_child<M>(std::move(name), std::forward<Args>(args)...);
    chain_.push_back(&module);
    return module;
  }
  /// From the next forward on; by block.
  void leave_out(const std::vector<bool>& left_out);

 private:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override;
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override;
  std::vector<nn::Module*> chain_;
};

/// One point of the option space (docs/parity.md F8), made from a seed alone. [Note: random cases]
/// The model is a chain of blocks with odd widths. Each block is a linear layer, two with a GELU between them, a
/// normalised residual branch, a linear layer with a module buffer behind it, or a layer that uses the square weight of
/// an earlier block (a shared parameter).
struct RandomCase {
  explicit RandomCase(std::uint64_t case_seed);

  enum class Kind : std::uint8_t { linear, two_layers, residual, shifted, tied };
  struct Block {
    Kind kind;
    std::int64_t in, out, hidden;
    bool has_bias;
    int tied_to = -1;     ///< of Kind::tied: the block whose weight it uses
    bool is_unit;         ///< the block is a unit
    bool has_inner_unit;  ///< so is its first layer
    bool is_checkpointed;
    bool has_inner_checkpoint;                 ///< its last layer is
    bool is_no_shard;                          ///< its unit is replicated whatever the others are
    bool is_on_other_grid;                     ///< its unit is on the other grid of ranks, if there is one
    bool stays_unsharded;                      ///< its unit is not resharded after backward
    bool has_hooks;                            ///< all-gather hooks on its unit's parameters, where there can be some
    fsdp::BackwardPrefetch backward_prefetch;  ///< of its unit
    std::vector<bool> left_out;                ///< by step
  };
  /// A micro-batch round. Rounds joined to the next one run their forwards before the first backward of the group.
  struct Round {
    bool reduces;
    bool joins_next;
  };

  /// Units, as numbers modulo their count, that are gathered at another one's forward and backward.
  struct Lists {
    std::size_t unit;
    std::vector<std::size_t> forward, backward;
  };
  /// Who writes the masters: the test, a line of its own for each piece, or the optimizer, behind or in backward.
  enum class Stepping : std::uint8_t { by_hand, optimizer, in_backward };
  struct Clipping {
    double max_norm, p;
    bool in_place;  ///< or the optimizer multiplies
  };
  /// All state goes through state dicts into a model made anew.
  struct Reload {
    int before_step;
    fsdp::StateDictKind kind;
    bool from_rank0;  ///< full: the other ranks have none
  };

  std::uint64_t seed;
  int world_size, shard_size;
  int other_shard_size;  ///< of the other grid; 0: there is none
  std::vector<Block> blocks;
  std::vector<bool> frozen;  ///< by parameter, in module order (past the end: trainable)
  enum class Ignoring : std::uint8_t { nothing, parameters, blocks };
  Ignoring ignoring;  ///< what of `ignored` counts: by parameter as above, or by block, which is then no unit
  std::vector<bool> ignored;
  std::int64_t rows;          ///< of a micro-batch
  fsdp::Options options;      ///< of every unit
  std::vector<Round> rounds;  ///< of every step; the last one reduces
  bool evaluates;             ///< a forward without gradient before each step
  bool threaded;
  int num_steps;
  std::vector<Lists> lists;
  bool has_wide_outputs;              ///< units of blocks hand f32 on, and cast their inputs
  std::optional<DType> output_dtype;  ///< of the root
  Stepping stepping = Stepping::by_hand;
  double momentum = 0;
  std::optional<Clipping> clipping;
  double loss_scale = 0;   ///< at first; 0: no scaler
  int overflow_step = -1;  ///< in which rank 0's gradients are too large; -1: none
  std::optional<Reload> reload;
  nn::Recompute recompute;  ///< the plain run keeps everything
  bool shares_memory;       ///< the groups of ranks do

  [[nodiscard]] std::unique_ptr<RandomModel> make_model() const;
  /// In module order. Of an ignored block all that it uses, but what a unit in it holds.
  [[nodiscard]] std::vector<std::string> ignored_names() const;
  [[nodiscard]] std::vector<bool> left_out_in(int step) const;
  /// Makes the blocks, some of their layers and the model itself units.
  /// @param other_grid  null without other_shard_size.
  void shard(RandomModel& model, fsdp::DeviceMesh& device_mesh, fsdp::DeviceMesh* other_grid) const;
  /// Of what the model returns.
  [[nodiscard]] DType dtype_of_output() const { return output_dtype.value_or(has_wide_outputs ? DType::f32 : options.param_dtype()); }
  [[nodiscard]] std::string describe() const;

 private:
  [[nodiscard]] fsdp::Options options_of(const Block& block) const;
};

}  // namespace mica::testing
