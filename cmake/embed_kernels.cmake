# Writes a C++ file that holds the text of every kernel source.
#   cmake -DROOT=kernels -DOUTPUT=kernel_files.cpp -P embed_kernels.cmake
# embed_kernels(TARGET) adds that file to a target and makes it again whenever a kernel file changes, comes or goes.

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(WARPLOOM_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
  function(embed_kernels target)
    set(root ${PROJECT_SOURCE_DIR}/kernels)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/kernel_files.cpp)
    file(GLOB_RECURSE files CONFIGURE_DEPENDS ${root}/*.h ${root}/*.cuh ${root}/*.cu)
    # The list itself is a dependency too: without it a deleted file would stay embedded.
    file(CONFIGURE OUTPUT ${output}.list CONTENT "${files}\n" @ONLY)
    add_custom_command(OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} -DROOT=${root} -DOUTPUT=${output} -P ${WARPLOOM_EMBED_SCRIPT}
      DEPENDS ${files} ${output}.list ${WARPLOOM_EMBED_SCRIPT}
      COMMENT "Embedding the kernels' sources" VERBATIM)
    target_sources(${target} PRIVATE ${output})
  endfunction()
  return()
endif()

file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/*.h ${ROOT}/*.cuh ${ROOT}/*.cu)
list(SORT files)
set(entries "")
foreach(file IN LISTS files)
  file(READ ${ROOT}/${file} text)
  if(text MATCHES "\\)warploom\"")
    message(FATAL_ERROR "${ROOT}/${file} contains )warploom\", the end of the literal that embeds it; write it differently")
  endif()
  string(APPEND entries "    {\"${file}\", R\"warploom(${text})warploom\"sv},\n")
endforeach()
# The first element only makes the array non-empty while kernels/ is; kernel_files() leaves it out.
file(WRITE ${OUTPUT} "// Written by cmake/embed_kernels.cmake from kernels/.
#include \"gpu/kernel_sources.h\"

namespace warploom::gpu {
namespace {
// With its length: counting characters at compile time outlasts clang's patience.
using namespace std::string_view_literals;
constexpr KernelFile files[] = {
    {},
${entries}};
}  // namespace

std::span<const KernelFile> kernel_files() { return std::span(files).subspan(1); }

}  // namespace warploom::gpu
")
