# SPDX-License-Identifier: Apache-2.0
# mica_find_library(PACKAGE TARGET name HEADER file LIBRARY name [VERSION_HEADER file VERSION_MACROS MAJOR;MINOR;PATCH]
#                   [HINTS folders...] [SUBFOLDERS names...] [LIBRARY_HINTS folders...])
# For the Find modules here. Finds the header, then the library beside it: one package's header with another one's library is
# the worst of all finds. Sets PACKAGE_FOUND and PACKAGE_VERSION, defines the imported target; PACKAGE_ROOT, CMAKE_PREFIX_PATH
# or -DPACKAGE_INCLUDE_DIR=... -DPACKAGE_LIBRARY=... say where to look.
include(FindPackageHandleStandardArgs)
macro(mica_find_library package)
  cmake_parse_arguments(_find "" "TARGET;HEADER;LIBRARY;VERSION_HEADER" "VERSION_MACROS;HINTS;SUBFOLDERS;LIBRARY_HINTS" ${ARGN})
  set(_find_header_folders include)
  foreach(_find_sub IN LISTS _find_SUBFOLDERS)
    list(APPEND _find_header_folders "${_find_sub}" "include/${_find_sub}")
  endforeach()
  find_path(${package}_INCLUDE_DIR ${_find_HEADER} HINTS ${_find_HINTS} PATH_SUFFIXES ${_find_header_folders})
  if(${package}_INCLUDE_DIR MATCHES "^(.*)/include(/.*)?$")
    set(_find_prefix "${CMAKE_MATCH_1}")
    set(_find_sub "${CMAKE_MATCH_2}")
    find_library(${package}_LIBRARY ${_find_LIBRARY} NO_DEFAULT_PATH HINTS "${_find_prefix}" ${_find_LIBRARY_HINTS}
                 PATH_SUFFIXES "lib/${CMAKE_LIBRARY_ARCHITECTURE}${_find_sub}" "lib${_find_sub}" "lib64${_find_sub}"
                               "lib/${CMAKE_LIBRARY_ARCHITECTURE}" lib lib64)
  else()  # a header that lies in no folder named include: nothing is beside it
    find_library(${package}_LIBRARY ${_find_LIBRARY} HINTS ${_find_HINTS} ${_find_LIBRARY_HINTS} PATH_SUFFIXES lib lib64)
  endif()
  set(_find_version "")
  foreach(_find_macro IN LISTS _find_VERSION_MACROS)
    set(_find_line "")
    if(EXISTS "${${package}_INCLUDE_DIR}/${_find_VERSION_HEADER}")
      file(STRINGS "${${package}_INCLUDE_DIR}/${_find_VERSION_HEADER}" _find_line REGEX "define[ \t]+${_find_macro}[ \t]+[0-9]+" LIMIT_COUNT 1)
    endif()
    if(_find_line MATCHES "${_find_macro}[ \t]+([0-9]+)")
      list(APPEND _find_version ${CMAKE_MATCH_1})
    endif()
  endforeach()
  if(_find_version)
    list(JOIN _find_version "." ${package}_VERSION)
  endif()
  find_package_handle_standard_args(${package} REQUIRED_VARS ${package}_LIBRARY ${package}_INCLUDE_DIR VERSION_VAR ${package}_VERSION)
  if(${package}_FOUND AND NOT TARGET ${_find_TARGET})
    add_library(${_find_TARGET} UNKNOWN IMPORTED)
    set_target_properties(${_find_TARGET} PROPERTIES IMPORTED_LOCATION "${${package}_LIBRARY}"
                                                     INTERFACE_INCLUDE_DIRECTORIES "${${package}_INCLUDE_DIR}")
  endif()
  mark_as_advanced(${package}_INCLUDE_DIR ${package}_LIBRARY)
endmacro()
