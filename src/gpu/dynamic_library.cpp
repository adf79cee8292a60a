#include "gpu/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

namespace warploom::gpu {

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

Result<DynamicLibrary> DynamicLibrary::open(const std::string& name) {
  DynamicLibrary library;
  library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle_ == nullptr) {
    const char* reason = dlerror();
    return Status::runtime_error(reason != nullptr ? reason : "cannot open " + name);
  }
  return library;
}

void* DynamicLibrary::find(const char* symbol) const {
  return dlsym(handle_, symbol);
}

std::string DynamicLibrary::path() const {
  link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr) return {};
  return map->l_name;
}

}  // namespace warploom::gpu
