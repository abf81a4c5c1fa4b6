// SPDX-License-Identifier: Apache-2.0
#include "mica/core/unique_handle.hpp"

#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

namespace mica {
namespace {

std::vector<int> closed;

struct IntTraits {
  using type = int;
  static int null() { return -1; }
  static void close(int handle) noexcept { closed.push_back(handle); }
};
using Handle = UniqueHandle<IntTraits>;

class UniqueHandleTest : public ::testing::Test {
 protected:
  void SetUp() override { closed.clear(); }
};

static_assert(!std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle>);
static_assert(std::is_nothrow_move_constructible_v<Handle> && std::is_nothrow_move_assignable_v<Handle>);

TEST_F(UniqueHandleTest, ClosesOnceAtTheEnd) {
  {
    const Handle handle(7);
    EXPECT_TRUE(handle);
    EXPECT_EQ(handle.get(), 7);
    EXPECT_TRUE(closed.empty());
  }
  EXPECT_EQ(closed, std::vector<int>{7});
}

TEST_F(UniqueHandleTest, NullIsNeverClosed) {
  {
    const Handle handle;
    EXPECT_FALSE(handle);
    EXPECT_EQ(handle.get(), -1);
  }
  EXPECT_TRUE(closed.empty());
}

TEST_F(UniqueHandleTest, MovesLeaveNullBehind) {
  {
    Handle first(1);
    Handle second(std::move(first));
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that is the claim
    Handle third(3);
    third = std::move(second);
    EXPECT_EQ(closed, std::vector<int>{3}) << "what was held is closed at once";
    EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(third.get(), 1);
    Handle& self = third;
    third = std::move(self);
    EXPECT_EQ(third.get(), 1);
  }
  EXPECT_EQ(closed, (std::vector<int>{3, 1}));
}

TEST_F(UniqueHandleTest, ReleaseGivesUpOwnership) {
  {
    Handle handle(5);
    EXPECT_EQ(handle.release(), 5);
    EXPECT_FALSE(handle);
  }
  EXPECT_TRUE(closed.empty());
}

TEST_F(UniqueHandleTest, ResetAndPutCloseWhatWasHeld) {
  {
    Handle handle(1);
    handle.reset(2);
    EXPECT_EQ(closed, std::vector<int>{1});
    *handle.put() = 3;
    EXPECT_EQ(closed, (std::vector<int>{1, 2}));
    handle.reset();
    EXPECT_EQ(closed, (std::vector<int>{1, 2, 3}));
  }
  EXPECT_EQ(closed.size(), 3U);
}

}  // namespace
}  // namespace mica
