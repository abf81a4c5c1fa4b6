#include "mica/comm/agree.hpp"

#include <algorithm>

#include "mica/core/error_text.hpp"

namespace mica {
namespace {

void gather_bytes(ProcessGroup& group, Stream& stream, const char* label, const void* mine, void* all,
                  std::int64_t bytes) {
  const ConstTensorView sent{mine, Shape{bytes}, DType::u8};
  const TensorView received{all, Shape{bytes * group.num_ranks()}, DType::u8};
  if (stream.device() == DeviceKind::cpu) {
    group.all_gather(stream, label, sent, received);
  } else {  // these bytes are the host's
    const std::unique_ptr<Stream> host = make_cpu_stream("agree", StreamMode::inlined);
    group.on_host().all_gather(*host, label, sent, received);
    host->synchronize();
  }
  stream.synchronize();
}

}  // namespace

std::vector<std::vector<std::int64_t>> gather_numbers(ProcessGroup& group, Stream& stream, const char* label,
                                                      const std::vector<std::int64_t>& mine) {
  const std::size_t n = mine.size();
  std::vector<std::int64_t> all;
  for (int r = 0; r < group.num_ranks(); ++r) all.insert(all.end(), mine.begin(), mine.end());
  gather_bytes(group, stream, label, mine.data(), all.data(), static_cast<std::int64_t>(n * sizeof(std::int64_t)));
  std::vector<std::vector<std::int64_t>> by_rank;
  for (auto at = all.begin(); by_rank.size() < static_cast<std::size_t>(group.num_ranks());
       at += static_cast<std::ptrdiff_t>(n)) {
    by_rank.emplace_back(at, at + static_cast<std::ptrdiff_t>(n));
  }
  return by_rank;
}

std::vector<std::string> gather_strings(ProcessGroup& group, Stream& stream, const char* label,
                                        const std::string& mine) {
  const auto n = static_cast<std::size_t>(group.num_ranks());
  const std::vector<std::vector<std::int64_t>> bytes =
      gather_numbers(group, stream, label, {static_cast<std::int64_t>(mine.size())});
  // All ranks send as much as the longest.
  const std::int64_t longest = std::ranges::max(bytes)[0];
  std::string padded = mine;
  padded.resize(static_cast<std::size_t>(longest));
  std::string joined(n * padded.size(), '\0');
  if (longest > 0) gather_bytes(group, stream, label, padded.data(), joined.data(), longest);
  std::vector<std::string> all(n);
  for (std::size_t r = 0; r < n; ++r) all[r] = joined.substr(r * padded.size(), static_cast<std::size_t>(bytes[r][0]));
  return all;
}

void agree(ProcessGroup& group, Stream& stream, const char* label, const std::function<void()>& action) {
  std::string error;
  try {
    action();
  } catch (const std::exception& e) {
    error = text_of_error(e);
  }
  const std::vector<std::string> errors = gather_strings(group, stream, label, error);
  for (std::size_t r = 0; r < errors.size(); ++r) {
    if (errors[r].empty()) continue;
    throw_error_of(errors[r], errors.size() > 1 ? fmt::format("rank {}: ", r) : "");
  }
}

}  // namespace mica
