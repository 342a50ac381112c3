# SPDX-License-Identifier: Apache-2.0
# The CUDA language: GPU architectures, compiler and standard.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # Build for this machine's GPU or, on a login node without one, for every architecture that the toolkit supports.
  execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE no_gpu OUTPUT_QUIET ERROR_QUIET)
  if(no_gpu)
    set(CMAKE_CUDA_ARCHITECTURES all-major CACHE STRING "GPU architectures to build for")
  else()
    set(CMAKE_CUDA_ARCHITECTURES native CACHE STRING "GPU architectures to build for")
  endif()
endif()
enable_language(CUDA)
string(REGEX MATCH "^[0-9]+[.][0-9]+" _nvcc ${CMAKE_CUDA_COMPILER_VERSION})
if(NOT "${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR}" STREQUAL _nvcc)
  message(FATAL_ERROR "nvcc belongs to CUDA ${_nvcc}, but the toolkit in ${CUDAToolkit_INCLUDE_DIRS} is "
                      "${CUDAToolkit_VERSION}. Set CUDAToolkit_ROOT to nvcc's toolkit.")
endif()
# nvcc may use an older GCC than CMake does, as on Debian 13. The C++ compiler links, and only with its own library.
list(FILTER CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES EXCLUDE REGEX "/gcc/[^/]+/[0-9.]+$")
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc supports C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
