// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mica/comm/process_group.hpp"

/// What every backend that shares memory must do.
namespace mica::testing {

/// Writers and readers take turns: in each round every rank writes its part with a number of its own on one stream, and reads
/// everybody's on another, some element by element at once, some with pauses.
/// @param group  of 2 ranks or more, which shares memory.
inline void check_rounds(ProcessGroup& group, StreamMode mode) {
  constexpr std::uint64_t kRounds = 40;
  constexpr auto kRole = MemoryRole::sharded_param;
  ASSERT_TRUE(group.shares_memory());
  group.reset_counts();
  const auto pool = make_cpu_pool();
  const auto writing = make_cpu_stream("writing", mode), reading = make_cpu_stream("reading", mode);
  const auto of_reading = group.duplicate("of_reading");
  for (const std::int64_t numel : {1, 3, 1024, 2051}) {
    const std::string what = "parts of " + std::to_string(numel) + " elements";
    {
      SharedParts parts = group.allocate_parts(*pool, numel, DType::f32, kRole, *writing);
      ASSERT_TRUE(parts.is_shared());
      EXPECT_EQ(parts.own.numel(), numel) << what;
      EXPECT_EQ(parts.whole.numel(), numel * group.num_ranks()) << what;
      EXPECT_EQ(parts.own.data, parts.whole.slice(group.rank() * numel, numel).data) << what;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(parts.whole.data) % 64, 0U) << what;
      EXPECT_EQ(pool->stats().current_of(kRole), 4 * numel) << "each rank counts its own part";
      EXPECT_EQ(pool->stats().current, 4 * numel) << what;
      int num_wrong = 0;
      const auto value = [numel](std::uint64_t round, int rank, std::int64_t i) {
        return static_cast<float>(static_cast<std::int64_t>(round) * 10'000 + rank * numel + i);
      };
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        if (round > 1) group.wait_for_released(*writing, "h.0", parts, round - 1);
        writing->submit("write", {writes(parts.own)}, [&parts, &value, &group, numel, round] {
          for (std::int64_t i = 0; i < numel; ++i) parts.own.as<float>()[i] = value(round, group.rank(), i);
        });
        reading->wait(writing->record());
        parts.publish(*reading, round);
        of_reading->wait_for_written(*reading, "h.0", parts, round);
        reading->submit("read", {reads(parts.whole)}, [&parts, &value, &group, &num_wrong, numel, round] {
          for (int r = 0; r < group.num_ranks(); ++r) {
            for (std::int64_t i = 0; i < numel; ++i) num_wrong += parts.whole.as<float>()[r * numel + i] != value(round, r, i);
          }
        });
        parts.release(*reading, round);
        writing->wait(reading->record());
      }
      writing->synchronize();
      EXPECT_EQ(num_wrong, 0) << what << ": values of another round were read";
      parts.memory.used_until(reading->record());
    }
    EXPECT_EQ(pool->stats().current, 0) << what;
  }
  EXPECT_EQ(of_reading->counts().of(Collective::wait_for_written), 4 * static_cast<std::int64_t>(kRounds));
  EXPECT_EQ(group.counts().of(Collective::wait_for_released), 4 * static_cast<std::int64_t>(kRounds - 1));
  EXPECT_EQ(group.counts().of(Collective::all_gather) + of_reading->counts().of(Collective::all_gather), 0);
}

}  // namespace mica::testing
