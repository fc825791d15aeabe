# find_package(burn_engine): burn_engine::burn_engine (shared), burn_engine::burn_engine_static
# The static library is C++: a project in C alone links it with the C++ compiler.
if(NOT CMAKE_CXX_COMPILER_LOADED)
  enable_language(CXX)
endif()
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include("${CMAKE_CURRENT_LIST_DIR}/burn_engineTargets.cmake")
