// SPDX-License-Identifier: Apache-2.0 - The printer: a function as the text of a StableHLO module.
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "src/hlo/attributes.h"
#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

class Writer {
 public:
  Writer(const Function& fn, std::string& out) : fn_(fn), out_(out) {}

  void params(const std::vector<std::string>& attributes) {
    for (size_t i = 0; i < fn_.params.size(); ++i) {
      if (i > 0) out_ += ", ";
      typed(fn_.params[i]);
      if (i < attributes.size() && !attributes[i].empty()) {
        out_ += " {";
        out_ += attributes[i];
        out_ += '}';
      }
    }
  }

  void types(std::span<const int32_t> ids) {
    out_ += '(';
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out_ += ", ";
      append_type(out_, fn_.types[ids[i]]);
    }
    out_ += ')';
  }

  void body(const std::vector<Instr>& instrs, int depth) {
    for (const Instr& instr : instrs) this->instr(instr, depth);
  }

  void terminator(std::string_view name, const std::vector<int32_t>& results, int depth) {
    indent(depth);
    out_ += '"';
    out_ += name;
    out_ += "\"(";
    values(results);
    out_ += ") : ";
    types(results);
    out_ += " -> ()\n";
  }

 private:
  void indent(int depth) { out_.append(static_cast<size_t>(2 * depth), ' '); }
  void value(int32_t id) {
    out_ += '%';
    append_int(out_, id);
  }
  void typed(int32_t id) {
    value(id);
    out_ += ": ";
    append_type(out_, fn_.types[id]);
  }
  void values(std::span<const int32_t> ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out_ += ", ";
      value(ids[i]);
    }
  }

  void instr(const Instr& instr, int depth) {
    indent(depth);
    for (int32_t i = 0; i < instr.result_count; ++i) {
      if (i > 0) out_ += ", ";
      value(instr.first_result + i);
    }
    if (instr.result_count > 0) out_ += " = ";
    out_ += '"';
    out_ += instr.name;
    out_ += "\"(";
    values(instr.operands);
    out_ += ')';
    if (!instr.attributes.empty()) {
      out_ += " <{";
      out_ += instr.attributes;
      out_ += "}>";
    }
    if (!instr.regions.empty()) {
      out_ += " (";
      for (size_t i = 0; i < instr.regions.size(); ++i) {
        if (i > 0) out_ += ", ";
        region(instr.regions[i], depth);
      }
      out_ += ')';
    }
    out_ += " : ";
    types(instr.operands);
    out_ += " -> ";
    if (instr.result_count == 1) {
      append_type(out_, fn_.types[instr.first_result]);
    } else {
      out_ += '(';
      for (int32_t i = 0; i < instr.result_count; ++i) {
        if (i > 0) out_ += ", ";
        append_type(out_, fn_.types[instr.first_result + i]);
      }
      out_ += ')';
    }
    if (instr.location) {
      out_ += " loc(";
      out_ += *instr.location;
      out_ += ')';
    }
    out_ += '\n';
  }

  void region(const Region& region, int depth) {
    out_ += "{\n";
    if (!region.args.empty()) {
      indent(depth);
      out_ += "^bb0(";
      for (size_t i = 0; i < region.args.size(); ++i) {
        if (i > 0) out_ += ", ";
        typed(region.args[i]);
      }
      out_ += "):\n";
    }
    body(region.body, depth + 1);
    terminator("stablehlo.return", region.results, depth + 1);
    indent(depth);
    out_ += '}';
  }

  const Function& fn_;
  std::string& out_;
};

void collect(const std::vector<Instr>& body, std::map<std::string, const std::string*>& callees) {
  for (const Instr& instr : body) {
    if (instr.callee) callees[instr.callee->name] = &instr.callee->text;
    for (const Region& region : instr.regions) collect(region.body, callees);
  }
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c < 0x20 && c >= 0 ? ' ' : c;
  }
  out += '"';
}

}  // namespace

std::string location_text(std::string_view name, std::string_view line) {
  const size_t colon = line.rfind(':');
  const bool in_file = colon != std::string_view::npos && colon + 1 < line.size() &&
                       line.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  std::string out;
  if (!in_file) {
    append_quoted(out, std::string(name) + ", " + std::string(line));
    return out;
  }
  append_quoted(out, name);
  out += '(';
  append_quoted(out, line.substr(0, colon));
  out += line.substr(colon);
  out += ":0)";
  return out;
}

std::string write_module(const Function& main, const ModuleOptions& options) {
  std::string out;
  out.reserve(256 + 64 * main.params.size() + 128 * main.body.size());
  out += "module @";
  out += options.name;
  out += " {\n  func.func public @main(";
  Writer writer(main, out);
  writer.params(options.param_attributes);
  out += ") -> ";
  writer.types(main.results);
  out += " {\n";
  writer.body(main.body, 2);
  writer.terminator("func.return", main.results, 2);
  out += "  }\n";
  std::map<std::string, const std::string*> callees;
  collect(main.body, callees);
  for (const auto& [name, text] : callees) out += *text;
  out += "}\n";
  return out;
}

TextFunction text_function(std::string_view module, std::string name) {
  constexpr std::string_view kMain = " {\n  func.func public @main", kEnd = "}\n";
  const size_t head = module.find('\n');
  if (!module.starts_with("module @") || head == 0 || module.find(kMain) != head - 2 ||
      !module.ends_with(kEnd)) {
    fail("text_function", "this is not a module that write_module() has made");
  }
  module.remove_suffix(kEnd.size());
  std::string text = "  func.func private @" + name;
  text += module.substr(head - 2 + kMain.size());
  return {std::move(name), std::move(text)};
}

}  // namespace torch_tpu::hlo
