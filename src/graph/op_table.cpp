// SPDX-License-Identifier: Apache-2.0 - The table of entries and the reading of their schemas.
#include "src/graph/op_table.h"

namespace torch_tpu::graph {

OpTable& OpTable::instance() {
  static auto* table = new OpTable;  // entries live as long as the process
  return *table;
}

void OpTable::add(const OpEntry* entry) { entries_.push_back(entry); }

const OpEntry* OpTable::find(std::string_view name, std::string_view overload) const {
  for (const OpEntry* e : entries_)
    if (e->name == name && e->overload == overload) return e;
  return nullptr;
}

// Such as "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor".
OpEntry OpEntry::parse(std::string_view s) {
  OpEntry e;
  e.schema = s;
  size_t open = s.find('(');
  std::string_view head = s.substr(0, open);
  size_t dot = head.find('.');
  e.name = std::string(head.substr(0, dot));
  if (dot != std::string_view::npos) e.overload = std::string(head.substr(dot + 1));
  int depth = 0;
  size_t begin = open + 1;
  bool quoted = false;
  for (size_t i = open; i < s.size(); ++i) {
    if (s[i] == '\'') quoted = !quoted;
    if (quoted) continue;
    if (s[i] == '(' || s[i] == '[') ++depth;
    bool end = s[i] == ')' && depth == 1;
    if ((s[i] == ',' && depth == 1) || end) {
      std::string_view part = s.substr(begin, i - begin);
      part = part.substr(0, part.find('='));
      while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
      size_t space = part.rfind(' ');
      std::string_view name = space == std::string_view::npos ? part : part.substr(space + 1);
      if (!name.empty() && name != "*") e.arg_names.emplace_back(name);
      begin = i + 1;
      if (end) break;
    }
    if (s[i] == ')' || s[i] == ']') --depth;
  }
  return e;
}

OpRegistration::OpRegistration(const char* schema, OutputRule rule, OpEntry::Body body,
                               const char* file, int line) {
  auto* e = new OpEntry(OpEntry::parse(schema));
  e->rule = rule;
  e->body = body;
  e->file = file;
  e->line = line;
  OpTable::instance().add(e);
}

}  // namespace torch_tpu::graph
