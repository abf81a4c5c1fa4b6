# SPDX-License-Identifier: Apache-2.0
# cmake --install: programs, headers, libraries and the package `mica` with the target mica::mica (all modules).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
get_property(modules GLOBAL PROPERTY MICA_MODULES)
add_library(mica INTERFACE)
add_library(mica::mica ALIAS mica)
target_link_libraries(mica INTERFACE ${modules})
install(TARGETS mica ${modules} EXPORT micaTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/mica DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT micaTargets NAMESPACE mica:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mica)
configure_package_config_file(scripts/cmake/micaConfig.cmake.in ${PROJECT_BINARY_DIR}/micaConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mica)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/micaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/micaConfig.cmake ${PROJECT_BINARY_DIR}/micaConfigVersion.cmake
              scripts/cmake/FindDNNL.cmake scripts/cmake/FindSentencePiece.cmake
              scripts/cmake/MicaDependencies.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mica)
