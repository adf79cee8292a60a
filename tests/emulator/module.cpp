#include "module.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>
#include <string_view>

#include "decode.h"
#include "memory.h"

namespace warploom::emulator {
namespace {

struct Variable {
  bool local = false;
  std::uint64_t address = 0;
};

int bytes_of_type(std::string_view type) {
  const std::size_t digit = type.find_first_of("0123456789");
  return digit == std::string_view::npos ? 1 : std::max(1, std::stoi(std::string(type.substr(digit))) / 8);
}

std::optional<Special> special_register(std::string_view name) {
  static const std::map<std::string_view, Special> known = {{"%tid.x", Special::tid_x},
                                                            {"%tid.y", Special::tid_y},
                                                            {"%tid.z", Special::tid_z},
                                                            {"%ntid.x", Special::ntid_x},
                                                            {"%ntid.y", Special::ntid_y},
                                                            {"%ntid.z", Special::ntid_z},
                                                            {"%ctaid.x", Special::ctaid_x},
                                                            {"%ctaid.y", Special::ctaid_y},
                                                            {"%ctaid.z", Special::ctaid_z},
                                                            {"%nctaid.x", Special::nctaid_x},
                                                            {"%nctaid.y", Special::nctaid_y},
                                                            {"%nctaid.z", Special::nctaid_z},
                                                            {"%laneid", Special::laneid},
                                                            {"%warpid", Special::warpid},
                                                            {"%smid", Special::smid},
                                                            {"%clock64", Special::clock},
                                                            {"%clock", Special::clock},
                                                            {"%globaltimer", Special::clock},
                                                            {"%cluster_ctarank", Special::cluster_ctarank},
                                                            {"%cluster_nctarank", Special::cluster_nctarank}};
  const auto found = known.find(name);
  if (found == known.end()) return std::nullopt;
  return found->second;
}

int rounded_up(int value, int step) {
  return (value + step - 1) / step * step;
}

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

/// Cut at the commas that stand outside of brackets and braces.
std::vector<std::string> split_operands(std::string_view text) {
  std::vector<std::string> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == ',' && depth == 0) {
      if (std::string part = trimmed(text.substr(begin, i - begin)); !part.empty()) parts.push_back(std::move(part));
      begin = i + 1;
    }
  }
  return parts;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text), module_(std::make_unique<Module>()) { remove_comments(); }

  std::unique_ptr<Module> parse() {
    while (skip_space()) statement();
    return std::move(module_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw EmulationError("PTX line " + std::to_string(line_of(at_)) + ": " + why);
  }

  int line_of(std::size_t at) const {
    return 1 + static_cast<int>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  }

  void remove_comments() {
    for (std::size_t at = 0; (at = text_.find("//", at)) != std::string::npos;) {
      while (at < text_.size() && text_[at] != '\n') text_[at++] = ' ';
    }
  }

  bool skip_space() {
    while (at_ < text_.size() && (std::isspace(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '\0')) {
      if (text_[at_] == '\n') ++line_;
      ++at_;
    }
    return at_ < text_.size();
  }

  std::string take_until(char end) {
    const std::size_t stop = text_.find(end, at_);
    if (stop == std::string::npos) fail(std::string("no ") + end);
    std::string taken = text_.substr(at_, stop - at_);
    line_ += static_cast<int>(std::count(taken.begin(), taken.end(), '\n'));
    at_ = stop + 1;
    return trimmed(taken);
  }

  std::string_view rest() const { return std::string_view(text_).substr(at_); }

  void statement() {
    if (text_[at_] == '{') {
      ++at_;
      scopes_.emplace_back();
    } else if (text_[at_] == '}') {
      ++at_;
      scopes_.pop_back();
      if (scopes_.empty() && kernel_ != nullptr) end_kernel();
    } else if (rest().starts_with(".version") || rest().starts_with(".target") || rest().starts_with(".address_size")) {
      take_until('\n');
      ++line_;
    } else if (rest().starts_with(".visible .entry") || rest().starts_with(".entry")) {
      entry();
    } else {
      const std::size_t end = text_.find_first_of(":; \t\n", at_);
      if (end != std::string::npos && text_[end] == ':' && text_[end + 1] != ':') {
        const std::string label = text_.substr(at_, end - at_);
        labels_[label] = static_cast<int>(kernel_->code.size());
        at_ = end + 1;
        return;
      }
      const int line = line_;
      const std::string text = take_until(';');
      if (text.starts_with(".reg")) {
        declare_registers(text);
      } else if (text.starts_with(".pragma") || text.starts_with(".loc\t") || text.starts_with(".loc ") ||
                 text.starts_with(".file")) {
      } else if (text[0] == '.') {
        declare_variable(text);
      } else {
        instruction(text, line);
      }
    }
  }

  void entry() {
    auto kernel = std::make_unique<Kernel>();
    const std::string head = take_until('(');
    kernel->name = head.substr(head.find_last_of(" \t") + 1);
    for (const std::string& one : split_operands(take_until(')'))) {
      // .param .align 64 .b8 name[640]   or   .param .u64 name
      const std::size_t bracket = one.find('[');
      const std::string before = trimmed(one.substr(0, bracket));
      const std::size_t space = before.find_last_of(" \t");
      const std::string name = before.substr(space + 1);
      int bytes = 0;
      int align = 0;
      if (bracket != std::string::npos) {
        bytes = std::stoi(one.substr(bracket + 1));
        const std::size_t aligned = one.find(".align");
        align = aligned == std::string::npos ? 1 : std::stoi(one.substr(aligned + 6));
      } else {
        bytes = align = bytes_of_type(before.substr(0, space).substr(before.substr(0, space).find_last_of('.')));
      }
      const int offset = rounded_up(kernel->parameter_bytes, align);
      kernel->parameters.push_back({offset, bytes});
      kernel->parameter_bytes = offset + bytes;
      parameters_[name] = offset;
    }
    const std::size_t brace = text_.find('{', at_);
    const std::string directives = text_.substr(at_, brace - at_);
    if (const std::size_t cluster = directives.find(".reqnctapercluster"); cluster != std::string::npos) {
      kernel->cluster = std::stoi(directives.substr(cluster + 18));
    }
    line_ += static_cast<int>(std::count(directives.begin(), directives.end(), '\n'));
    at_ = brace;
    kernel_ = kernel.get();
    module_->kernels[kernel->name] = std::move(kernel);
    shared_end_ = kSharedBase;
    for (auto& [name, variable] : outer_shared_) place_shared(name, variable.first, variable.second);
  }

  void end_kernel() {
    Kernel& kernel = *kernel_;
    kernel.static_shared_bytes = static_cast<int>(shared_end_ - kSharedBase);
    for (const auto& [index, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) fail("no label " + label);
      kernel.code[static_cast<std::size_t>(index)].target = found->second;
    }
    for (std::size_t i = 0; i < kernel.code.size(); ++i) kernel.code[i].text = &kernel.texts[i];
    const std::uint64_t dynamic = (shared_end_ + 1023) / 1024 * 1024;
    for (const auto& [index, operand, element] : dynamic_uses_) {
      kernel.code[index].operands[operand][element].value += dynamic;
    }
    kernel.static_shared_bytes = static_cast<int>(dynamic - kSharedBase);
    labels_.clear();
    branches_.clear();
    slots_.clear();
    parameters_.clear();
    dynamic_uses_.clear();
    kernel_ = nullptr;
  }

  void declare_registers(const std::string& text) {
    // Numbered families (%r<100>) get a slot where they are first used; names of inline assembly belong to its braces.
    if (text.find('<') != std::string::npos) return;
    for (const std::string& one : split_operands(text.substr(text.find_first_of(" \t", text.find('.', 1))))) {
      scopes_.back()[one] = kernel_->registers++;
    }
  }

  void place_shared(const std::string& name, std::uint32_t align, std::uint32_t bytes) {
    shared_end_ = (shared_end_ + align - 1) / align * align;
    variables_[name] = {false, shared_end_};
    shared_end_ += bytes;
  }

  void declare_variable(const std::string& text) {
    const bool external = text.starts_with(".extern");
    const std::size_t equals = text.find('=');
    const std::string head = trimmed(text.substr(0, equals));
    const std::size_t bracket = head.find('[');
    const std::string before = trimmed(head.substr(0, bracket));
    const std::string name = before.substr(before.find_last_of(" \t") + 1);
    const std::size_t aligned = head.find(".align");
    const std::uint32_t align =
        aligned == std::string::npos ? 8 : static_cast<std::uint32_t>(std::stoul(head.substr(aligned + 6)));
    const std::string type = before.substr(before.rfind('.', before.find_last_of(" \t")));
    const int element = bytes_of_type(type.substr(0, type.find(' ')));
    const int count =
        bracket == std::string::npos || head[bracket + 1] == ']' ? 1 : std::stoi(head.substr(bracket + 1));
    if (head.find(".shared") != std::string::npos) {
      if (external) {
        dynamic_name_ = name;
      } else if (kernel_ == nullptr) {
        outer_shared_[name] = {align, static_cast<std::uint32_t>(element * count)};
      } else {
        place_shared(name, align, static_cast<std::uint32_t>(element * count));
      }
      return;
    }
    if (head.starts_with(".local")) {
      const int begin = rounded_up(kernel_->local_bytes, static_cast<int>(align));
      variables_[name] = {true, static_cast<std::uint64_t>(begin)};
      kernel_->local_bytes = rounded_up(begin + element * count, 16);
      return;
    }
    if (head.find(".global") == std::string::npos && head.find(".const") == std::string::npos)
      fail("cannot place " + text);
    const std::size_t bytes = static_cast<std::size_t>(element) * static_cast<std::size_t>(count);
    module_->globals.push_back(std::make_unique<std::uint64_t[]>((bytes + 7) / 8));
    auto* memory = reinterpret_cast<std::uint8_t*>(module_->globals.back().get());
    global_memory().add(memory, bytes);
    variables_[name] = {false, reinterpret_cast<std::uint64_t>(memory)};
    if (equals == std::string::npos) return;
    std::string values = trimmed(text.substr(equals + 1));
    if (values.front() == '{') values = values.substr(1, values.size() - 2);
    for (const std::string& one : split_operands(values)) {
      const std::uint64_t value = constant(one);
      std::memcpy(memory, &value, static_cast<std::size_t>(element));
      memory += element;
    }
  }

  std::uint64_t constant(const std::string& text) const {
    if (text.starts_with("0f") || text.starts_with("0F") || text.starts_with("0d") || text.starts_with("0D")) {
      return std::stoull(text.substr(2), nullptr, 16);
    }
    std::size_t used = 0;
    try {
      const std::uint64_t value =
          text[0] == '-' ? static_cast<std::uint64_t>(std::stoll(text, &used, 0)) : std::stoull(text, &used, 0);
      if (used == text.size() || text.substr(used) == "U") return value;
    } catch (const std::exception&) {
    }
    fail("no constant: " + text);
  }

  /// One register, constant, variable or parameter.
  Operand simple(std::string text) {
    Operand operand;
    if (text.starts_with('!')) {
      operand.negated = true;
      text = text.substr(1);
    }
    if (text == "_") return operand;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(text); found != scope->end()) {
        operand.slot = found->second;
        return operand;
      }
    }
    if (const std::optional<Special> special = special_register(text)) {
      operand.special = *special;
    } else if (text[0] == '%') {
      const auto [found, inserted] = slots_.try_emplace(text, kernel_->registers);
      if (inserted) ++kernel_->registers;
      operand.slot = found->second;
    } else if (const auto parameter = parameters_.find(text); parameter != parameters_.end()) {
      operand.special = Special::parameters;
      operand.value = static_cast<std::uint64_t>(parameter->second);
    } else if (const auto variable = variables_.find(text); variable != variables_.end()) {
      operand.value = variable->second.address;
      if (variable->second.local) operand.special = Special::local;
    } else if (text == dynamic_name_ && !dynamic_name_.empty()) {
      dynamic_here_ = true;
    } else if (text == "WARP_SZ") {
      operand.value = 32;
    } else {
      operand.value = constant(text);
    }
    return operand;
  }

  void note_dynamic(std::size_t operand, std::size_t element) {
    if (!dynamic_here_) return;
    dynamic_uses_.emplace_back(kernel_->code.size(), operand, element);
    dynamic_here_ = false;
  }

  Operand address(const std::string& text) {
    const std::size_t plus = text.find_first_of("+-", 1);
    Operand operand = simple(trimmed(text.substr(0, plus)));
    if (plus != std::string::npos) {
      std::string offset = trimmed(text.substr(plus));
      if (offset[0] == '+') offset = trimmed(offset.substr(1));
      operand.value += constant(offset);
    }
    return operand;
  }

  std::vector<Operand> operand(const std::string& text, std::size_t index) {
    std::vector<Operand> elements;
    const auto add = [&](Operand one) {
      note_dynamic(index, elements.size());
      elements.push_back(one);
    };
    if (text.front() == '[') {
      for (const std::string& part : split_operands(text.substr(1, text.size() - 2))) {
        if (part.front() == '{') {
          for (const std::string& one : split_operands(part.substr(1, part.size() - 2))) add(simple(one));
        } else {
          add(address(part));
        }
      }
    } else if (text.front() == '{') {
      for (const std::string& one : split_operands(text.substr(1, text.size() - 2))) add(simple(one));
    } else if (const std::size_t bar = text.find('|'); bar != std::string::npos) {
      add(simple(trimmed(text.substr(0, bar))));
      add(simple(trimmed(text.substr(bar + 1))));
    } else {
      add(simple(text));
    }
    return elements;
  }

  void instruction(const std::string& text, int line) {
    Instruction made;
    made.line = line;
    std::string body = text;
    if (body[0] == '@') {
      const std::size_t end = body.find_first_of(" \t");
      made.predicate = simple(body.substr(1, end - 1));
      body = trimmed(body.substr(end));
    }
    const std::size_t end = body.find_first_of(" \t");
    const std::string opcode = body.substr(0, end);
    const std::string arguments = end == std::string::npos ? "" : trimmed(body.substr(end));
    if (opcode == "bra" || opcode == "bra.uni") {
      branches_.emplace_back(static_cast<int>(kernel_->code.size()), arguments);
    } else {
      for (const std::string& one : split_operands(arguments)) {
        made.operands.push_back(operand(one, made.operands.size()));
      }
    }
    try {
      decode(opcode, made);
    } catch (const EmulationError& error) {
      throw EmulationError("PTX line " + std::to_string(line) + ": " + error.what() + ": " + text);
    }
    kernel_->code.push_back(std::move(made));
    kernel_->texts.push_back(text);
  }

  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::unique_ptr<Module> module_;
  Kernel* kernel_ = nullptr;
  std::vector<std::map<std::string, int>> scopes_;
  std::map<std::string, int> slots_;
  std::map<std::string, int> labels_;
  std::map<std::string, int> parameters_;
  std::map<std::string, Variable> variables_;
  std::map<std::string, std::pair<std::uint32_t, std::uint32_t>> outer_shared_;
  std::vector<std::pair<int, std::string>> branches_;
  std::vector<std::tuple<std::size_t, std::size_t, std::size_t>> dynamic_uses_;
  std::string dynamic_name_;
  bool dynamic_here_ = false;
  std::uint32_t shared_end_ = kSharedBase;
};

}  // namespace

void decode(const std::string& opcode, Instruction& instruction) {
  for (const auto part : {decode_arithmetic, decode_moves, decode_loads_stores, decode_control, decode_warp,
                          decode_copies, decode_wgmma}) {
    if (part(opcode, instruction)) return;
  }
  throw EmulationError("unknown instruction " + opcode);
}

std::unique_ptr<Module> parse_module(const std::string& ptx) {
  return Parser(ptx).parse();
}

}  // namespace warploom::emulator
