// SPDX-License-Identifier: Apache-2.0
#pragma once

// What all programs have in common: start, help and version, exit status.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "mica/core/error.hpp"
#include "mica/core/error_text.hpp"
#include "mica/core/version.hpp"

namespace mica::apps {

/// A program's help and version. They are printed without starting MPI, which login nodes often do not have.
struct About {
  std::string_view name;
  std::string (*help)(const std::vector<std::string>& arguments);
  std::string (*build)();  ///< lines that follow the version
};

/// Whether this process is the first that a launcher started, or the only one.
inline bool is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  }
  return true;
}

/// The text for -h, --help or --version anywhere in the arguments; "" if there is none of them.
inline std::string answer(const std::vector<std::string>& arguments, const About& about) {
  for (const std::string& argument : arguments) {
    if (argument == "-h" || argument == "--help") return about.help(arguments);
    if (argument == "--version") return fmt::format("{} {}\n{}", about.name, full_version(), about.build());
  }
  return "";
}

/// For programs that compute. oneDNN allocates scratch memory for each product, up to a few MiB, and frees it after the product. By default
/// glibc soon places it among small blocks, and what is freed leaves holes: 24 MiB per rank after two steps of gpt2-124m, and hundreds
/// after a generation with prompts of as many lengths. With these thresholds it goes back to the system.
inline void return_scratch_memory() {
#ifdef __GLIBC__
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) return;  // the user's own
  mallopt(M_MMAP_THRESHOLD, 512 << 10);
  mallopt(M_TRIM_THRESHOLD, 8 << 20);
#endif
}

/// Runs `body(arguments)`, which returns an exit status or ExitCode, unless the arguments ask for help or the version. An exception becomes
/// one line, `mica: error: ...`, and its exit status.
template <class Body>
int run_program(int argc, char** argv, const About& about, const Body& body) {
  // Makes a file beyond `ulimit -f` an error of the write, with a message, instead of killing the process.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const std::string text = answer(arguments, about);
    if (!text.empty() && is_first_process()) std::fputs(text.c_str(), stdout);
    const int code = text.empty() ? static_cast<int>(body(arguments)) : 0;
    const auto is = [code](ExitCode each) { return code == static_cast<int>(each); };
    if (is(ExitCode::user_mistake) || is(ExitCode::runtime_failure)) return code;  // the body has printed its error
    std::cout.flush();
    require<IoError>(std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0,
                     "cannot write to standard output (disk full, or its reader is gone)");
    return code;
  } catch (const Error& error) {
    std::fprintf(stderr, "mica: error: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mica: error: %s\n", message_for_user(error).c_str());
    return static_cast<int>(ExitCode::runtime_failure);
  }
}

}  // namespace mica::apps
