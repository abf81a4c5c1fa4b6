// SPDX-License-Identifier: Apache-2.0
#include "mica/core/log.hpp"

#include <cerrno>
#include <cstdio>
#include <mutex>
#include <vector>

#include "mica/core/error.hpp"

namespace mica {
namespace {

/// One destination of lines: standard error, or a file that is closed with its last logger.
class Sink {
 public:
  Sink(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}
  ~Sink() {
    if (file_ != stderr) std::fclose(file_);
  }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  /// Lines of several threads do not mix. A full disk costs the log, not the run: one warning goes to standard error.
  void write(const std::string& line) {
    const std::scoped_lock lock(mutex_);
    const bool is_written = std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fflush(file_) == 0;
    if (is_written || has_failed_ || file_ == stderr) return;
    has_failed_ = true;
    std::fprintf(stderr, "mica: warning: cannot write to %s: %s; lines of the log are lost\n", path_.c_str(), errno_text(errno).c_str());
  }

 private:
  std::mutex mutex_;
  std::FILE* file_;
  std::string path_;
  bool has_failed_ = false;
};

}  // namespace

struct Logger::Sinks {
  std::string prefix;
  LogLevel level = LogLevel::off;
  std::vector<std::shared_ptr<Sink>> all;
};

Logger::Logger() : sinks_(std::make_shared<Sinks>()) {}

Logger Logger::to_stderr(LogLevel level, std::string prefix) {
  Logger logger;
  *logger.sinks_ = Sinks{std::move(prefix), level, {std::make_shared<Sink>(stderr, "standard error")}};
  return logger;
}

void Logger::write(LogLevel level, std::string_view text) const {
  if (level < sinks_->level || sinks_->all.empty()) return;
  const std::string line =
      fmt::format("{}{}{}\n", sinks_->prefix.empty() ? "" : "[" + sinks_->prefix + "] ", level == LogLevel::warn ? "warning: " : "", text);
  for (const auto& sink : sinks_->all) sink->write(line);
}

Logger Logger::with_file(const std::string& path) const {
  std::FILE* file = std::fopen(path.c_str(), "ae");  // e: child processes do not inherit it
  require<ConfigError>(file != nullptr, "cannot open the log file {}: {}", path, errno_text(errno));
  Logger logger;
  *logger.sinks_ = *sinks_;
  logger.sinks_->all.push_back(std::make_shared<Sink>(file, path));
  return logger;
}

}  // namespace mica
