// SPDX-License-Identifier: Apache-2.0
// docs/parity.md E4: state dicts from rank 0 and from other meshes.
#include "state_dict_toy.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::error_of;

// E4: from rank 0, by broadcast; the other ranks have nothing.
TEST(E4Load, FromRank0) {
  for (const int shard_size : {4, 2, 1}) {
    run_local_ranks(4, [&](auto world) {
      RankRig rig(std::move(world), shard_size);
      Toy toy(rig);
      toy.set({.model = FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true}});
      const StateDict dict = state_dict(toy.model);
      EXPECT_EQ(dict.empty(), rig.rank() != 0);
      toy.clear();
      load_state_dict(toy.model, dict, {.from_rank0 = true});
      expect_numbered(rig, toy, fmt::format("shard size {}", shard_size));
      EXPECT_NE(rig.values(toy.norm->mean().data)[0], -1);
      // Without it, rank 1 lacks everything.
      EXPECT_EQ(error_of<ConfigError>([&] { load_state_dict(toy.model, dict); }).find("rank 1: "), 0U);
      toy.set(StateDictKind::sharded);
      EXPECT_THROW(load_state_dict(toy.model, dict, {.from_rank0 = true}), ConfigError);
    });
  }
}

/// Every rank's sharded dict of a world of `ranks`, on the host.
std::vector<StateDict> sharded_dicts(int ranks, int shard_size) {
  std::vector<StateDict> dicts(static_cast<std::size_t>(ranks));
  run_local_ranks(ranks, [&](auto world) {
    RankRig rig(std::move(world), shard_size);
    Toy toy(rig);
    StateDictSettings settings = StateDictSettings::of(StateDictKind::sharded);
    settings.model = ShardedStateDictConfig{.offload_to_cpu = true};
    toy.set(settings);
    dicts[static_cast<std::size_t>(rig.rank())] = state_dict(toy.model);
  });
  return dicts;
}

// E4: into another mesh: pieces of one world, dealt out to the ranks of another one.
TEST(E4Load, IntoAnotherMesh) {
  for (const auto& [from, from_shard] : {std::pair{4, 4}, {3, 3}, {4, 2}, {2, 1}}) {
    const std::vector<StateDict> dicts = sharded_dicts(from, from_shard);
    for (const auto& [to, to_shard] : {std::pair{1, 1}, {2, 2}, {3, 3}, {4, 2}}) {
      run_local_ranks(to, [&, from = from, to = to, to_shard = to_shard](auto world) {
        RankRig rig(std::move(world), to_shard);
        Toy toy(rig);
        toy.clear();
        std::vector<StateDict> mine;
        for (int r = rig.rank(); r < from; r += to) mine.push_back(dicts[static_cast<std::size_t>(r)]);
        load_state_dict_pieces(toy.model, mine);
        expect_numbered(rig, toy, fmt::format("from {} ranks to {}", from, to));
      });
    }
  }
}

// E4: pieces may overlap: rows [0, 2) and [2, 4) of a world of three, [3, 5) of a world of two.
TEST(E4Load, PiecesMayOverlap) {
  const std::vector<StateDict> of_three = sharded_dicts(3, 3), of_two = sharded_dicts(2, 2);
  run_local_ranks(2, [&](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    toy.clear();
    std::vector<StateDict> mine{rig.rank() == 0 ? of_three[1] : of_three[0]};
    if (rig.rank() == 0) mine.push_back(of_two[1]);
    load_state_dict_pieces(toy.model, mine);
    expect_numbered(rig, toy);
  });
}

// E4: rows that nobody has are named, on all ranks.
TEST(E4Load, MissingRowsAreNamed) {
  const std::vector<StateDict> dicts = sharded_dicts(4, 4);
  run_local_ranks(2, [&](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    const std::string text = error_of<ConfigError>([&] { load_state_dict_pieces(toy.model, {&dicts[rig.rank() == 0 ? 0 : 2], 1}); });
    EXPECT_EQ(text, "no rank has rows [2, 4) of 0.weight [5, 3] in its state dict");
  });
}

}  // namespace
}  // namespace mica::fsdp::testing
