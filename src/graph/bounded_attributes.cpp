// SPDX-License-Identifier: Apache-2.0 - Reads the attributes of instructions, which are text.
#include "src/graph/bounder.h"

#include <algorithm>

namespace torch_tpu::graph::bounds {

void give_up(const std::string& why) { throw NotBounded(why); }

Dims array(const Instr& instr, std::string_view name) { return hlo::ints(instr.attributes, name); }
Dims list(const Instr& instr, std::string_view name) {  // [1, 2]
  return integers(attribute(instr.attributes, name), ']');
}
int64_t number(const Instr& instr, std::string_view name) {
  const Dims found = integers(attribute(instr.attributes, name), ':');
  return found.empty() ? 0 : found[0];
}
// dense<[[low, high], ...]>
void padding(const Instr& instr, Dims& low, Dims& high) {
  const Dims all = integers(attribute(instr.attributes, "padding"), '>');
  for (size_t i = 0; i + 1 < all.size(); i += 2) {
    low.push_back(all[i]);
    high.push_back(all[i + 1]);
  }
}

bool contains(const Dims& dims, int64_t d) {
  return std::find(dims.begin(), dims.end(), d) != dims.end();
}

}  // namespace torch_tpu::graph::bounds
