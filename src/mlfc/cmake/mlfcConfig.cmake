# find_package(mlfc REQUIRED), then mlfc_add_model(<target> MODEL <file> ...): models are compiled when the project is
# built. CMake finds this file where the environment with mlfc is active, or by -Dmlfc_DIR=$(mlfc --cmake-dir).
# https://cmake.org/cmake/help/latest/command/find_package.html has the other ways.

cmake_minimum_required(VERSION 3.16)

# the program of the environment that this file is installed in, else that on the PATH
find_program(MLFC_EXECUTABLE mlfc
  HINTS "${CMAKE_CURRENT_LIST_DIR}/../../../bin" "${CMAKE_CURRENT_LIST_DIR}/../../../../../bin"
        "${CMAKE_CURRENT_LIST_DIR}/../../../Scripts" "${CMAKE_CURRENT_LIST_DIR}/../../../../Scripts"
  NO_CMAKE_FIND_ROOT_PATH DOC "The program mlfc")
if(NOT MLFC_EXECUTABLE)
  set(mlfc_FOUND FALSE)
  set(mlfc_NOT_FOUND_MESSAGE "the program mlfc is not on the PATH; set MLFC_EXECUTABLE")
  return()
endif()
set(_MLFC_GENERATE "${CMAKE_CURRENT_LIST_DIR}/mlfcGenerate.cmake")

# mlfc_add_model(<target> MODEL <file> [NAME <module>] [TARGET <target of mlfc>] [OPTIMIZE speed|size]
#                [OPTIONS <option of mlfc compile>...] [DEPENDS <file>...])
#
# Adds a static library with the model's code, whose users include tvmgen_<module>.h. The module has the name of the
# target unless NAME is given. The code is made again when MODEL or a file of DEPENDS changes. TARGET is by default that
# of the core that the toolchain compiles for, where it names a Cortex-M, else "c".
function(mlfc_add_model target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "MODEL;NAME;TARGET;OPTIMIZE" "OPTIONS;DEPENDS")
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "mlfc_add_model: unknown arguments: ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT ARG_MODEL)
    message(FATAL_ERROR "mlfc_add_model: expected MODEL <file>, got none")
  endif()
  get_filename_component(model "${ARG_MODEL}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
  if(NOT ARG_NAME)
    string(MAKE_C_IDENTIFIER "${target}" ARG_NAME)
  elseif(NOT ARG_NAME MATCHES "^[A-Za-z_][A-Za-z0-9_]*$")
    message(FATAL_ERROR "mlfc_add_model: expected a C identifier as NAME, got ${ARG_NAME}")
  endif()
  if(NOT ARG_TARGET)
    _mlfc_target(ARG_TARGET)
  endif()
  set(options --target "${ARG_TARGET}" ${ARG_OPTIONS})
  if(ARG_OPTIMIZE)
    list(APPEND options --optimize "${ARG_OPTIMIZE}")
  endif()

  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}_mlfc")
  set(header "${folder}/include/tvmgen_${ARG_NAME}.h")
  set(sources "${folder}/src/${ARG_NAME}_lib0.c" "${folder}/src/${ARG_NAME}_lib1.c")
  # large constants; empty where a model has none
  set(constants "${folder}/src/${ARG_NAME}_lib2.S")
  add_custom_command(
    OUTPUT "${header}" ${sources} "${constants}" "${constants}.bin"
    COMMAND "${CMAKE_COMMAND}" -P "${_MLFC_GENERATE}" -- "${MLFC_EXECUTABLE}" "${folder}" "${ARG_NAME}" "${model}"
            ${options}
    DEPENDS "${model}" ${ARG_DEPENDS} "${_MLFC_GENERATE}"
    COMMENT "Compiling the model ${ARG_MODEL} for ${ARG_TARGET}"
    VERBATIM)
  # compilers for C take assembler, too, and the project need not enable that language
  set_source_files_properties("${constants}" PROPERTIES LANGUAGE C OBJECT_DEPENDS "${constants}.bin")
  add_library(${target} STATIC ${sources} "${constants}" "${header}")
  target_include_directories(${target} PUBLIC "${folder}/include")
  set_target_properties(${target} PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON LINKER_LANGUAGE C)
  if(UNIX OR CMAKE_SYSTEM_NAME STREQUAL "Generic")
    target_link_libraries(${target} PUBLIC m)
  endif()
endfunction()

# As the function was called while the project was named mlforge.
function(mlforge_add_model)
  mlfc_add_model(${ARGV})
endfunction()

# Set what mlfc compiles for by default: a Cortex-M that flags or the toolchain file name, else any processor.
function(_mlfc_target result)
  set(found "c")
  if(CMAKE_CROSSCOMPILING AND "${CMAKE_C_FLAGS} ${CMAKE_SYSTEM_PROCESSOR}" MATCHES "cortex-m[0-9]+(plus)?p?")
    set(found "c -mcpu=${CMAKE_MATCH_0}")
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()
