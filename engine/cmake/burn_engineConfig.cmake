# find_package(burn_engine): burn_engine::burn_engine (shared), burn_engine::burn_engine_static
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include("${CMAKE_CURRENT_LIST_DIR}/burn_engineTargets.cmake")
