# All missing headers in one message that names their packages, instead of one failed find_package after another.
set(missing_headers "")
set(missing_packages "")
function(require_header header package)
  string(MAKE_C_IDENTIFIER "WARPLOOM_PATH_OF_${header}" place)
  find_path(${place} ${header})
  mark_as_advanced(${place})
  if(NOT ${place})
    set(missing_headers ${missing_headers} ${header} PARENT_SCOPE)
    set(missing_packages ${missing_packages} ${package} PARENT_SCOPE)
  endif()
endfunction()

require_header(hwy/highway.h libhwy-dev)
require_header(nlohmann/json.hpp nlohmann-json3-dev)
if(WARPLOOM_BUILD_COMMAND)
  require_header(CLI/CLI.hpp libcli11-dev)
endif()
if(WARPLOOM_BUILD_TESTS)
  require_header(gtest/gtest.h libgtest-dev)
endif()
if(missing_headers)
  list(JOIN missing_headers ", " headers)
  list(JOIN missing_packages " " packages)
  message(FATAL_ERROR
    "Warploom needs these headers and did not find them: ${headers}.\n"
    "On Debian and Ubuntu: sudo apt-get install ${packages}\n"
    "Elsewhere: install Highway, CLI11, nlohmann-json (and GoogleTest for the tests), and name their prefix in CMAKE_PREFIX_PATH.")
endif()
