# For 64-bit ARM with Debian's cross compiler; tests run in an emulator where there is one.
#
#     apt-get install g++-aarch64-linux-gnu qemu-user-static
#     cmake -S engine -B build/arm --toolchain "$PWD"/engine/cmake/aarch64-linux-gnu.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

find_program(BURN_ENGINE_QEMU NAMES qemu-aarch64-static qemu-aarch64)
if(BURN_ENGINE_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${BURN_ENGINE_QEMU} -L /usr/aarch64-linux-gnu)
endif()
