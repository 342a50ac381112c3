# SPDX-License-Identifier: Apache-2.0
# What the build needs from elsewhere, all of it looked for here. A line "missing: WHAT: PACKAGES" each for what is not
# there, PACKAGES being Debian's and Ubuntu's, from which './workshop setup' installs.
include_guard()
set(_missing FALSE)
macro(_needs condition what packages)
  string(REPLACE " " ";" _condition "${condition}")
  if(NOT (${_condition}))
    message(NOTICE "missing: ${what}: ${packages}")
    set(_missing TRUE)
  endif()
endmacro()

find_package(Threads REQUIRED)
find_package(nlohmann_json 3.9 QUIET)
_needs("nlohmann_json_FOUND" "nlohmann-json 3.9" "nlohmann-json3-dev")
find_package(CLI11 2.1 QUIET)
_needs("CLI11_FOUND" "CLI11 2.1" "libcli11-dev")
find_package(GTest QUIET)
_needs("GTest_FOUND" "GoogleTest" "libgtest-dev")
find_package(ZLIB QUIET)  # the checksums of checkpoints
_needs("ZLIB_FOUND" "zlib" "zlib1g-dev")
find_package(OpenSSL 3 QUIET COMPONENTS Crypto)  # ranks that meet without MPI prove that they belong to the job
_needs("OpenSSL_FOUND" "OpenSSL 3" "libssl-dev")

# MPI starts the ranks where it is there; the cuda backend does without.
option(WORKSHOP_MPI "use MPI to start the ranks (the cpu backend always does)" ON)
if(WORKSHOP_BACKEND STREQUAL "cpu")
  set(WORKSHOP_MPI ON)
endif()
if(WORKSHOP_MPI)
  find_package(MPI QUIET COMPONENTS CXX)
  set(WORKSHOP_MPI ${MPI_CXX_FOUND})
endif()

if(WORKSHOP_BACKEND STREQUAL "cpu")
  find_program(WORKSHOP_MPIRUN mpirun)
  _needs("WORKSHOP_MPI AND WORKSHOP_MPIRUN" "Open MPI" "openmpi-bin libopenmpi-dev")
  # OpenBLAS's cblas.h lies beside openblas_config.h; a cblas.h alone may be another library's.
  find_path(OPENBLAS_INCLUDE_DIR openblas_config.h
            PATH_SUFFIXES openblas openblas-pthread x86_64-linux-gnu/openblas-pthread aarch64-linux-gnu/openblas-pthread)
  find_library(OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-pthread)
  _needs("OPENBLAS_INCLUDE_DIR AND OPENBLAS_LIBRARY" "OpenBLAS" "libopenblas-pthread-dev")
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")  # on others oneDNN's products of float32 are not compiled for the processor
    find_path(ONEDNN_INCLUDE_DIR dnnl.h)
    find_library(ONEDNN_LIBRARY dnnl)
    _needs("ONEDNN_INCLUDE_DIR AND ONEDNN_LIBRARY" "oneDNN" "libdnnl-dev")
  endif()
else()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  # The toolkit that the compiler belongs to, not another: while CUDA is not enabled, find_package() does not ask.
  set(_nvcc ${CMAKE_CUDA_COMPILER})
  if(NOT _nvcc AND DEFINED ENV{CUDACXX})
    find_program(_nvcc_path NAMES $ENV{CUDACXX} NO_CACHE)
    set(_nvcc ${_nvcc_path})
  endif()
  if(_nvcc AND NOT CUDAToolkit_ROOT)
    get_filename_component(CUDAToolkit_ROOT ${_nvcc}/../.. ABSOLUTE)
  endif()
  find_package(CUDAToolkit 12 QUIET)
  find_package(NCCL 2.18 QUIET)
  _needs("CUDAToolkit_FOUND" "the CUDA Toolkit 12 or newer, with cuBLAS" "")
  _needs("NCCL_FOUND" "NCCL 2.18 or newer" "")
endif()
if(_missing)
  message(FATAL_ERROR "What is named above is missing. On Debian and Ubuntu './workshop setup' installs it.")
endif()
