// SPDX-License-Identifier: Apache-2.0
// docs/parity.md C1 to C3: who holds which elements, and what of it the API shows.
#include <numeric>

#include "mica/fsdp/visible_parameters.hpp"
#include "mica/fsdp/wrap_policy.hpp"

#include "../named_piece.hpp"
#include "rank_rig.hpp"
#include "tree_module.hpp"

namespace mica::fsdp {
namespace {

using testing::named;
using testing::NamedPiece;
using testing::RankRig;
using testing::TreeModule;

TEST(Layout, C1_AFiveByFiveWeightOverTwoRanksIs26In13And13) {
  const FlatLayout layout({{"weight", {5, 5}}}, 2, 1);
  EXPECT_EQ(layout.gathered_numel(), 26);
  EXPECT_EQ(layout.shard_numel(), 13);
  EXPECT_EQ(named(layout, layout.pieces(0)), (std::vector<NamedPiece>{{"weight", {5, 5}, 0, 13, 0}}));
  EXPECT_EQ(named(layout, layout.pieces(1)), (std::vector<NamedPiece>{{"weight", {5, 5}, 13, 25, 0}}));
}

TEST(Layout, C1_ALinearWithAlignmentIs44In22And22) {
  const FlatLayout layout({{"weight", {7, 5}}, {"bias", {7}}}, 2, 4);
  EXPECT_EQ(layout.param_numel(), 42);
  EXPECT_EQ(layout.gathered_numel(), 44);
  EXPECT_EQ(layout.shard_numel(), 22);
  EXPECT_EQ(layout.begin_of(1), 36);                                                                    // 35 + 1 alignment
  EXPECT_EQ(named(layout, layout.pieces(0)), (std::vector<NamedPiece>{{"weight", {7, 5}, 0, 22, 0}}));  // no bias on rank 0
  EXPECT_EQ(named(layout, layout.pieces(1)), (std::vector<NamedPiece>{{"weight", {7, 5}, 22, 35, 0}, {"bias", {7}, 0, 7, 14}}));
}

// Metadata of any range, against counting element by element, with offsets in range and past the end.
TEST(Layout, C1_MetadataOfAnyRange) {
  const FlatLayout layout({{"a", {2, 3}}, {"b", {1}}, {"c", {5}}}, 3, 4);  // a 0-5, b at 8, c 12-16, 18 in all
  ASSERT_EQ(layout.gathered_numel(), 18);
  for (std::int64_t begin = 0; begin <= 20; ++begin) {
    for (std::int64_t end = begin; end <= 22; ++end) {
      std::vector<NamedPiece> expected;
      const struct {
        const char* name;
        Shape shape;
        std::int64_t at, numel;
      } parameters[] = {{"a", {2, 3}, 0, 6}, {"b", {1}, 8, 1}, {"c", {5}, 12, 5}};
      for (const auto& p : parameters) {
        std::int64_t first = -1, last = -1;
        for (std::int64_t i = begin; i < end; ++i) {
          if (i < p.at || i >= p.at + p.numel) continue;
          if (first < 0) first = i;
          last = i;
        }
        if (first >= 0) expected.push_back({p.name, p.shape, first - p.at, last + 1 - p.at, first - begin});
      }
      EXPECT_EQ(named(layout, layout.pieces_in(begin, end)), expected) << begin << " to " << end;
    }
  }
}

// Chunks of ceil(n / S): later ranks short or empty, S above n too.
TEST(Layout, C2_ChunksAreCeilAndLaterRanksMayBeShortOrEmpty) {
  for (const std::int64_t n : {1, 2, 3, 5, 26, 127, 128, 129, 1000}) {
    for (const int shard_size : {1, 2, 3, 4, 7, 128}) {
      const FlatLayout layout({{"p", {n}}}, shard_size, 1);
      const std::int64_t chunk = (n + shard_size - 1) / shard_size;
      EXPECT_EQ(layout.shard_numel(), chunk);
      for (int rank = 0; rank < shard_size; ++rank) {
        const std::int64_t begin = std::min(n, rank * chunk), end = std::min(n, begin + chunk);
        const std::vector<Piece> pieces = layout.pieces(rank);
        if (begin == end) {
          EXPECT_TRUE(pieces.empty()) << n << " over " << shard_size << " rank " << rank;
        } else {
          EXPECT_EQ(named(layout, pieces), (std::vector<NamedPiece>{{"p", {n}, begin, end, 0}})) << n << " over " << shard_size;
        }
      }
    }
  }
}

// A group of 128 ranks, sizes that divide nothing: every element lies where the layout says, and gathers back.
TEST(Layout, C2_A128RankGroupHoldsAndGathersOddSizes) {
  run_local_ranks(128, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 1);
    for (const auto& [name, numel] : {std::pair{"a", 127}, {"b", 1}, {"c", 131}, {"d", 3}}) model.child(name, "node", numel);
    Root& root = auto_wrap(model, rig.device_mesh(), {}, wrap_nothing());
    root.initialize(1);
    rig.number_masters(model);
    UnitStorage& storage = *root.units()[0]->storage();
    // Parameters begin at multiples of 64: 0, 64, 192, 256, 448; up to 451, padded to 512.
    EXPECT_EQ(storage.layout().shard_numel(), 4);
    root.units()[0]->unshard().wait();
    int n = 0;
    for (const UnitParameter& p : storage.parameters()) {
      EXPECT_EQ(rig.values(p.parameter->data), testing::numbered(n++, p.parameter->shape.numel())) << p.full_name;
    }
    root.reshard();
  });
}

// Four parameters of 64 elements' alignment over 2 ranks: rank 0 holds a and part of b, rank 1 the rest.
TEST(Layout, C3_OriginalParametersAreNamed1DPiecesThatMayBeEmptyWithAbsentGradients) {
  run_local_ranks(2, [](auto world) {
    const int rank = world->rank();
    RankRig rig(std::move(world));
    TreeModule model("root", 0);
    model.child("a", "node", Shape{3, 2});
    model.child("b", "node", Shape{2, 2});
    Root& root = auto_wrap(model, rig.device_mesh(), {.root = RootOptions{.use_orig_params = true}}, wrap_nothing());
    root.initialize(1);
    rig.number_masters(model);
    // a at 0 to 5, b at 64 to 67: 68 in 34 and 34.
    std::vector<VisibleParameter> shown = visible_parameters(root);
    ASSERT_EQ(shown.size(), 2U);
    EXPECT_EQ(shown[0].name, "a.weight");
    EXPECT_EQ(shown[1].name, "b.weight");
    EXPECT_EQ(shown[0].data.shape, (Shape{rank == 0 ? 6 : 0}));
    EXPECT_EQ(shown[1].data.shape, (Shape{rank == 0 ? 0 : 4}));
    for (const VisibleParameter& p : shown) EXPECT_FALSE(p.grad) << p.name;  // absent, not zero
    const VisibleParameter& mine = shown[static_cast<std::size_t>(rank)];
    EXPECT_EQ(rig.values(mine.data), testing::numbered(rank, mine.data.numel()));

    nn::Record record;
    const nn::Tensors ys = model.forward(rig.context(), {Tensor()}, &record);
    model.backward(rig.context(), std::move(record), ys);
    shown = visible_parameters(root);
    EXPECT_EQ(shown[static_cast<std::size_t>(rank)].grad.shape, (Shape{rank == 0 ? 6 : 4}));
    EXPECT_FALSE(shown[static_cast<std::size_t>(1 - rank)].grad);
  });
}

TEST(Layout, C3_ShardGradOpShowsUnshardedParametersBetweenForwardAndBackward) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 0);
    model.child("a", "node", Shape{3, 2});
    Root& root = auto_wrap(model, rig.device_mesh(), {.strategy = Strategy::shard_grad_op, .root = RootOptions{.use_orig_params = true}},
                           wrap_types({"node"}));
    root.initialize(1);
    rig.number_masters(model);
    nn::Record record;
    const nn::Tensors ys = model.forward(rig.context(), {Tensor()}, &record);
    EXPECT_EQ(visible_parameters(root)[0].data.shape, (Shape{3, 2}));
    EXPECT_EQ(rig.values(visible_parameters(root)[0].data), testing::numbered(0, 6));
    model.backward(rig.context(), std::move(record), ys);
    EXPECT_EQ(visible_parameters(root)[0].data.shape, (Shape{3}));
  });
}

TEST(Layout, C3_InsideNoSyncTheUnshardedGradientIsVisible) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 0);
    model.child("a", "node", Shape{3, 2});
    Root& root = auto_wrap(model, rig.device_mesh(), {.root = RootOptions{.use_orig_params = true}}, wrap_types({"node"}));
    root.initialize(1);
    const auto pass = [&] {
      nn::Record record;
      const nn::Tensors ys = model.forward(rig.context(), {Tensor()}, &record);
      model.backward(rig.context(), std::move(record), ys);
    };
    {
      NoSync no_sync(root);
      pass();
      const VisibleParameter inside = visible_parameters(root)[0];
      EXPECT_EQ(inside.grad.shape, (Shape{3, 2}));
      EXPECT_EQ(rig.values(inside.grad), std::vector<float>(6, 1.0F));
      EXPECT_EQ(inside.data.shape, (Shape{3}));  // full_shard gave the parameters back
    }
    pass();
    EXPECT_EQ(visible_parameters(root)[0].grad.shape, (Shape{3}));
    EXPECT_EQ(rig.values(visible_parameters(root)[0].grad), std::vector<float>(3, 2.0F));
  });
}

TEST(Layout, C3_WithoutItAUnitShowsOneFlatParameter) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 5);
    model.child("a", "node", Shape{3, 2});
    Root& root = auto_wrap(model, rig.device_mesh(), {}, wrap_types({"node"}));
    root.initialize(1);
    const std::vector<VisibleParameter> shown = visible_parameters(root);
    ASSERT_EQ(shown.size(), 2U);
    EXPECT_EQ(shown[0].name, "flat_param");
    EXPECT_EQ(shown[0].data.shape, (Shape{3}));  // 5 + 1 padding over 2 ranks
    EXPECT_EQ(shown[1].name, "a.flat_param");
    EXPECT_EQ(shown[1].data.shape, (Shape{3}));
    // What optimizers walk is the same in both modes.
    EXPECT_EQ(root.pieces().size(), 2U);
  });
}

}  // namespace
}  // namespace mica::fsdp
