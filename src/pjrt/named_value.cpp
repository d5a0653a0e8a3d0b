// SPDX-License-Identifier: Apache-2.0 - options and attributes as PJRT_NamedValue.
#include "src/pjrt/named_value.h"

#include <sstream>

namespace torch_tpu::pjrt {

std::vector<PJRT_NamedValue> to_named_values(const NamedOptions& options) {
  std::vector<PJRT_NamedValue> values;
  values.reserve(options.size());
  for (const auto& [name, option] : options) {
    auto value = sized<PJRT_NamedValue>();
    value.name = name.c_str();
    value.name_size = name.size();
    value.value_size = 1;
    if (const auto* text = std::get_if<std::string>(&option)) {
      value.type = PJRT_NamedValue_kString;
      value.string_value = text->c_str();
      value.value_size = text->size();
    } else if (const auto* flag = std::get_if<bool>(&option)) {
      value.type = PJRT_NamedValue_kBool;
      value.bool_value = *flag;
    } else if (const auto* number = std::get_if<int64_t>(&option)) {
      value.type = PJRT_NamedValue_kInt64;
      value.int64_value = *number;
    } else {
      value.type = PJRT_NamedValue_kFloat;
      value.float_value = static_cast<float>(std::get<double>(option));
    }
    values.push_back(value);
  }
  return values;
}

std::string to_text(const PJRT_NamedValue& value) {
  std::ostringstream out;
  switch (number(value.type)) {
    case PJRT_NamedValue_kString:
      return std::string(value.string_value, value.value_size);
    case PJRT_NamedValue_kInt64:
      out << value.int64_value;
      break;
    case PJRT_NamedValue_kInt64List:
      out << '[';
      for (size_t i = 0; i < value.value_size; ++i) {
        out << (i == 0 ? "" : ", ") << value.int64_array_value[i];
      }
      out << ']';
      break;
    case PJRT_NamedValue_kFloat:
      out << value.float_value;
      break;
    case PJRT_NamedValue_kBool:
      out << (value.bool_value ? "true" : "false");
      break;
    default:
      out << "(a value of kind " << number(value.type) << ")";
  }
  return out.str();
}

std::string name_of(const PJRT_NamedValue& value) {
  return std::string(value.name, value.name_size);
}

}  // namespace torch_tpu::pjrt
