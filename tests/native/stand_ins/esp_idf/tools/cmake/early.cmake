# What a component's file runs in before there is a project: no targets, and nothing may be written.
set(CMAKE_BUILD_EARLY_EXPANSION 1)

macro(idf_component_register)
  return()
endmacro()

macro(configure_file)
  message(FATAL_ERROR "nothing is configured yet")
endmacro()

include(${COMPONENT}/CMakeLists.txt)
