// The kernels' sources, embedded in the library, and their expansion into one translation unit.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "warploom/status.h"

namespace warploom::gpu {

struct KernelFile {
  std::string_view path;  ///< below kernels/, with forward slashes
  std::string_view text;
};

/// Every .h, .cuh and .cu file of kernels/, sorted by path.
std::span<const KernelFile> kernel_files();

/// Finds the text of a file by its path below kernels/.
using SourceLookup = std::function<std::optional<std::string_view>(std::string_view path)>;

/// The lookup over kernel_files().
std::optional<std::string_view> embedded_source(std::string_view path);

/// One translation unit without includes: `prefix`, then the entry file, with every #include "path" (relative to
/// kernels/) replaced by that file, each file once, and #line marks so that the compiler's messages name the real
/// files. Error: invalid_value for an include that is not in kernels/ (any <...> is one), with the file and line that
/// ask for it.
Result<std::string> expand_source(std::string_view prefix, std::string_view entry_file,
                                  const SourceLookup& sources = embedded_source);

}  // namespace warploom::gpu
