#include "gpu/kernel_sources.h"

#include <algorithm>
#include <set>

namespace warploom::gpu {
namespace {

constexpr std::string_view blanks = " \t\r";

std::string_view skip_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(blanks);
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

// The words after a `#directive`, or nothing when the line is another one.
std::optional<std::string_view> after_directive(std::string_view line, std::string_view directive) {
  line = skip_blanks(line);
  if (!line.starts_with('#')) return std::nullopt;
  line = skip_blanks(line.substr(1));
  if (!line.starts_with(directive)) return std::nullopt;
  return skip_blanks(line.substr(directive.size()));
}

// Whether a block comment is open after `line`, given whether one was before it.
bool comment_open_after(std::string_view line, bool open) {
  char quote = '\0';
  for (std::size_t i = 0; i < line.size(); ++i) {
    const std::string_view rest = line.substr(i);
    if (open) {
      if (rest.starts_with("*/")) open = false, ++i;
    } else if (quote != '\0') {
      if (line[i] == '\\') {
        ++i;
      } else if (line[i] == quote) {
        quote = '\0';
      }
    } else if (rest.starts_with("//")) {
      break;
    } else if (rest.starts_with("/*")) {
      open = true, ++i;
    } else if (line[i] == '"') {
      quote = line[i];
    }
  }
  return open;
}

// "a/b.h" and "c.h" give "a/c.h".
std::string sibling(std::string_view file, std::string_view name) {
  const std::size_t slash = file.rfind('/');
  return slash == std::string_view::npos ? std::string(name) : std::string(file.substr(0, slash + 1)).append(name);
}

class Expander {
 public:
  explicit Expander(const SourceLookup& sources) : sources_(sources) {}

  Status add_file(std::string_view path, std::string_view text) {
    included_.emplace(path);
    return add_text(path, text);
  }

  Status add_text(std::string_view path, std::string_view text) {
    std::size_t number = 0;
    bool in_comment = false;
    mark_line(1, path);
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      ++number;
      const std::optional<std::string_view> include = in_comment ? std::nullopt : after_directive(line, "include");
      const std::optional<std::string_view> pragma = in_comment ? std::nullopt : after_directive(line, "pragma");
      in_comment = comment_open_after(line, in_comment);
      if (include) {
        if (Status status = add_include(path, number, *include); !status.ok()) return status;
        mark_line(number + 1, path);
      } else if (pragma && pragma->starts_with("once")) {
        // Every file is taken once; in the main file of a translation unit the pragma is a warning.
        unit_ += '\n';
      } else {
        unit_.append(line).push_back('\n');
      }
    }
    return {};
  }

  std::string take() { return std::move(unit_); }

 private:
  Status add_include(std::string_view from, std::size_t line, std::string_view operand) {
    const std::string place = std::string(from) + ":" + std::to_string(line);
    const std::size_t close = operand.size() > 1 ? operand.find('"', 1) : std::string_view::npos;
    if (!operand.starts_with('"') || close == std::string_view::npos) {
      return Status::invalid_value(place + ": #include " + std::string(operand) +
                                   " cannot be resolved: kernels include nothing outside kernels/; write #include "
                                   "\"path\" with a path below kernels/");
    }
    const std::string_view path = operand.substr(1, close - 1);
    const std::optional<std::string_view> text = sources_(path);
    if (!text) {
      return Status::invalid_value(place + ": #include \"" + std::string(path) +
                                   "\" cannot be resolved: kernels/ has no such file; paths are relative to kernels/");
    }
    // A compiler that reads the files from disk looks beside the including file first, and would take another file.
    if (const std::string beside = sibling(from, path); beside != path && sources_(beside)) {
      return Status::invalid_value(place + ": #include \"" + std::string(path) + "\" is ambiguous: kernels/ has " +
                                   std::string(path) + " and " + beside + "; rename one");
    }
    if (included_.contains(path)) return {};
    return add_file(path, *text);
  }

  void mark_line(std::size_t number, std::string_view path) {
    unit_.append("#line ").append(std::to_string(number)).append(" \"").append(path).append("\"\n");
  }

  const SourceLookup& sources_;
  std::set<std::string, std::less<>> included_;
  std::string unit_;
};

}  // namespace

std::optional<std::string_view> embedded_source(std::string_view path) {
  const std::span<const KernelFile> files = kernel_files();
  const auto found = std::lower_bound(files.begin(), files.end(), path,
                                      [](const KernelFile& file, std::string_view name) { return file.path < name; });
  if (found == files.end() || found->path != path) return std::nullopt;
  return found->text;
}

Result<std::string> expand_source(std::string_view prefix, std::string_view entry_file, const SourceLookup& sources) {
  const std::optional<std::string_view> entry = sources(entry_file);
  if (!entry) {
    return Status::invalid_value("entry_file = \"" + std::string(entry_file) +
                                 "\" is not a kernel source; pass the path of a file below kernels/");
  }
  Expander expander(sources);
  if (Status status = expander.add_text("config", prefix); !status.ok()) return status;
  if (Status status = expander.add_file(entry_file, *entry); !status.ok()) return status;
  return expander.take();
}

}  // namespace warploom::gpu
