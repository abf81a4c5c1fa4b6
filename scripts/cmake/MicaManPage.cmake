# SPDX-License-Identifier: Apache-2.0
# mica_add_man_page(PROGRAM "what it does"): PROGRAM.1 from what its --help says, built with everything else and installed.
function(mica_add_man_page program summary)
  if(CMAKE_CROSSCOMPILING OR MICA_SANITIZE)  # the program does not run here, or not without settings
    return()
  endif()
  set(page "${PROJECT_BINARY_DIR}/man/${program}.1")
  add_custom_command(OUTPUT "${page}" DEPENDS ${program} "${PROJECT_SOURCE_DIR}/scripts/cmake/write_man_page.cmake" VERBATIM
    COMMAND ${CMAKE_COMMAND} -D PROGRAM=$<TARGET_FILE:${program}> -D "SUMMARY=${summary}" -D VERSION=${PROJECT_VERSION} -D OUT=${page}
            -P "${PROJECT_SOURCE_DIR}/scripts/cmake/write_man_page.cmake")
  add_custom_target(${program}-man ALL DEPENDS "${page}")
  install(FILES "${page}" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT programs OPTIONAL)
endfunction()
