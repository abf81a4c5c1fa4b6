// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>

#include <gtest/gtest.h>

namespace mica::fsdp::testing {

/// `action` throws E, and the text names each of these.
template <class E, class Action>
void expect_refusal(Action&& action, std::initializer_list<const char*> names) {
  try {
    action();
    ADD_FAILURE() << "not refused; expected an error that names " << *names.begin();
  } catch (const E& error) {
    for (const char* name : names) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << "no '" << name << "' in: " << error.what();
    }
  }
}

}  // namespace mica::fsdp::testing
