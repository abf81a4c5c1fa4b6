// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "support/temporary_folder.hpp"

namespace mica::test {

/// The child of a "threadsafe" death test runs the test again up to the fatal statement: it takes the parent's folder.
class SharedFolder {
 public:
  SharedFolder() {
    if (const char* parents = std::getenv(kVariable)) {
      path_ = parents;
    } else {
      own_ = std::make_unique<TemporaryFolder>();
      path_ = own_->path();
      ::setenv(kVariable, path_.c_str(), 1);
    }
  }
  ~SharedFolder() { ::unsetenv(kVariable); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  static constexpr const char* kVariable = "MICA_TEST_SHARED_FOLDER";
  std::unique_ptr<TemporaryFolder> own_;
  std::string path_;
};

}  // namespace mica::test
