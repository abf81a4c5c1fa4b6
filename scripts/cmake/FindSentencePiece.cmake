# SPDX-License-Identifier: Apache-2.0
# Finds libsentencepiece, which has no config file of its own. Defines SentencePiece::sentencepiece.
include("${CMAKE_CURRENT_LIST_DIR}/MicaFindLibrary.cmake")
mica_find_library(SentencePiece TARGET SentencePiece::sentencepiece HEADER sentencepiece_processor.h LIBRARY sentencepiece)
if(SentencePiece_FOUND)
  # Headers and library do not say the version, its pkg-config file does.
  get_filename_component(_folder "${SentencePiece_LIBRARY}" DIRECTORY)
  set(SentencePiece_VERSION "unknown")
  if(EXISTS "${_folder}/pkgconfig/sentencepiece.pc")
    file(STRINGS "${_folder}/pkgconfig/sentencepiece.pc" _line REGEX "^Version:")
    string(REGEX REPLACE "^Version:[ \t]*" "" SentencePiece_VERSION "${_line}")
  endif()
endif()
