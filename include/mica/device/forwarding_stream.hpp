// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "mica/device/stream.hpp"

namespace mica {

/// A stream that forwards everything to another one, which it owns: the base of wrappers that change one thing.
class ForwardingStream : public Stream {
 public:
  explicit ForwardingStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] DeviceKind device() const override { return inner_->device(); }
  [[nodiscard]] const std::string& name() const override { return inner_->name(); }
  [[nodiscard]] void* native() const override { return inner_->native(); }
  using Stream::submit;
  void submit(const char* what, std::span<const Access> accesses, Task task) override { inner_->submit(what, accesses, std::move(task)); }
  void annotate(std::string_view label, std::int64_t bytes) override { inner_->annotate(label, bytes); }
  void begin_range(std::string_view owner, const char* phase) override { inner_->begin_range(owner, phase); }
  void end_range() override { inner_->end_range(); }
  void fail(std::exception_ptr error) override { inner_->fail(std::move(error)); }
  [[nodiscard]] Event record() override { return inner_->record(); }
  void wait(const Event& event, std::source_location site) override { inner_->wait(event, site); }
  void synchronize() override { inner_->synchronize(); }
  void drain_and_clear_error() noexcept override { inner_->drain_and_clear_error(); }

 protected:
  std::unique_ptr<Stream> inner_;
};

}  // namespace mica
