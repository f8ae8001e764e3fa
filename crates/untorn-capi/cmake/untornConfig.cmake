# find_package(untorn 0.1 REQUIRED) gives the targets untorn::untorn, the shared library, and untorn::static.
#
# All paths follow from the place of this file, so that the tree can be moved.

get_filename_component(_untorn_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
get_filename_component(_untorn_prefix "${_untorn_lib}/.." ABSOLUTE)
# In a directory for one machine, as lib/x86_64-linux-gnu, or beside one, as share/cmake.
if(NOT EXISTS "${_untorn_prefix}/include/untorn.h")
  get_filename_component(_untorn_prefix "${_untorn_lib}/../.." ABSOLUTE)
endif()
find_library(_untorn_shared untorn HINTS "${_untorn_lib}" "${_untorn_prefix}/lib"
  PATH_SUFFIXES "${CMAKE_LIBRARY_ARCHITECTURE}" NO_DEFAULT_PATH NO_CACHE)
find_file(_untorn_static libuntorn.a HINTS "${_untorn_lib}" "${_untorn_prefix}/lib"
  PATH_SUFFIXES "${CMAKE_LIBRARY_ARCHITECTURE}" NO_DEFAULT_PATH NO_CACHE)

if(NOT EXISTS "${_untorn_prefix}/include/untorn.h" OR NOT _untorn_shared)
  set(untorn_FOUND FALSE)
  set(untorn_NOT_FOUND_MESSAGE
    "the installation of untorn at ${_untorn_prefix} is incomplete: install it again, libraries and headers")
  return()
endif()

if(NOT TARGET untorn::untorn)
  add_library(untorn::untorn SHARED IMPORTED)
  set_target_properties(untorn::untorn PROPERTIES
    IMPORTED_LOCATION "${_untorn_shared}"
    INTERFACE_INCLUDE_DIRECTORIES "${_untorn_prefix}/include")
endif()
if(_untorn_static AND NOT TARGET untorn::static)
  add_library(untorn::static STATIC IMPORTED)
  set_target_properties(untorn::static PROPERTIES
    IMPORTED_LOCATION "${_untorn_static}"
    INTERFACE_INCLUDE_DIRECTORIES "${_untorn_prefix}/include"
    INTERFACE_LINK_LIBRARIES "gcc_s;util;rt;pthread;m;dl;c")
endif()

unset(_untorn_lib)
unset(_untorn_prefix)
unset(_untorn_shared)
unset(_untorn_static)
