// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/step_recorder.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <string_view>
#include <utility>

#include "mica/comm/fake_group.hpp"
#include "mica/core/error.hpp"
#include "mica/device/waited_events.hpp"

namespace mica::plan {

struct StepRecorder::State {
  RecorderOptions options;
  FakeRecorder calls;
  StepRecord record;
  std::deque<std::int32_t> last_op;  ///< by stream: index of its last recorded op
  std::vector<ProductShape> products;
  bool keeps = false;
  int epoch = 0;                                         ///< counts begin()
  std::map<const std::vector<int>*, GroupShape> shapes;  ///< by members
  std::vector<std::shared_ptr<const std::vector<int>>> members;

  Pool* pool = nullptr;  ///< for staging

  void stage(const FakeCall& call, Stream& stream) const {
    if (!options.staging_bytes || pool == nullptr) return;
    const std::int64_t numel = call.bytes / dtype_bytes(call.dtype);
    const std::int64_t bytes = options.staging_bytes(call.kind, numel, call.dtype, static_cast<int>(call.members->size()));
    static_cast<void>(pool->allocate(bytes, MemoryRole::communication, stream));
  }
  std::int32_t add(RecordedOp op) {
    record.ops.push_back(op);
    return static_cast<std::int32_t>(record.ops.size() - 1);
  }
  std::int32_t index_of(const std::string& group) {
    const auto found = std::ranges::find(record.groups, group);
    const auto index = static_cast<std::int32_t>(found - record.groups.begin());
    if (found == record.groups.end()) record.groups.push_back(group);
    return index;
  }
  GroupShape shape_of(const std::shared_ptr<const std::vector<int>>& of) {
    const auto [found, is_new] = shapes.try_emplace(of.get());
    if (!is_new) return found->second;
    members.push_back(of);  // kept alive, so that its address is not reused
    std::map<int, int> on_node;
    for (const int rank : *of) ++on_node[options.nodes[static_cast<std::size_t>(rank)]];
    GroupShape& shape = found->second;
    shape.num_ranks = static_cast<int>(of->size());
    shape.num_nodes = static_cast<int>(on_node.size());
    for (const auto& [node, ranks] : on_node) shape.ranks_on_node = std::max(shape.ranks_on_node, ranks);
    return shape;
  }
};

namespace {

using State = StepRecorder::State;

class RecordedEvent final : public EventState {
 public:
  /// @param last  of its stream in State::last_op
  RecordedEvent(std::shared_ptr<State> state, const std::int32_t& last)
      : state_(std::move(state)), origin_(&last), op_(last), epoch_(state_->epoch) {}
  [[nodiscard]] std::int32_t op() const { return epoch_ == state_->epoch ? op_ : RecordedOp::kNothing; }
  /// Nothing has run yet.
  [[nodiscard]] bool is_complete() const override { return false; }
  [[nodiscard]] const void* origin() const override { return origin_; }
  [[nodiscard]] std::uint64_t sequence() const override {
    return static_cast<std::uint64_t>(epoch_) << 32 | static_cast<std::uint32_t>(op_ + 1);
  }
  void wait_on_host() override {
    if (state_->keeps && op() != RecordedOp::kNothing)
      state_->add({.kind = RecordedOp::Kind::host_wait, .what = "host waits", .event = op()});
  }

 private:
  std::shared_ptr<State> state_;
  const void* origin_;
  std::int32_t op_;
  int epoch_;
};

/// 2 products of [T,D] x [D,T] per head in forward, 5 in backward (the scores are recomputed), half of each since attention is causal.
double attention_flops(bool is_backward, std::span<const Access> accesses, std::int64_t seq_len, std::int64_t element_bytes) {
  const auto output = std::ranges::find(accesses, Access::Mode::write, &Access::mode);
  // Backward reads the gradient of the output first; both are [B,T,H*D].
  const std::int64_t numel = (is_backward ? accesses[0].bytes : output->bytes) / element_bytes;
  const double one = static_cast<double>(seq_len) * static_cast<double>(numel);  // 2 T T H D B / 2
  return (is_backward ? 5 : 2) * one;
}

/// Tasks of SharedParts, which read and write nothing but counters.
bool only_orders(std::string_view task) {
  return task == "publish" || task == "release" || task == collective_name(Collective::wait_for_written) ||
         task == collective_name(Collective::wait_for_released);
}

class RecordingStream final : public Stream {
 public:
  RecordingStream(std::shared_ptr<State> state, std::string name, std::uint8_t index)
      : state_(std::move(state)), name_(std::move(name)), index_(index) {}

  [[nodiscard]] DeviceKind device() const override { return DeviceKind::cpu; }
  [[nodiscard]] const std::string& name() const override { return name_; }

  using Stream::submit;
  void submit(const char* what, std::span<const Access> accesses, Task /*task*/) override {
    RecordedOp op{.kind = RecordedOp::Kind::kernel, .stream = index_, .what = what};
    op.is_recomputed = std::ranges::find(is_recomputation_, true) != is_recomputation_.end();
    State& state = *state_;
    op.first_product = static_cast<std::int32_t>(state.record.products.size());
    op.num_products = static_cast<std::int32_t>(state.products.size());
    if (state.keeps) state.record.products.insert(state.record.products.end(), state.products.begin(), state.products.end());
    state.products.clear();
    const std::vector<FakeCall> calls = std::exchange(state.calls.calls, {});
    if (!state.keeps) return;
    if (!calls.empty()) {
      const FakeCall& call = calls.back();
      op.kind = RecordedOp::Kind::collective;
      op.bytes = call.bytes;
      op.collective = call.kind;
      op.group = state.shape_of(call.members);
      op.group_name = state.index_of(call.group);
    } else {
      const std::string_view name = what;
      if (!only_orders(name)) {
        for (const Access& access : accesses) op.bytes += access.bytes;
      }
      op.is_backward = name == "attention_backward";
      if (op.is_backward || name == "attention") {
        op.attention_flops = attention_flops(op.is_backward, accesses, state.options.seq_len, dtype_bytes(state.options.dtype));
      }
    }
    last() = state.add(op);
  }
  void begin_range(std::string_view /*owner*/, const char* phase) override {
    is_recomputation_.push_back(std::string_view(phase) == kRecomputation);
  }
  void end_range() override { is_recomputation_.pop_back(); }
  [[nodiscard]] Event record() override { return Event(std::make_shared<RecordedEvent>(state_, last())); }
  void wait(const Event& event, std::source_location) override {
    const auto* recorded = dynamic_cast<const RecordedEvent*>(event.state().get());
    if (!recorded || !state_->keeps || recorded->op() == RecordedOp::kNothing) return;
    if (waited_.is_known(event, &last())) return;
    last() = state_->add({.kind = RecordedOp::Kind::wait, .stream = index_, .what = "waits", .event = recorded->op()});
  }
  void synchronize() override {
    if (state_->keeps && last() != RecordedOp::kNothing)
      state_->add({.kind = RecordedOp::Kind::host_wait, .what = "host waits", .event = last()});
  }
  void drain_and_clear_error() noexcept override {}

 private:
  std::int32_t& last() { return state_->last_op[index_]; }

  std::shared_ptr<State> state_;
  std::string name_;
  std::uint8_t index_;
  std::vector<bool> is_recomputation_;  // of the open ranges
  detail::WaitedEvents waited_;
};

}  // namespace

StepRecorder::StepRecorder(RecorderOptions options) : state_(std::make_shared<State>()) {
  require<ConfigError>(options.rank >= 0 && options.rank < std::ssize(options.nodes), "a dry device is rank {} of {}", options.rank,
                       options.nodes.size());
  state_->options = std::move(options);
  state_->calls.on_call = [state = state_.get()](const FakeCall& call, Stream& stream) { state->stage(call, stream); };
}

StepRecorder::~StepRecorder() = default;

std::unique_ptr<Stream> StepRecorder::make_stream(std::string name) {
  const auto index = static_cast<std::uint8_t>(state_->record.streams.size());
  state_->record.streams.push_back(name);
  state_->last_op.push_back(RecordedOp::kNothing);
  return std::make_unique<RecordingStream>(state_, std::move(name), index);
}

std::unique_ptr<Pool> StepRecorder::make_pool() {
  std::unique_ptr<Pool> pool = make_dry_pool(state_->options.device);
  state_->pool = pool.get();
  return pool;
}

std::unique_ptr<ProcessGroup> StepRecorder::make_world() {
  const RecorderOptions& options = state_->options;
  return make_fake_group(options.rank, static_cast<int>(options.nodes.size()), &state_->calls,
                         {.nodes = options.shares_memory ? options.nodes : std::vector<int>{}, .own_blocks_from = options.own_blocks_from});
}

std::vector<ProductShape>* StepRecorder::products() { return &state_->products; }

void StepRecorder::begin() {
  state_->keeps = true;
  ++state_->epoch;
  state_->record.ops.clear();
  state_->record.products.clear();
  std::ranges::fill(state_->last_op, RecordedOp::kNothing);
}

void StepRecorder::mark() { state_->add({.kind = RecordedOp::Kind::mark, .what = "step ends"}); }

StepRecord StepRecorder::take() {
  state_->keeps = false;
  StepRecord taken = std::move(state_->record);
  state_->record = {.streams = taken.streams, .groups = taken.groups, .ops = {}, .products = {}};
  return taken;
}

}  // namespace mica::plan
