// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "mica/core/unique_fd.hpp"

namespace mica::detail {

/// Memory that processes of a node share: a file in /dev/shm. Its maker removes its name once the others have opened it; from then on
/// it lives as long as one of them maps it. While it has a name, its maker holds a lock on it (flock), which tells it from what a killed
/// process has left.
class SharedFile {
 public:
  SharedFile() = default;
  /// An empty file with a new name.
  /// @returns an object that is false, with errno, if it cannot be made.
  [[nodiscard]] static SharedFile make();
  /// Removes the files of this user whose makers were killed before they removed the name.
  static void remove_leftovers();
  /// @returns an object that is false, with errno, if there is no such file here.
  /// @param access  O_RDONLY or O_RDWR
  [[nodiscard]] static SharedFile open(const std::string& name, int access);

  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&& other) noexcept;
  /// Removes the name, if this is the maker's object.
  ~SharedFile();

  explicit operator bool() const { return static_cast<bool>(fd_); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// What open() takes; empty if the name is gone, or if this object is not its maker's.
  [[nodiscard]] const std::string& name() const { return name_; }
  void remove_name() noexcept;
  /// The first bytes of the file, mapped; null, with errno, if that fails. They stay when this object goes.
  /// @param flags  beside MAP_SHARED
  [[nodiscard]] std::shared_ptr<std::byte> map(std::size_t bytes, int protection, int flags = 0) const;

 private:
  UniqueFd fd_;
  std::string name_;
};

}  // namespace mica::detail
