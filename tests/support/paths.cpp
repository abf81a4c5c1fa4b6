// SPDX-License-Identifier: Apache-2.0
// The only test source that knows where the build lies: compilers' caches serve all others in any folder.
#include "support/paths.hpp"

namespace mica::test {

std::string source_folder() { return MICA_SOURCE_DIR; }
std::string program_folder() { return MICA_BIN_DIR; }
std::string reference_path(const std::string& name) { return source_folder() + "/tests/reference/" + name; }

}  // namespace mica::test
