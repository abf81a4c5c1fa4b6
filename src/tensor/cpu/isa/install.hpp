// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../loops.hpp"

/// Each file of this folder puts its loops into the table. The only functions here with external linkage.
namespace mica::cpu::MICA_ISA {

void install_activation(Loops& table);
void install_cached_attention(Loops& table);
void install_elementwise(Loops& table);
void install_exact_sum(Loops& table);
void install_layer_norm(Loops& table);
void install_optimizer(Loops& table);
void install_random(Loops& table);
void install_rms_norm(Loops& table);
void install_rotary(Loops& table);
void install_softmax(Loops& table);
void install_sums(Loops& table);
void install_thin_product(Loops& table);

}  // namespace mica::cpu::MICA_ISA
