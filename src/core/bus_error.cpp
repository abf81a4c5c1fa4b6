// SPDX-License-Identifier: Apache-2.0
#include "mica/core/bus_error.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <ucontext.h>
#include <unistd.h>

#include "mica/core/error.hpp"

namespace mica {
namespace {

// Only what a signal handler may use: system calls, and memory that is there already.
std::array<char, 64> who_text{};
std::array<char, 16384> maps{};
struct sigaction action_before {};
std::atomic_flag is_told;
std::atomic_flag is_handled;
constinit thread_local sigjmp_buf* way_out = nullptr;  // of copy_pages()

/// The path at the end of a line of /proc/self/maps, if the address is in its range: "7f12-7f56 r--s 00000000 08:01 1234   /a b.h5".
/// Empty: it is not, or no file is mapped there.
std::string_view file_at(std::uintptr_t address, std::string_view line) {
  std::uintptr_t begin = 0, end = 0;
  const char* const last = line.data() + line.size();
  const auto [dash, begin_error] = std::from_chars(line.data(), last, begin, 16);
  if (begin_error != std::errc() || dash == last) return {};
  if (std::from_chars(dash + 1, last, end, 16).ec != std::errc() || address < begin || address >= end) return {};
  const std::size_t slash = line.find('/');
  return slash == std::string_view::npos ? std::string_view() : line.substr(slash);
}

std::string_view file_at(std::uintptr_t address) {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string_view found;
  std::size_t held = 0;
  for (ssize_t got = 0; found.empty() && (got = ::read(fd, maps.data() + held, maps.size() - held)) > 0;) {
    const std::string_view text(maps.data(), held + static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end = 0; found.empty() && (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
      found = file_at(address, text.substr(begin, end - begin));
    }
    if (!found.empty()) break;
    held = text.size() - begin;
    std::memmove(maps.data(), maps.data() + begin, held);
  }
  ::close(fd);
  return found;
}

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

extern "C" void on_bus_error(int signal, siginfo_t* info, void* context) {
  const bool is_sent = info->si_code <= 0;  // by another process
  if (!is_sent && way_out != nullptr) {
    ::pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);  // as it was before the signal
    ::siglongjmp(*way_out, 1);
  }
  if (!is_sent) {
    if (is_told.test_and_set()) return;  // another thread tells, and its return ends the process
    const std::string_view file = file_at(reinterpret_cast<std::uintptr_t>(info->si_addr));
    print("mica: error: ");
    print(who_text.data());
    if (file.empty()) {
      print("a page of memory cannot be used (bus error)\n");
    } else if (file.starts_with("/dev/shm/")) {
      print("no memory is left for a page of ");
      print(file);
      print(" (bus error): enlarge /dev/shm or the job's memory limit\n");
    } else {
      print("a page of ");
      print(file);
      print(
          " cannot be read (bus error): the file has become shorter, or its disk or file server failed; "
          "do not write files that a run reads\n");
      ::_exit(static_cast<int>(ExitCode::runtime_failure));
    }
  }
  ::sigaction(signal, &action_before, nullptr);
  if (is_sent) ::raise(signal);  // nothing else repeats it, as the instruction does that failed
}

void handle_bus_errors() {
  if (is_handled.test_and_set()) return;
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &action_before);
}

}  // namespace

bool copy_pages(std::span<std::byte> out, const std::byte* from) {
  handle_bus_errors();
  sigjmp_buf here;
  if (sigsetjmp(here, 0) != 0) {  // no object was made since, so there is none to destroy
    way_out = nullptr;
    return false;
  }
  way_out = &here;
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the handler reads way_out
  std::memcpy(out.data(), from, out.size());
  std::atomic_signal_fence(std::memory_order_seq_cst);
  way_out = nullptr;
  return true;
}

void tell_bus_errors(std::string_view who) {
  who = who.substr(0, who_text.size() - 1);
  *std::ranges::copy(who, who_text.begin()).out = '\0';
  handle_bus_errors();
}

}  // namespace mica
