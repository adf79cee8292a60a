// A stand-in for an NVRTC of another age. Compiled several times with
//   FAKE_MAJOR, FAKE_MINOR     what it says its version is
//   FAKE_PARTIAL               leave out the functions that came later
// It supports up to sm_90 and fails whenever it is asked to compile.
#include <stddef.h>

#define PUBLIC __attribute__((visibility("default")))

static const int architectures[] = {70, 80, 90};

PUBLIC int nvrtcVersion(int* major, int* minor) {
  *major = FAKE_MAJOR;
  *minor = FAKE_MINOR;
  return 0;
}

#ifndef FAKE_PARTIAL
PUBLIC const char* nvrtcGetErrorString(int result) {
  return result == 0 ? "NVRTC_SUCCESS" : "NVRTC_ERROR_FAKE";
}
PUBLIC int nvrtcGetNumSupportedArchs(int* count) {
  *count = sizeof architectures / sizeof architectures[0];
  return 0;
}
PUBLIC int nvrtcGetSupportedArchs(int* into) {
  for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; ++i) into[i] = architectures[i];
  return 0;
}
PUBLIC int nvrtcCreateProgram(void** program, const char* source, const char* name, int count,
                              const char* const* headers, const char* const* include_names) {
  (void)program, (void)source, (void)name, (void)count, (void)headers, (void)include_names;
  return 1;
}
PUBLIC int nvrtcDestroyProgram(void** program) {
  (void)program;
  return 0;
}
PUBLIC int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  (void)program, (void)count, (void)options;
  return 1;
}
PUBLIC int nvrtcGetCUBINSize(void* program, size_t* bytes) {
  (void)program;
  *bytes = 0;
  return 1;
}
PUBLIC int nvrtcGetCUBIN(void* program, char* cubin) {
  (void)program, (void)cubin;
  return 1;
}
PUBLIC int nvrtcGetProgramLogSize(void* program, size_t* bytes) {
  (void)program;
  *bytes = 0;
  return 1;
}
PUBLIC int nvrtcGetProgramLog(void* program, char* log) {
  (void)program, (void)log;
  return 1;
}
#endif
