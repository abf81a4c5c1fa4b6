# SPDX-License-Identifier: Apache-2.0
# Finds libsentencepiece, which has no config file of its own. Defines SentencePiece::sentencepiece.
find_path(SentencePiece_INCLUDE_DIR sentencepiece_processor.h)
find_library(SentencePiece_LIBRARY sentencepiece)
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)  # for its version: headers and library do not say it
  pkg_check_modules(PC_SentencePiece QUIET sentencepiece)
endif()
set(SentencePiece_VERSION "${PC_SentencePiece_VERSION}")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SentencePiece REQUIRED_VARS SentencePiece_LIBRARY SentencePiece_INCLUDE_DIR)
if(SentencePiece_FOUND AND NOT TARGET SentencePiece::sentencepiece)
  add_library(SentencePiece::sentencepiece UNKNOWN IMPORTED)
  set_target_properties(SentencePiece::sentencepiece PROPERTIES IMPORTED_LOCATION "${SentencePiece_LIBRARY}"
                                                                INTERFACE_INCLUDE_DIRECTORIES "${SentencePiece_INCLUDE_DIR}")
endif()
mark_as_advanced(SentencePiece_INCLUDE_DIR SentencePiece_LIBRARY)
