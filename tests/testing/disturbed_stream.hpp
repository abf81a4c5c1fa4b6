// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/device/stream.hpp"

namespace mica {

/// Leaves out waits, to show that each one is needed: either one single wait() call, counted from 0 over all streams
/// of a rank in host order, or every call made at one place of the source. A dry run that drops nothing lists the
/// places. Example: for (const auto& site : dry_run.sites()) { WaitDropper d; d.drop_site(site.place); ... must fail
/// ... }
class WaitDropper {
 public:
  struct Site {
    std::string place;  ///< "schedule.cpp:120"
    std::int64_t num_waits = 0;
  };

  void drop_call(std::int64_t index) { dropped_call_ = index; }
  void drop_site(std::string place) { dropped_place_ = std::move(place); }

  [[nodiscard]] std::int64_t num_waits() const { return num_waits_; }
  [[nodiscard]] std::int64_t num_dropped() const { return num_dropped_; }
  /// In the order of their first call.
  [[nodiscard]] const std::vector<Site>& sites() const { return sites_; }

  /// Counts the call. @return whether it is to be left out.
  [[nodiscard]] bool drops(const std::source_location& where);

 private:
  std::optional<std::int64_t> dropped_call_;
  std::string dropped_place_;
  std::int64_t num_waits_ = 0;
  std::int64_t num_dropped_ = 0;
  std::vector<Site> sites_;
};

/// Asks `dropper`, which must outlive it, before each wait. Put it outside a checking stream:
/// drop_waits(checker.wrap(make_cpu_stream(...)), dropper).
[[nodiscard]] std::unique_ptr<Stream> drop_waits(std::unique_ptr<Stream> inner, WaitDropper& dropper);

/// Sleeps before about one in `one_in` tasks, for up to `longest`; which and how long follows from `seed`. Results that
/// change under it depend on timing.
[[nodiscard]] std::unique_ptr<Stream> delay_tasks(std::unique_ptr<Stream> inner, std::uint64_t seed, std::chrono::microseconds longest,
                                                  std::uint64_t one_in = 2);

}  // namespace mica
