// SPDX-License-Identifier: Apache-2.0
#include "mica/core/log.hpp"

#include <vector>

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "mica/core/error.hpp"

namespace mica {
namespace {
spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warn:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}
}  // namespace

struct Logger::Sinks {
  std::string prefix;
  LogLevel level = LogLevel::off;
  std::vector<spdlog::sink_ptr> all;
  std::unique_ptr<spdlog::logger> out;

  void rebuild() {
    out = std::make_unique<spdlog::logger>("mica", all.begin(), all.end());
    out->set_level(to_spdlog(level));
    out->set_pattern(prefix.empty() ? "%v" : "[" + prefix + "] %v");
    out->flush_on(spdlog::level::info);
  }
};

Logger::Logger() : sinks_(std::make_shared<Sinks>()) { sinks_->rebuild(); }

Logger Logger::to_stderr(LogLevel level, std::string prefix) {
  Logger logger;
  logger.sinks_->prefix = std::move(prefix);
  logger.sinks_->level = level;
  logger.sinks_->all.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger.sinks_->rebuild();
  return logger;
}

void Logger::write(LogLevel level, std::string_view text) const {
  const auto spd = to_spdlog(level);
  if (level == LogLevel::warn) {
    sinks_->out->log(spd, "warning: {}", text);
  } else {
    sinks_->out->log(spd, "{}", text);
  }
}

Logger Logger::with_file(const std::string& path) const {
  Logger logger;
  *logger.sinks_ = Sinks{sinks_->prefix, sinks_->level, sinks_->all, nullptr};
  try {
    logger.sinks_->all.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
  } catch (const spdlog::spdlog_ex& error) {
    throw ConfigError(fmt::format("cannot open the log file {}: {}", path, error.what()));
  }
  logger.sinks_->rebuild();
  return logger;
}

}  // namespace mica
