// SPDX-License-Identifier: Apache-2.0
// mica-report: a page that shows how runs went.

#include <iostream>

#include "mica/report/run_report.hpp"

#include "program.hpp"

int main(int argc, char** argv) {
  using namespace mica;
  return apps::run_program(argc, argv, {"mica-report", report::report_help, report::report_build_text},
                           [](const auto& arguments) { return report::run_report(arguments, std::cout); });
}
