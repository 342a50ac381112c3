# SPDX-License-Identifier: Apache-2.0
# workshop::backend: the CUDA runtime, cuBLAS and NCCL, real (cuda) or on the CPU (cpu). Chapters link nothing else.
add_library(workshop_backend INTERFACE)
add_library(workshop::backend ALIAS workshop_backend)
target_include_directories(workshop_backend INTERFACE ${CMAKE_SOURCE_DIR})

# For code that calls MPI: common/. The chapters do not, and compile the same with and without it.
add_library(workshop_mpi INTERFACE)
if(WORKSHOP_MPI)
  target_link_libraries(workshop_mpi INTERFACE MPI::MPI_CXX)
  target_compile_definitions(workshop_mpi INTERFACE WORKSHOP_MPI OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
endif()

if(WORKSHOP_BACKEND STREQUAL "cpu")
  # By default, users build for the machine they run on. Kernels with a square root, erff or expf vectorize only with
  # -fno-math-errno, because vector functions do not set errno. Do not use -ffast-math: it would lose NaNs.
  target_compile_options(workshop_backend INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${WORKSHOP_MARCH} -fno-math-errno>)
  target_compile_definitions(workshop_backend INTERFACE WORKSHOP_BACKEND_CPU)
  add_subdirectory(${CMAKE_SOURCE_DIR}/backend_cpu ${CMAKE_BINARY_DIR}/backend_cpu)
  target_link_libraries(workshop_backend INTERFACE workshop_cpu Threads::Threads)
elseif(WORKSHOP_BACKEND STREQUAL "cuda")
  target_compile_definitions(workshop_backend INTERFACE WORKSHOP_BACKEND_CUDA)
  target_link_libraries(workshop_backend INTERFACE CUDA::cudart CUDA::cublas NCCL::NCCL Threads::Threads)
else()
  message(FATAL_ERROR "WORKSHOP_BACKEND is '${WORKSHOP_BACKEND}'; expected cpu or cuda")
endif()
