# One target that carries the flags every target of ours is compiled with.
add_library(warploom_flags INTERFACE)
target_compile_options(warploom_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX,C>:-Wall -Wextra -Wpedantic -Wshadow>
  # GCC 12 warns of overlapping copies inside its own std::string (its bug 105651).
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  $<$<BOOL:${WARPLOOM_WERROR}>:-Werror>)
if(WARPLOOM_SANITIZE)
  target_compile_options(warploom_flags INTERFACE -fsanitize=${WARPLOOM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(warploom_flags INTERFACE -fsanitize=${WARPLOOM_SANITIZE})
  # With a sanitizer's calls in the code GCC takes members of its own std::regex for uninitialised.
  target_compile_options(warploom_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
endif()
if(WARPLOOM_FUZZ)
  # The fuzzer sees which branches an input takes.
  target_compile_options(warploom_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(warploom_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_include_directories(warploom_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/kernels>
  $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/generated>)
