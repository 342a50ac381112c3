# SPDX-License-Identifier: Apache-2.0
# Finds NCCL::NCCL: under NCCL_ROOT, next to the CUDA Toolkit, in the active conda environment, in the pip wheels of the
# python3 on the PATH (nvidia/nccl), and in the system's folders.
set(_nccl_hints ${NCCL_ROOT} $ENV{NCCL_ROOT} $ENV{NCCL_HOME} ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_TARGET_DIR}
    $ENV{CONDA_PREFIX})
find_program(_nccl_python python3)
if(_nccl_python)
  execute_process(COMMAND ${_nccl_python} -c "import nvidia.nccl as n; print(list(n.__path__)[0])"
                  OUTPUT_VARIABLE _nccl_wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(APPEND _nccl_hints ${_nccl_wheel})
endif()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_nccl_hints} PATH_SUFFIXES include)
# Prefer the library that belongs to the header. The wheel has only libnccl.so.2, without the name that the linker uses.
get_filename_component(_nccl_folder ${NCCL_INCLUDE_DIR} DIRECTORY)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${_nccl_folder} ${_nccl_hints}
             PATH_SUFFIXES lib lib64)
if(NCCL_INCLUDE_DIR AND EXISTS ${NCCL_INCLUDE_DIR}/nccl.h)
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h _nccl_line REGEX "^#define NCCL_${part} +[0-9]+")
    string(REGEX REPLACE "[^0-9]*([0-9]+).*" "\\1" _nccl_${part} "${_nccl_line}")
  endforeach()
  set(NCCL_VERSION ${_nccl_MAJOR}.${_nccl_MINOR}.${_nccl_PATCH})
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
