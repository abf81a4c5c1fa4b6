// mica-bench: how fast Mica is on this machine, beside the limits of the machine itself.

#include "mica/train/bench.hpp"

int main(int argc, char** argv) { return mica::train::run_app(argc, argv, mica::train::run_bench); }
