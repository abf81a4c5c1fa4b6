// SPDX-License-Identifier: Apache-2.0
// token_ids VOCAB: the ids that Mica gives to each text of standard input, a line each. Texts are written in hex, a line each.

#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "mica/data/tokenizer.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const auto tokenizer = mica::data::make_tokenizer(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      std::string text;
      for (std::size_t i = 0; i + 1 < line.size(); i += 2) text += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
      std::vector<std::int32_t> ids;
      tokenizer->encode(text, ids);
      for (std::size_t i = 0; i < ids.size(); ++i) std::printf("%s%d", i == 0 ? "" : " ", ids[i]);
      std::printf("\n");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
