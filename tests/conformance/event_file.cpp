// SPDX-License-Identifier: Apache-2.0
// Writes event files into a run's folder as two launches do: steps 1 to 6, then a resume from step 4. check_tensorboard.py reads them.
#include "mica/train/event_file.hpp"

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto warn = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  const auto write = [&](double begin, int first, int last, double loss) {
    mica::train::EventFile events(argv[1], begin, first, warn);
    for (int step = first; step <= last; ++step)
      events.write(begin + step, step, {{"train/loss", loss / step}, {"speed/step_ms", 100.0 + step}});
  };
  write(1.7e9, 1, 6, 10);
  write(1.7e9 + 1000, 5, 8, 20);
  return 0;
}
