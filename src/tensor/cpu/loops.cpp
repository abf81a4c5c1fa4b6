// SPDX-License-Identifier: Apache-2.0
#include "loops.hpp"

#include <cmath>
#include <cstdlib>
#include <string>

#include "mica/core/error.hpp"

// What cpu/isa/install.hpp declares, once for each ISA it is compiled for.
#define MICA_DECLARE_ISA(name)                 \
  namespace name {                             \
  void install_activation(Loops& table);       \
  void install_cached_attention(Loops& table); \
  void install_elementwise(Loops& table);      \
  void install_exact_sum(Loops& table);        \
  void install_layer_norm(Loops& table);       \
  void install_optimizer(Loops& table);        \
  void install_random(Loops& table);           \
  void install_rms_norm(Loops& table);         \
  void install_rotary(Loops& table);           \
  void install_softmax(Loops& table);          \
  void install_sums(Loops& table);             \
  void install_thin_product(Loops& table);     \
  inline Loops make_table() {                  \
    Loops table;                               \
    table.isa = Isa::name;                     \
    install_activation(table);                 \
    install_cached_attention(table);           \
    install_elementwise(table);                \
    install_exact_sum(table);                  \
    install_layer_norm(table);                 \
    install_optimizer(table);                  \
    install_random(table);                     \
    install_rms_norm(table);                   \
    install_rotary(table);                     \
    install_softmax(table);                    \
    install_sums(table);                       \
    install_thin_product(table);               \
    return table;                              \
  }                                            \
  }

namespace mica::cpu {

MICA_DECLARE_ISA(v2)
#if defined(__x86_64__)
MICA_DECLARE_ISA(v3)
MICA_DECLARE_ISA(v4)
#endif

namespace {

template <Loops (*kMake)()>
const Loops* table() {
  static const Loops loops = kMake();  // its code runs only where the processor has the ISA
  return &loops;
}

const Loops& choose() {
  if (const char* wanted = std::getenv("MICA_CPU_ISA"); wanted != nullptr && *wanted != '\0') {
    for (const Isa isa : {Isa::v2, Isa::v3, Isa::v4}) {
      if (wanted != isa_name(isa)) continue;
      const Loops* found = loops_of(isa);
      require<ConfigError>(found != nullptr, "MICA_CPU_ISA={}: this processor lacks x86-64-{}; unset the variable", wanted, wanted);
      return *found;
    }
    throw ConfigError(fmt::format("MICA_CPU_ISA={}: expected v2, v3 or v4", wanted));
  }
  for (const Isa isa : {Isa::v4, Isa::v3}) {
    if (const Loops* found = loops_of(isa)) return *found;
  }
  return *loops_of(Isa::v2);
}

}  // namespace

const Loops& loops() {
  static const Loops& chosen = choose();
  return chosen;
}

#if defined(__x86_64__)
namespace {

// Asked by features: g++ 11 and clang-tidy 14 do not know x86-64-v3 and -v4 by name. Every processor with
// these also has the rest of its level.
bool has_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
}
bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

const Loops* loops_of(Isa isa) {
  switch (isa) {
    case Isa::v2:
      return table<v2::make_table>();
    case Isa::v3:
      return has_v3() ? table<v3::make_table>() : nullptr;
    case Isa::v4:
      return has_v4() ? table<v4::make_table>() : nullptr;
  }
  return nullptr;
}
#else
const Loops* loops_of(Isa isa) { return isa == Isa::v2 ? table<v2::make_table>() : nullptr; }
#endif

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::v2:
      return "v2";
    case Isa::v3:
      return "v3";
    case Isa::v4:
      return "v4";
  }
  return "?";
}

}  // namespace mica::cpu
