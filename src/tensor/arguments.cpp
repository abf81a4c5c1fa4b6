#include "arguments.hpp"

namespace mica::arguments {

void refuse(std::string_view kernel, std::string_view argument, ConstTensorView got, std::string_view expected) {
  throw Error(fmt::format("{}: {} is {} {}{}, expected {}", kernel, argument, dtype_name(got.dtype),
                          got.shape.to_string(), got.data == nullptr ? " (absent)" : "", expected));
}

}  // namespace mica::arguments
