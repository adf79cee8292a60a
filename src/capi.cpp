// The C ABI: checks a call, sends it to its back end, and turns errors and exceptions into a status and a message.
#include <cstdlib>
#include <cstring>
#include <string>

#include "cpu/attention.h"
#include "cpu/gemm.h"
#include "functions_json.h"
#include "gpu/attention.h"
#include "gpu/gemm.h"
#include "gpu/nvrtc_search.h"
#include "gpu/user_kernel.h"
#include "information.h"
#include "last_error.h"
#include "problem/aliases.h"
#include "problem/gemm.h"
#include "problem/validate.h"
#include "warploom/kernel.h"
#include "warploom/version.h"
#include "warploom/warploom.h"

namespace {

using warploom::Result;
using warploom::Status;

Status validate(const warploom_attention* call) {
  if (call == nullptr) return Status::invalid_value("call is null; pass a warploom_attention");
  if (Status status = warploom::validate_description(*call); !status.ok()) return status;
  // The values of a GPU call's lengths are in device memory: its back end reads them when asked to.
  return call->device == WARPLOOM_CPU ? warploom::validate_values(*call) : Status();
}

Status validate(const warploom_gemm* call) {
  if (call == nullptr) return Status::invalid_value("call is null; pass a warploom_gemm");
  return warploom::validate_gemm(*call);
}

/// Gives the text to the caller, who releases it with warploom_free.
Status give(const Result<std::string>& made, char** text) {
  if (text == nullptr) return Status::invalid_value("text is null; pass a char*'s address");
  if (!made.ok()) return made.status();
  *text = static_cast<char*>(std::malloc(made->size() + 1));
  if (*text == nullptr) return Status::runtime_error("out of memory");
  std::memcpy(*text, made->c_str(), made->size() + 1);
  return {};
}

}  // namespace

extern "C" {

const char* warploom_version(void) {
  return WARPLOOM_VERSION;
}
uint32_t warploom_abi_version(void) {
  return WARPLOOM_ABI_VERSION;
}
const char* warploom_last_error(void) {
  return warploom::last_error().c_str();
}

int warploom_validate(const warploom_attention* call) {
  return warploom::guarded([&] { return validate(call); });
}

int warploom_run(const warploom_attention* call) {
  return warploom::guarded([&] {
    if (Status status = validate(call); !status.ok()) return status;
    if (Status status = warploom::check_aliases(*call); !status.ok()) return status;
    return call->device == WARPLOOM_CPU ? warploom::cpu::run(*call) : warploom::gpu::run(*call);
  });
}

int warploom_warmup(const warploom_attention* call) {
  return warploom::guarded([&] {
    if (Status status = validate(call); !status.ok()) return status;
    return call->device == WARPLOOM_CPU ? Status() : warploom::gpu::warmup(*call);
  });
}

int warploom_explain(const warploom_attention* call, char** text) {
  return warploom::guarded([&] {
    if (Status status = validate(call); !status.ok()) return status;
    Result<std::string> plan = call->device == WARPLOOM_CPU ? Result<std::string>(warploom::cpu::explain(*call))
                                                            : warploom::gpu::explain(*call);
    if (plan.ok()) plan = warploom::with_functions(*call, *plan);
    return give(plan, text);
  });
}

int warploom_describe_score(const warploom_function* function, char** text) {
  return warploom::guarded([&] { return give(warploom::describe_score(function), text); });
}

int warploom_describe_mask(const warploom_function* function, char** text) {
  return warploom::guarded([&] { return give(warploom::describe_mask(function), text); });
}

int warploom_evaluate_score(const warploom_function* function, const float* z, int64_t count, float* values,
                            float* slopes) {
  return warploom::guarded([&] {
    if (function == nullptr) return Status::invalid_value("function is null; pass a warploom_function");
    if (count < 0 || (z == nullptr && count > 0)) {
      return Status::invalid_value("z has " + std::to_string(count) + " points at a null address or fewer than 0");
    }
    return warploom::cpu::evaluate_score(*function, z, count, values, slopes);
  });
}

void warploom_gemm_init(warploom_gemm* call) {
  if (call != nullptr) warploom::init_gemm(*call);
}

int warploom_gemm_run(const warploom_gemm* call) {
  return warploom::guarded([&] {
    if (Status status = validate(call); !status.ok()) return status;
    if (Status status = warploom::check_aliases(*call); !status.ok()) return status;
    return call->device == WARPLOOM_CPU ? warploom::cpu::run(*call) : warploom::gpu::run(*call);
  });
}

int warploom_compile_kernel(const char* source, const char* kernel, const char* architecture, char** cubin,
                            size_t* bytes) {
  return warploom::guarded([&]() -> Status {
    if (source == nullptr || kernel == nullptr) return Status::invalid_value("source or kernel is null; pass text");
    if (cubin == nullptr || bytes == nullptr)
      return Status::invalid_value("cubin or bytes is null; pass addresses for the results");
    const Result<warploom::gpu::Architecture> target = warploom::gpu::user_architecture(architecture);
    if (!target.ok()) return target.status();
    const Result<warploom::gpu::CubinPointer> made =
        warploom::gpu::compile_user_kernel(source, kernel, *target, warploom::gpu::compiler().settings());
    if (!made.ok()) return made.status();
    const std::string& image = (*made)->image;
    *cubin = static_cast<char*>(std::malloc(image.size()));
    if (*cubin == nullptr) return Status::runtime_error("out of memory");
    std::memcpy(*cubin, image.data(), image.size());
    *bytes = image.size();
    return {};
  });
}

int warploom_gemm_explain(const warploom_gemm* call, char** text) {
  return warploom::guarded([&] {
    if (Status status = validate(call); !status.ok()) return status;
    return give(call->device == WARPLOOM_CPU ? Result<std::string>(warploom::cpu::explain(*call))
                                             : warploom::gpu::explain(*call),
                text);
  });
}

int warploom_devices(char** text) {
  return warploom::guarded([&] { return give(warploom::devices_json(), text); });
}

int warploom_info(char** text) {
  return warploom::guarded([&] { return give(warploom::information_json(), text); });
}

void warploom_free(char* text) {
  std::free(text);
}

int warploom_set_num_threads(int32_t count) {
  return warploom::guarded([&] {
    if (count < 0)
      return Status::invalid_value("count = " + std::to_string(count) + " is negative; 0 means all processors");
    if (count > warploom::kMaxThreads) {
      return Status::invalid_value("count = " + std::to_string(count) + " is above the limit, " +
                                   std::to_string(warploom::kMaxThreads) + "; 0 means all processors");
    }
    warploom::cpu::set_num_threads(count);
    return Status();
  });
}

int32_t warploom_get_num_threads(void) {
  return warploom::cpu::num_threads();
}

int warploom_add_library_directory(const char* path) {
  return warploom::guarded([&] {
    if (path == nullptr) return Status::invalid_value("path is null; pass a folder");
    warploom::gpu::add_search_directory(path);
    return Status();
  });
}

}  // extern "C"
