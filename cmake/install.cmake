# What is installed, and how the shipped binaries are linked.
#
#   cmake --install         library, headers, find_package(warploom), pkg-config file, command
#   WARPLOOM_WHEEL=ON       the component `wheel`: library into warploom/lib, command into the wheel's scripts folder
#
# Release binaries carry the C++ runtime, so that they run wherever a glibc of the building machine's age or newer is found.
include(CMakePackageConfigHelpers)

set(WARPLOOM_SHIPPED warploom)
if(TARGET warploom_command)
  list(APPEND WARPLOOM_SHIPPED warploom_command)
endif()

target_link_options(warploom PRIVATE
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map -Wl,--no-undefined-version)
set_property(TARGET warploom APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
if(NOT WARPLOOM_SANITIZE)
  foreach(target IN LISTS WARPLOOM_SHIPPED)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,--as-needed -Wl,--gc-sections)
  endforeach()
endif()

if(WARPLOOM_WHEEL)
  # Wheels hold no links, and one library for one package: a plain name.
  set_target_properties(warploom PROPERTIES NO_SONAME ON)
  set_property(TARGET warploom PROPERTY VERSION)
  set_property(TARGET warploom PROPERTY SOVERSION)
  install(TARGETS warploom LIBRARY DESTINATION warploom/lib COMPONENT wheel)
  if(TARGET warploom_command)
    install(TARGETS warploom_command RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel)
  endif()
  return()
endif()

set(WARPLOOM_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/warploom)
install(TARGETS warploom EXPORT warploom LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET warploom_command)
  install(TARGETS warploom_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/warploom ${CMAKE_BINARY_DIR}/generated/warploom
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT warploom NAMESPACE warploom:: FILE warploom-targets.cmake DESTINATION ${WARPLOOM_CMAKE_DIR})

configure_package_config_file(cmake/warploom-config.cmake.in ${CMAKE_BINARY_DIR}/warploom-config.cmake
  INSTALL_DESTINATION ${WARPLOOM_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/warploom-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/warploom-config.cmake ${CMAKE_BINARY_DIR}/warploom-config-version.cmake
  DESTINATION ${WARPLOOM_CMAKE_DIR})

# The pkg-config file finds the prefix from its own place, so that an installed tree can be moved.
file(RELATIVE_PATH WARPLOOM_PC_TO_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(cmake/warploom.pc.in ${CMAKE_BINARY_DIR}/warploom.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/warploom.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
