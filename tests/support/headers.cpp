// SPDX-License-Identifier: Apache-2.0
// Owns the precompiled headers of the tests, see scripts/cmake/MicaTest.cmake.
int main() { return 0; }
