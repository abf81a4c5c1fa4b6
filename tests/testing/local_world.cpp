// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <thread>

#include "testing/local_make.hpp"
#include "testing/local_shared.hpp"

namespace mica {

std::string LocalArguments::to_string() const {
  std::string text = fmt::format("{} '{}' of {} x {}", collective_name(kind), label, numel, dtype_name(dtype));
  if (kind == Collective::all_reduce) text += op == ReduceOp::sum ? " (sum)" : " (max)";
  if (kind == Collective::broadcast) text += fmt::format(" from rank {}", root);
  return text;
}

std::shared_ptr<LocalShared> LocalWorld::make_shared(std::vector<int> world_ranks) {
  auto shared = std::make_shared<LocalShared>(std::move(world_ranks), options_.stall_timeout);
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const std::weak_ptr<LocalShared>& group) { return group.expired(); });
  groups_.push_back(shared);
  return shared;
}

void LocalWorld::fail(int world_rank, const std::string& why) {
  std::vector<std::shared_ptr<LocalShared>> groups;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : groups_) {
      if (auto group = weak.lock()) groups.push_back(std::move(group));
    }
  }
  // Also the groups that this rank is not in: their ranks would wait for each other's failures one after another.
  for (const auto& group : groups) {
    group->stream_barrier.close(fmt::format("rank {} failed: {}", world_rank, why));
    group->host_barrier.close(fmt::format("rank {} failed: {}", world_rank, why));
  }
}

namespace {

struct Failure {
  std::exception_ptr error;
  bool is_own = false;  ///< not merely about another rank
};

Failure run_rank(const std::shared_ptr<LocalWorld>& world, std::unique_ptr<ProcessGroup> group,
                 const std::function<void(std::unique_ptr<ProcessGroup>)>& body) {
  const int rank = group->rank();
  try {
    body(std::move(group));
    return {};
  } catch (const PeerLeft& e) {
    world->fail(rank, e.what());
    return {std::current_exception(), false};
  } catch (const std::exception& e) {
    world->fail(rank, e.what());
    return {std::current_exception(), true};
  } catch (...) {
    world->fail(rank, "an exception of unknown type");
    return {std::current_exception(), true};
  }
}

}  // namespace

void run_local_ranks(int num_ranks, const std::function<void(std::unique_ptr<ProcessGroup>)>& body, LocalOptions options) {
  require<ConfigError>(num_ranks >= 1, "run_local_ranks with {} ranks; expected at least 1", num_ranks);
  const auto world = std::make_shared<LocalWorld>(options);
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
  for (int r = 0; r < num_ranks; ++r) ranks[static_cast<std::size_t>(r)] = r;
  const std::shared_ptr<LocalShared> shared = world->make_shared(ranks);

  std::vector<Failure> failures(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (const int r : ranks) {
      threads.emplace_back([&, r, group = make_local_group(world, shared, r, "world")]() mutable {
        failures[static_cast<std::size_t>(r)] = run_rank(world, std::move(group), body);
      });
    }
  }
  for (const bool want_own : {true, false}) {
    for (const Failure& failure : failures) {
      if (failure.error && (failure.is_own || !want_own)) std::rethrow_exception(failure.error);
    }
  }
}

}  // namespace mica
