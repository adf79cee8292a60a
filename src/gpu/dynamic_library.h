// A shared library opened at run time and closed with its owner.
#pragma once

#include <string>
#include <utility>

#include "warploom/status.h"

namespace warploom::gpu {

class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  DynamicLibrary(const DynamicLibrary&) = delete;
  DynamicLibrary& operator=(const DynamicLibrary&) = delete;
  DynamicLibrary(DynamicLibrary&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~DynamicLibrary();

  /// Opens a file (a name with a slash) or asks the system loader (a bare name). Symbols stay local to the library.
  /// Error: runtime_error with the loader's own words.
  static Result<DynamicLibrary> open(const std::string& name);

  /// The address of a symbol; nullptr when the library has none of that name.
  void* find(const char* symbol) const;

  /// `target` becomes the function called `symbol`; false (and target untouched) when the library has none.
  template <typename Function>
  bool bind(const char* symbol, Function*& target) const {
    void* address = find(symbol);
    if (address == nullptr) return false;
    target = reinterpret_cast<Function*>(address);
    return true;
  }

  /// The file it was loaded from, as the loader found it; empty when the loader does not say.
  std::string path() const;

  /// Gives up ownership: the library stays loaded until the process ends.
  void keep_loaded() { handle_ = nullptr; }

 private:
  void* handle_ = nullptr;
};

}  // namespace warploom::gpu
