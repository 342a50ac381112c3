# SPDX-License-Identifier: Apache-2.0
# workshop::backend: the CUDA runtime, cuBLAS and NCCL, real (cuda) or on the CPU (cpu). Chapters link nothing else.
add_library(workshop_backend INTERFACE)
add_library(workshop::backend ALIAS workshop_backend)
target_include_directories(workshop_backend INTERFACE ${CMAKE_SOURCE_DIR})

if(WORKSHOP_MPI)
  target_link_libraries(workshop_backend INTERFACE MPI::MPI_CXX)
  target_compile_definitions(workshop_backend INTERFACE WORKSHOP_MPI OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
endif()

if(WORKSHOP_BACKEND STREQUAL "cpu")
  # Users build for the machine they run on. Kernels vectorize at -O3, which Release is; those that take a root or call
  # erff or expf need -fno-math-errno too, because a vector has no errno. Not -ffast-math: that would lose NaNs.
  target_compile_options(workshop_backend INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native -fno-math-errno>)
  target_compile_definitions(workshop_backend INTERFACE WORKSHOP_BACKEND_CPU)
  add_subdirectory(${CMAKE_SOURCE_DIR}/common/cpu ${CMAKE_BINARY_DIR}/common/cpu)
  target_link_libraries(workshop_backend INTERFACE workshop_cpu Threads::Threads)
elseif(WORKSHOP_BACKEND STREQUAL "cuda")
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # Build for the GPU of this machine; on a login node without one, for all that the toolkit supports.
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
    message(FATAL_ERROR "nvcc is of CUDA ${_nvcc}, the toolkit in ${CUDAToolkit_INCLUDE_DIRS} of ${CUDAToolkit_VERSION}. "
                        "CUDAToolkit_ROOT says where nvcc's is.")
  endif()
  # nvcc may use an older GCC than CMake, as on Debian 13. The C++ compiler links, and with its own library alone.
  list(FILTER CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES EXCLUDE REGEX "/gcc/[^/]+/[0-9.]+$")
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know yet that nvcc has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  target_compile_definitions(workshop_backend INTERFACE WORKSHOP_BACKEND_CUDA)
  target_link_libraries(workshop_backend INTERFACE CUDA::cudart CUDA::cublas NCCL::NCCL Threads::Threads)
else()
  message(FATAL_ERROR "WORKSHOP_BACKEND is '${WORKSHOP_BACKEND}'; expected cpu or cuda")
endif()
