// mica-train: one training run, started by mpirun or srun.

#include "mica/train/run_training.hpp"

int main(int argc, char** argv) {
  return mica::train::run_app(argc, argv, [](mica::train::App& app) { return mica::train::run_training(app); });
}
