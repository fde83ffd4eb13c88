# The environment of a component's file before the project exists: without targets, and without writing files.
set(CMAKE_BUILD_EARLY_EXPANSION 1)

macro(idf_component_register)
  return()
endmacro()

macro(configure_file)
  message(FATAL_ERROR "nothing is configured yet")
endmacro()

include(${COMPONENT}/CMakeLists.txt)
