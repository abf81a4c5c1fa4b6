# SPDX-License-Identifier: Apache-2.0
# Writes a program's --help as a man page.   cmake -D PROGRAM=FILE -D SUMMARY=... -D VERSION=... -D OUT=FILE -P write_man_page.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND "${PROGRAM}" --help OUTPUT_VARIABLE help RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} --help ended with ${status}")
endif()
function(to_roff variable)
  set(text "${${variable}}")
  string(REPLACE "\\" "\\e" text "${text}")
  string(REPLACE "-" "\\-" text "${text}")
  string(REGEX REPLACE "(^|\n)([.'])" "\\1\\\\&\\2" text "${text}")  # no requests of roff
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()
get_filename_component(name "${PROGRAM}" NAME)
string(TOUPPER "${name}" title)
to_roff(name)
to_roff(help)
file(WRITE "${OUT}" ".TH \"${title}\" 1 \"\" \"Mica ${VERSION}\" \"User Commands\"\n.SH NAME\n${name} \\- ${SUMMARY}\n"
                    ".SH DESCRIPTION\n.nf\n${help}.fi\n"
                    ".SH SEE ALSO\n.BR mica\\-train (1),\n.BR mica\\-tokenize (1),\n.BR mica\\-inspect (1),\n.BR mica\\-convert (1),\n"
                    ".BR mica\\-generate (1),\n.BR mica\\-plan (1),\n.BR mica\\-bench (1)\n")
