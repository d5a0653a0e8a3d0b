// SPDX-License-Identifier: Apache-2.0 - The operator table: one entry an op, from which all its forms are derived.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/graph/call.h"
#include "src/hlo/builder.h"

namespace torch_tpu::graph {

struct OpEntry {
  using Body = hlo::Values (*)(Call& c);
  std::string schema;                  // as in native_functions.yaml
  std::string name;                    // "aten::gelu"
  std::string overload;                // "" or "Tensor"
  std::vector<std::string> arg_names;  // in order
  OutputRule rule = OutputRule::Contiguous;
  Body body = nullptr;
  const char* file = "";
  int line = 0;

  // Reads name, overload and argument names off the schema.
  static OpEntry parse(std::string_view schema);
};

class OpTable {
 public:
  static OpTable& instance();
  const OpEntry* find(std::string_view name, std::string_view overload) const;
  const std::vector<const OpEntry*>& entries() const { return entries_; }
  void add(const OpEntry* entry);

 private:
  std::vector<const OpEntry*> entries_;
};

struct OpRegistration {
  OpRegistration(const char* schema, OutputRule rule, OpEntry::Body body, const char* file,
                 int line);
};

}  // namespace torch_tpu::graph
